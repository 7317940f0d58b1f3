"""Cache of open consume queue files, shared by all queues of a store.

A store has thousands of queues and rarely uses most of their files. Descriptors and maps therefore
belong to this cache, which keeps the last used files open.

The list of consume queues is saved with the durable offset of the checkpoint.
`<root>/troupemq/queues.json` maps each topic to the ids of its queues with units. After a crash,
the log is read only from the durable offset, so this list is what reveals a missing directory.
"""

from collections.abc import Callable, Iterable
from errno import EMFILE, ENFILE
from typing import TypeVar

from storage.config import StoreConfig
from storage.files.below import name_fault
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import MappedFile, create_mapped_file, first_offset_of
from storage.queues.queue_units import UNIT_BYTES

__all__ = ["OPEN_FILES_MAX", "UNIT_BYTES", "QueueFiles"]

OPEN_FILES_MAX = 192
"""Maximum open files, of up to two descriptors each; sockets need most of the usual 1,024."""

_PAGE_BYTES = 4096

T = TypeVar("T")


class QueueFiles:
    """Queue files by path: opened, created and removed here. One owner."""

    def __init__(self, disk: Disk, file_bytes: int, open_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self.file_bytes = file_bytes
        self.new_names: set[str] = set()
        """Directories with new names that may be unsynced."""
        self._names_in_sync: set[str] = set()
        self._open_max = open_max
        self._open: dict[str, MappedFile] = {}

    def names_to_sync(self) -> set[str]:
        """Return the directories to sync before `names_synced`; later names are not included."""
        self._names_in_sync |= self.new_names
        self.new_names = set()
        return set(self._names_in_sync)

    def names_synced(self, directories: set[str]) -> None:
        """Record that `directories` of the last `names_to_sync` are synced."""
        self._names_in_sync -= directories

    def create(self, directory: str, path: str, *, durable_names: bool) -> None:
        """Create a sparse file.

        With `durable_names`, the earlier names of the directory are synced first, so that a power
        failure leaves no gap in the run. Raises OSError and leaves nothing behind.
        """
        if durable_names:
            self._with_descriptor(lambda: self.disk.sync_directory(directory))
        elif not self.disk.is_dir(directory):
            topic_directory = directory.rpartition("/")[0]
            root = topic_directory.rpartition("/")[0]
            if root:
                self.disk.make_dirs(root)
            # Not synced at once: a thousand new queues would block the caller for seconds.
            self.disk.make_dirs(directory, durable=False)
            self.new_names |= {topic_directory, root}
        first_offset = first_offset_of(path.rpartition("/")[2])
        assert first_offset is not None
        file = self._with_descriptor(
            lambda: create_mapped_file(
                self.disk, directory, first_offset, self.file_bytes, sparse=True, durable=False
            )
        )
        self.new_names.add(directory)
        self._keep(path, file)

    def write(self, path: str, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write `data` at a position of the file. Raises OSError."""
        self._get(path).write(data, position)

    def read(self, path: str, count: int, position: int) -> bytes:
        return self._get(path).file.pread(count, position)

    def file(self, path: str) -> DiskFile:
        return self._get(path).file

    def view(self, path: str) -> memoryview:
        """Return the whole file as a read-only map, created by the first call."""
        file = self._get(path)
        if not file.is_mapped:
            del self._open[path]  # it must stay open meanwhile
            try:
                self._with_descriptor(lambda: file.view)
            finally:
                self._keep(path, file)
        return file.view

    def zero_from(self, path: str, position: int) -> None:
        """Zero the non-zero bytes from `position` on, durably."""
        file = self._get(path)
        # Only the rest of the page: file systems store whole pages as data, and more would read a
        # megabyte of the hole behind it (3 ms per queue).
        page_end = min(-(-position // _PAGE_BYTES) * _PAGE_BYTES, self.file_bytes)
        is_stale = any(file.file.pread(page_end - position, position))
        if is_stale:
            file.write(bytes(page_end - position), position)
        if file.zero_from(page_end) or is_stale:
            file.sync()

    def remove(self, path: str) -> None:
        """Delete the file or directory at `path`; existing maps of it stay valid."""
        self.forget(path)
        if self.disk.is_dir(path):
            self.disk.remove_tree(path)
        else:
            self.disk.unlink(path)
        self.new_names.add(path.rpartition("/")[0])

    def forget(self, path: str) -> None:
        """Close a file before another component deletes it."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def _get(self, path: str) -> MappedFile:
        opened = self._open.pop(path, None)
        if opened is None:
            first_offset = first_offset_of(path.rpartition("/")[2])
            assert first_offset is not None
            found = self._with_descriptor(lambda: self.disk.open(path))
            opened = MappedFile(found, first_offset, self.file_bytes)
            self._keep(path, opened)
        else:
            self._open[path] = opened  # move to the end: last used
        return opened

    def _with_descriptor(self, work: Callable[[], T]) -> T:
        """Do what takes a descriptor; without a free one, close half of the files and repeat."""
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE) or not self._open:
                    raise
            for path in [*self._open][: (len(self._open) + 1) // 2]:
                self.forget(path)

    def _keep(self, path: str, file: MappedFile) -> None:
        while len(self._open) >= self._open_max:
            self._open.pop(next(iter(self._open))).close()
        self._open[path] = file


QueueName = tuple[str, int]


class QueueList:
    """List of queues in its file. One thread at a time."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._path = config.queue_list_path
        self._disk = disk
        self._saved: frozenset[QueueName] | None = None

    def load(self) -> frozenset[QueueName]:
        """Return the stored names; none if the file is missing, damaged or has an invalid topic."""
        found = read_checked(self._disk, self._path)
        try:
            names = frozenset((topic, int(each)) for topic in found for each in found[topic])
            return frozenset() if any(name_fault(topic) for topic, _ in names) else names
        except ODD_VALUES:
            return frozenset()

    def save(self, names: Iterable[QueueName]) -> None:
        """Save the list durably if it has changed. Raises StoreError."""
        wanted = frozenset(names)
        if wanted == self._saved:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, queue_id in sorted(wanted):
            by_topic.setdefault(topic, []).append(queue_id)
        write_checked(self._disk, self._path, by_topic)
        self._saved = wanted
