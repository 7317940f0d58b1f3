"""All consume queues of a store: `consumequeue/<topic>/<queue id>/`.

Source: store/DefaultMessageStore.java (loadConsumeQueue, recoverConsumeQueue,
recoverTopicQueueTable, findConsumeQueue, FlushConsumeQueueService).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import EXDEV
from sys import maxsize
from zlib import crc32

from protocol.codes import TRANSACTION_PREPARED
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.below import name_fault
from storage.files.disk import Disk
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.consume_queue_ext import ExtUnit
from storage.queues.dispatch_entry import BitMaps, DispatchEntry, EntryRun
from storage.queues.extended_queue import ExtendedQueue
from storage.queues.queue_files import UNIT_BYTES, QueueFiles
from storage.queues.queue_run import QueueRun, check_sizes, read_queue_runs
from storage.queues.queue_units import UnitRun
from storage.queues.stored_units import StoredUnits
from storage.queues.unsynced import UnsyncedQueues, sync_files

UNWRITTEN_UNITS_MAX = (4 << 20) // UNIT_BYTES
"""Maximum units held only in memory, over all queues; 1,024 queues then write 4 KiB each."""
_PAGE_BYTES = 4096
NEW_QUEUE = 32
"""Weight of a queue without a file, which has folders and a file to make: 1 ms."""


class ConsumeQueues:
    """Consume queues by topic and queue id. One owner."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.directory = config.consume_queue_dir
        self.last_store_timestamp = 0
        """Store timestamp of the newest record with a unit, ms."""
        self.synced_store_timestamp = 0
        """Store timestamp in ms up to which all units are synced, for the checkpoint."""
        self.covered_offset = 0
        """Log offset below which every record has its unit, in memory or in files."""
        self.synced_covered_offset = 0
        """Log offset below which all units are synced, for the durable offset of the checkpoint."""
        self.disk = disk
        self.bit_maps: BitMaps | None = None
        """Source of extension bits; used only with enableConsumeQueueExt."""
        self._files = QueueFiles(disk, config.consume_queue_file_bytes)
        self._ext_directory = config.consume_queue_ext_dir
        self._ext_files: QueueFiles | None = None
        if config.enable_consume_queue_ext:
            self._ext_files = QueueFiles(disk, config.consume_queue_ext_file_bytes)
        self._by_name: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._id_counts: dict[str, int] = {}
        self._dirty: list[StoredUnits] = []
        self._unwritten_units = 0
        self._unsynced: dict[StoredUnits, None] = {}

    # -- finding ------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._by_name.get((topic, queue_id))

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message; 0 for a missing queue."""
        queue = self._by_name.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def id_count(self, topic: str) -> int:
        """Return a number above all queue ids that the topic has had in this store."""
        return self._id_counts.get(topic, 0)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create it, empty, if it does not exist.

        Its directory appears with its first written units. Raises StoreError for a topic that
        cannot name a directory.
        """
        queue = self._by_name.get((topic, queue_id))
        if queue is None:
            if name_fault(topic) or queue_id < 0:
                raise StoreError(
                    f"the commit log names queue {queue_id} of topic {topic!r}, which cannot "
                    "name a directory: the record is damaged or forged."
                )
            queue = self._add(topic, queue_id)
        return queue

    def begin_at(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the first queue offset of an empty queue, creating the queue if needed.

        At a file border it begins one offset later. A filler in the first file then shows that no
        earlier file is missing. Raises StoreError for a topic that cannot name a directory.
        """
        queue = self.get_or_create(topic, queue_id)
        queue_offset += queue_offset % queue.file_units == 0
        if queue.is_empty and queue.max_offset < queue_offset and queue.takes(queue_offset):
            queue.begin_at(queue_offset)

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._directory_of(topic, queue_id)
        if self._ext_files is None:
            queue = ConsumeQueue(topic, queue_id, directory, self._files, self._dirty)
        else:
            ext_directory = f"{self._ext_directory}/{topic}/{queue_id}"
            queue = ExtendedQueue(
                topic,
                queue_id,
                directory,
                self._files,
                self._dirty,
                ext_directory,
                self._ext_files,
            )
        self._by_name[topic, queue_id] = queue
        self._id_counts[topic] = max(queue_id + 1, self._id_counts.get(topic, 0))
        self._by_bytes[topic.encode("utf-8", "surrogateescape"), queue_id] = queue
        return queue

    def _directory_of(self, topic: str, queue_id: int) -> str:
        return f"{self.directory}/{topic}/{queue_id}"

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """Return the queue offset of the next message, by queue."""
        return {key: queue.max_offset for key, queue in self._by_name.items()}

    def max_physical_offset(self) -> int:
        """Return the end of the last record with a unit in any queue, or -1."""
        return max((queue.max_physical_offset for queue in self._by_name.values()), default=-1)

    # -- adding (hot) -------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[DispatchEntry],
        odd: list[DispatchEntry] | None = None,
        look: Callable[[ConsumeQueue, DispatchEntry], None] | None = None,
    ) -> None:
        """Append the units of consecutive records of the log.

        Entries that do not continue their queue, or begin one, go to `odd` instead, if it is given.
        So do records that have a queue offset but no unit. Without `odd`, `look` sees such an entry
        and its queue first, and may remove the queue so that it begins again.

        Prepared and rolled-back records have no unit; units that a queue already has are ignored.
        Raises DiskFull or StoreError from writing out. A repeated call is then harmless.
        """
        plain = entries if self._ext_files is None else self._append_extended(entries, odd, look)
        queues, dirty, pack = self._by_bytes, self._dirty, UNIT.pack
        topic, queue_id, queue = b"", -1, None
        for entry in plain:
            queue_offset = entry.queue_offset
            if entry.sys_flag & TRANSACTION_PREPARED:
                if odd is not None and queue_offset:
                    odd.append(entry)
                continue
            if entry.queue_id != queue_id or entry.topic != topic:
                topic, queue_id = entry.topic, entry.queue_id
                queue = queues.get((topic, queue_id))
            if queue is None:
                if odd is not None:
                    odd.append(entry)
                    continue
                queue = self._queue_of(entry)
            offset, size = entry.physical_offset, entry.record_bytes
            end = offset + size
            if queue_offset == queue.max_offset and end > queue.max_physical_offset:
                # ConsumeQueue.append, inlined: the call costs as much as its work.
                queue.tail += pack(offset, size, entry.tags_code)
                queue.max_offset = queue_offset + 1
                queue.max_physical_offset = end
            elif odd is not None:
                if end > queue.max_physical_offset:
                    odd.append(entry)
                continue
            else:
                if look is not None:
                    look(queue, entry)
                    queue = self._queue_of(entry)
                queue.append(queue_offset, offset, size, entry.tags_code)
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
        if entries:
            last = entries[-1]
            self.last_store_timestamp = last.store_timestamp
            end = last.physical_offset + last.record_bytes
            if end > self.covered_offset:
                self.covered_offset = end
            self._unwritten_units += len(entries)
            if self._unwritten_units >= UNWRITTEN_UNITS_MAX:
                self.write_out_all()

    def _queue_of(self, entry: DispatchEntry) -> ConsumeQueue:
        return self.get_or_create(entry.topic.decode("utf-8", "surrogateescape"), entry.queue_id)

    def append_run(self, run: EntryRun) -> bool:
        """Append the units of a batch at once; return False if it does not continue its queue."""
        units = b"".join(map(UNIT.pack, run.offsets, run.sizes, run.codes))
        unit_run = UnitRun(run.topic, run.queue_id, run.queue_offset, units)
        return self.append_runs((unit_run,), len(run.keys), run.end_offset, run.store_timestamp)

    def append_runs(
        self, runs: Sequence[UnitRun], record_count: int, end: int, store_timestamp: int
    ) -> bool:
        """Append many units at once, if each run continues its queue; else return False.

        Nothing is appended then. The last record ends at `end` and has `store_timestamp`. Raises
        like `append`.
        """
        continued = []
        for run in runs:
            queue = self._by_bytes.get((run.topic, run.queue_id))
            if queue is None or not queue.is_continued_by(run):
                return False
            continued.append(queue)
        for queue, run in zip(continued, runs, strict=True):
            queue.append_run(run)
        self.last_store_timestamp = store_timestamp
        self.covered_offset = max(self.covered_offset, end)
        self._unwritten_units += record_count
        if self._unwritten_units >= UNWRITTEN_UNITS_MAX:
            self.write_out_all()
        return True

    def _append_extended(
        self,
        entries: Sequence[DispatchEntry],
        odd: list[DispatchEntry] | None,
        look: Callable[[ConsumeQueue, DispatchEntry], None] | None,
    ) -> Sequence[DispatchEntry]:
        """Append to queues with extensions; return no remaining entries."""
        bit_maps = self.bit_maps
        for entry in entries:
            queue_offset, end = entry.queue_offset, entry.end_offset
            if entry.sys_flag & TRANSACTION_PREPARED:
                if odd is not None and queue_offset:
                    odd.append(entry)
                continue
            queue = self._by_bytes.get((entry.topic, entry.queue_id))
            if odd is not None and (
                queue is None
                or queue_offset != queue.max_offset
                or end <= queue.max_physical_offset
            ):
                if queue is None or end > queue.max_physical_offset:
                    odd.append(entry)
                continue
            if look is not None and queue is not None and queue_offset != queue.max_offset:
                look(queue, entry)
                queue = None
            queue = queue or self._queue_of(entry)
            assert isinstance(queue, ExtendedQueue)
            bit_map = None if bit_maps is None else bit_maps(entry)
            known = ExtUnit(entry.tags_code, entry.store_timestamp, bit_map)
            queue.extend(queue_offset, entry.physical_offset, entry.record_bytes, known)
            queue.note_unwritten()
        return ()

    # -- writing ------------------------------------------------------------------------------

    def write_out_all(self) -> None:
        """Write the units that are only in memory to the files, one write per queue.

        Raises DiskFull or StoreError; unwritten units stay in memory.
        """
        self.write_out_some(len(self._dirty), maxsize)

    def write_out_some(self, count: int, weight: int) -> int:
        """Write out some of the `count` queues that have waited longest; return how many.

        Their weights, NEW_QUEUE for a new one, end it at `weight`. Raises like `write_out_all`.
        """
        dirty, done = self._dirty, 0
        try:
            for queue in dirty[:count]:
                if weight <= 0:
                    break
                weight -= NEW_QUEUE if queue.has_no_file else 1
                queue.write_out()
                self._unsynced[queue] = None
                queue.dirty = False
                done += 1
        finally:
            del dirty[:done]
        if not dirty:
            self._unwritten_units = 0
        return done

    @property
    def unwritten_count(self) -> int:
        """Number of queues with units that are only in memory."""
        return len(self._dirty)

    def unsynced(self, least_pages: int = 0) -> UnsyncedQueues:
        """Return what to sync: files with at least `least_pages` unsynced pages; 0 means all.

        Only written units count. Call `mark_synced` after the sync.
        """
        if least_pages == 0:
            self.write_out_all()
        taken = UnsyncedQueues(
            store_timestamp=self.last_store_timestamp if least_pages == 0 else None,
            covered_offset=self.covered_offset if least_pages == 0 else 0,
        )
        if least_pages == 0:
            taken.names = self.names()
        least_units = max(1, least_pages * _PAGE_BYTES // UNIT_BYTES)
        for queue in self._unsynced:
            if least_pages and queue.written_offset - queue.synced_offset < least_units:
                continue
            taken.queues.append((queue, queue.written_offset))
            taken.files.paths.extend(queue.unsynced_paths())
        taken.files.directories = self._files.names_to_sync()
        if self._ext_files is not None:
            taken.files.directories |= self._ext_files.names_to_sync()
        return taken

    def mark_synced(self, taken: UnsyncedQueues) -> None:
        """Record that a sync of `taken` has succeeded."""
        for queue, written_offset in taken.queues:
            queue.mark_synced(written_offset)
            if queue.synced_offset == queue.written_offset:
                self._unsynced.pop(queue, None)
        self._files.names_synced(taken.files.directories)
        if self._ext_files is not None:
            self._ext_files.names_synced(taken.files.directories)
        if taken.store_timestamp is not None:
            self.synced_store_timestamp = taken.store_timestamp
            self.synced_covered_offset = max(self.synced_covered_offset, taken.covered_offset)

    def sync_all(self) -> None:
        """Sync every unit. Raises StoreError when the disk fails."""
        taken = self.unsynced()
        sync_files(self.disk, taken.files)
        self.mark_synced(taken)

    # -- start-up, cleaning, closing ----------------------------------------------------------

    def load(self, min_physical: int = -1) -> None:
        """Open every queue below the directory, like ConsumeQueue.load; change no file.

        `min_physical` is the log's first offset, or -1 if unknown. Raises StoreError when no file
        has the configured size. `misfits` reports the other faults.
        """
        for key, run in self._runs(min_physical):
            self._add(*key).load(min_physical, run)

    def _runs(self, min_physical: int) -> list[tuple[tuple[str, int], QueueRun]]:
        """Return the files of every queue. Raises StoreError like `load`."""
        file_bytes = self._files.file_bytes
        runs = read_queue_runs(self.disk, self.directory, file_bytes, min_physical)
        sizes = [size for _, run in runs for size in run.sizes]
        check_sizes(sizes, file_bytes, self.directory, "mappedFileSizeConsumeQueue")
        if self._ext_files is not None:
            ext_bytes = self._ext_files.file_bytes
            found = read_queue_runs(self.disk, self._ext_directory, ext_bytes, 0)
            sizes = [size for _, run in found for size in run.sizes]
            check_sizes(sizes, ext_bytes, self._ext_directory, "mappedFileSizeConsumeQueueExt")
        return runs

    def misfits(self) -> dict[tuple[str, int], str]:
        """Return the queues with incomplete files and the reasons; they need a rebuild."""
        return {key: queue.misfit for key, queue in self._by_name.items() if queue.misfit}

    def mend(self) -> None:
        """Delete what `load` could not use, once the next start would detect a crash.

        Raises OSError.
        """
        for queue in self._by_name.values():
            queue.mend()

    def names(self) -> list[tuple[str, int]]:
        """Return the queues that have units."""
        return [key for key, queue in self._by_name.items() if not queue.is_empty]

    def known(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Return min, max and max physical offset of each queue that has begun, for a clean stop.

        A queue without units has no physical offset: -1.
        """
        return {
            key: (queue.min_offset, queue.max_offset, queue.max_physical_offset)
            for key, queue in self._by_name.items()
            if queue.max_offset
        }

    def load_known(
        self, known: Mapping[tuple[str, int], tuple[int, int, int]]
    ) -> list[tuple[str, int]]:
        """Open every queue as a clean stop recorded it; return the queues with other files."""
        lost = []
        found = set()
        for key, run in self._runs(-1):
            found.add(key)
            queue = self._add(*key)
            if key not in known:
                queue.load(-1, run)
            elif not queue.load_known(*known[key], run):
                queue.load(-1, run)
                lost.append(key)
        for key in known.keys() - found:
            if known[key][2] < 0:
                self._add(*key).begin_at(known[key][1])
            else:
                lost.append(key)
        return lost

    def truncate_behind(self, physical_end: int) -> None:
        """Drop the units of records at or behind the end of the log."""
        for queue in self._by_name.values():
            queue.truncate_behind(physical_end)

    def correct_min_offsets(self, min_physical: int) -> None:
        """Set every min offset to the first message that the log retains.

        Without such a message, it becomes the max offset.
        """
        for queue in self._by_name.values():
            queue.correct_min_offset(min_physical)
            if 0 <= queue.max_physical_offset <= min_physical:
                queue.min_offset = queue.max_offset

    def take_out(self, queue: ConsumeQueue, into: str) -> set[str]:
        """Remove a queue and move its files into the directory `into`, for later deletion.

        A queue of the same name may begin at once. Return the directories to sync first; otherwise
        a power failure may restore the old queue. Raises OSError.
        """
        disk, topic_directory = self.disk, f"{self.directory}/{queue.topic}"
        queue.forget_files()
        for directory in queue.directories:
            own = f"{crc32(directory.encode('utf-8', 'surrogateescape')):08x}"
            for name in disk.listdir(directory):
                path = f"{directory}/{name}"
                try:
                    disk.rename(path, f"{into}/{own}-{name}")
                except OSError as error:
                    if error.errno != EXDEV:
                        raise
                    disk.unlink(path)
            disk.remove_tree(directory)
        if not disk.listdir(topic_directory):
            disk.remove_tree(topic_directory)
        self._by_name.pop((queue.topic, queue.queue_id), None)
        self._by_bytes.pop((queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id), None)
        self._unsynced.pop(queue, None)
        self._dirty[:] = [each for each in self._dirty if each is not queue]
        return {into, topic_directory, self.directory}

    def close(self) -> None:
        """Close the files. Units that are not written and synced must be rebuilt from the log."""
        self._files.close()
        if self._ext_files is not None:
            self._ext_files.close()
