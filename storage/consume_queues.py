"""All consume queues of a store: `consumequeue/<topic>/<queue id>/`.

Source: store/DefaultMessageStore.java (loadConsumeQueue, recoverConsumeQueue,
recoverTopicQueueTable, findConsumeQueue, FlushConsumeQueueService).
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from storage.config import StoreConfig
from storage.consume_queue import UNIT, ConsumeQueue
from storage.disk import Disk
from storage.errors import StoreError
from storage.queue_files import UNIT_BYTES, QueueFiles
from storage.unsynced import Unsynced, sync_files

DispatchEntry: TypeAlias = tuple[
    bytes,  # topic
    int,  # queue_id
    int,  # queue_offset
    int,  # physical_offset
    int,  # record_bytes
    int,  # tags_code, or the due time (ms) of a delayed message
    int,  # store_timestamp, ms
    int,  # sys_flag
    tuple[bytes, ...],  # index keys: UNIQ_KEY first, then the words of KEYS
]
"""What a consume queue and the index want to know of one record."""

UNWRITTEN_BYTES_MAX = 4 << 20
"""Units in memory alone, over all queues: then all are written out, 1,024 queues 4 KiB each."""
_PAGE_BYTES = 4096
_TRANSACTION_PREPARED = 0x4
"""Set for prepared and rolled back: those records have no unit (sysflag.has_queue_unit)."""


class ConsumeQueues:
    """The queues by topic and queue id. One owner."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.directory = config.consume_queue_dir
        self.last_store_timestamp = 0
        """Of the newest record that has a unit, ms."""
        self.synced_store_timestamp = 0
        """The units of all records up to this store timestamp are on disk; for the checkpoint."""
        self._disk = disk
        self._files = QueueFiles(disk, config.consume_queue_file_bytes)
        self._by_name: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._dirty: list[ConsumeQueue] = []
        self._unwritten_units = 0
        self._unsynced: dict[ConsumeQueue, None] = {}

    # -- finding ------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._by_name.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, empty if it is new; its directory appears when the first units are written.

        Raises StoreError for a topic that cannot be the name of a directory.
        """
        queue = self._by_name.get((topic, queue_id))
        if queue is None:
            if not topic or topic in (".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
                raise StoreError(
                    f"the commit log names queue {queue_id} of topic {topic!r}, which cannot be a "
                    "directory: the record is damaged or forged."
                )
            queue = self._add(topic, queue_id)
        return queue

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self.directory}/{topic}/{queue_id}"
        queue = ConsumeQueue(topic, queue_id, directory, self._files)
        self._by_name[topic, queue_id] = queue
        self._by_bytes[topic.encode("utf-8", "surrogateescape"), queue_id] = queue
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """The queue offset that the next message of each queue gets."""
        return {key: queue.max_offset for key, queue in self._by_name.items()}

    def max_physical_offset(self) -> int:
        """The end of the last record that has a unit in any queue; -1 without one."""
        return max((queue.max_physical_offset for queue in self._by_name.values()), default=-1)

    # -- adding (hot) -------------------------------------------------------------------------

    def append(self, entries: Sequence[DispatchEntry]) -> None:
        """Adds the units of records that lie behind each other in the log, in this order.

        Prepared and rolled back records have none; what a queue has already is ignored. Raises
        DiskFull or StoreError from writing out; the units are in memory then, and repeating the
        call does no harm.
        """
        queues, dirty, pack = self._by_bytes, self._dirty, UNIT.pack
        for topic, queue_id, queue_offset, physical_offset, size, code, _, sys_flag, _ in entries:
            if sys_flag & _TRANSACTION_PREPARED:
                continue
            queue = queues.get((topic, queue_id))
            if queue is None:
                queue = self.get_or_create(topic.decode("utf-8", "surrogateescape"), queue_id)
            end = physical_offset + size
            if queue_offset == queue.max_offset and end > queue.max_physical_offset:
                # ConsumeQueue.append, unrolled: the call costs as much as its work.
                queue.tail += pack(physical_offset, size, code)
                queue.max_offset = queue_offset + 1
                queue.max_physical_offset = end
            else:
                queue.append(queue_offset, physical_offset, size, code)
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
        if entries:
            self.last_store_timestamp = entries[-1][6]
            self._unwritten_units += len(entries)
            if self._unwritten_units * UNIT_BYTES >= UNWRITTEN_BYTES_MAX:
                self.write_out_all()

    # -- writing ------------------------------------------------------------------------------

    def write_out_all(self) -> None:
        """Puts units that are only in memory into the files: one write per queue that has some.

        Raises DiskFull or StoreError; what could not be written stays in memory.
        """
        dirty = self._dirty
        while dirty:
            queue = dirty[-1]
            queue.write_out()
            self._unsynced[queue] = None
            queue.dirty = False
            dirty.pop()
        self._unwritten_units = 0

    def unsynced(self, least_pages: int = 0) -> "UnsyncedQueues":
        """What to sync: files with at least `least_pages` pages of units not on disk; 0 = all.

        Only what is written out. Tell `mark_synced` when it is done.
        """
        if least_pages == 0:
            self.write_out_all()
        taken = UnsyncedQueues(
            store_timestamp=self.last_store_timestamp if least_pages == 0 else None
        )
        least_units = max(1, least_pages * _PAGE_BYTES // UNIT_BYTES)
        for queue in self._unsynced:
            if least_pages and queue.written_offset - queue.synced_offset < least_units:
                continue
            taken.queues.append((queue, queue.written_offset))
            taken.files.paths.extend(queue.unsynced_paths())
        taken.files.directories = set(self._files.new_names)
        return taken

    def mark_synced(self, taken: "UnsyncedQueues") -> None:
        """Notes that what `unsynced` gave is on disk now."""
        for queue, written_offset in taken.queues:
            queue.synced_offset = max(queue.synced_offset, min(written_offset, queue.max_offset))
            if queue.synced_offset == queue.written_offset:
                self._unsynced.pop(queue, None)
        self._files.new_names -= taken.files.directories
        if taken.store_timestamp is not None:
            self.synced_store_timestamp = taken.store_timestamp

    def sync_all(self, least_pages: int = 0) -> None:
        """Brings written units to disk; with 0 pages everything, what is in memory included.

        Raises StoreError when the disk refuses.
        """
        taken = self.unsynced(least_pages)
        sync_files(self._disk, taken.files)
        self.mark_synced(taken)

    # -- start-up, cleaning, closing ----------------------------------------------------------

    def load(self, clean: bool) -> None:
        """Opens every queue below the directory. Raises StoreError (see ConsumeQueue.load)."""
        for topic in self._disk.listdir(self.directory):
            for name in self._disk.listdir(f"{self.directory}/{topic}"):
                if name.isascii() and name.isdigit():
                    self._add(topic, int(name)).load(clean)

    def truncate_behind(self, physical_end: int) -> None:
        """Drops the units of records at or behind the end of the log."""
        for queue in self._by_name.values():
            queue.truncate_behind(physical_end)

    def correct_min_offsets(self, min_physical: int) -> None:
        """Sets every queue's min_offset to its first message that the log still has."""
        for queue in self._by_name.values():
            queue.correct_min_offset(min_physical)

    def delete_before(self, min_physical: int) -> int:
        """Removes files whose records are all gone; returns how many."""
        return sum(queue.delete_before(min_physical) for queue in self._by_name.values())

    def delete_topic(self, topic: str) -> int:
        """Removes a topic's queues, memory and files; returns how many there were."""
        gone = [queue for (name, _), queue in self._by_name.items() if name == topic]
        for queue in gone:
            del self._by_name[topic, queue.queue_id]
            del self._by_bytes[topic.encode("utf-8", "surrogateescape"), queue.queue_id]
            self._unsynced.pop(queue, None)
            queue.remove(self._disk)
        self._dirty[:] = [queue for queue in self._dirty if queue.topic != topic]
        if gone:
            self._disk.remove_tree(f"{self.directory}/{topic}")
            self._disk.sync_directory(self.directory)
        return len(gone)

    def close(self) -> None:
        """Closes the files. Write out and sync before, or the log has to rebuild the rest."""
        self._files.close()


class UnsyncedQueues:
    """What one sync of the queues concerns; `files` is for the thread that does it."""

    def __init__(self, store_timestamp: int | None) -> None:
        self.files = Unsynced()
        self.queues: list[tuple[ConsumeQueue, int]] = []
        self.store_timestamp = store_timestamp
        """Set when everything up to this store timestamp is in `files`."""
