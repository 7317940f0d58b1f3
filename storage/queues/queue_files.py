"""The files of all consume queues of a store: few of them open at a time, the rest just names.

A store has thousands of queues and hardly uses most of their files, so descriptors and maps belong
to this cache and not to a queue. What was used last stays open.
"""

from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import MappedFile, create_mapped_file, first_offset_of
from storage.queues.queue_units import UNIT_BYTES

__all__ = ["OPEN_FILES_MAX", "UNIT_BYTES", "QueueFiles"]

OPEN_FILES_MAX = 192
"""Two descriptors each once mapped; most of the usual 1,024 must be left to sockets."""

_PAGE_BYTES = 4096


class QueueFiles:
    """Opens, makes and removes queue files by path. One owner."""

    def __init__(self, disk: Disk, file_bytes: int, open_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self.file_bytes = file_bytes
        self.new_names: set[str] = set()
        """Directories with names that may not be on disk yet."""
        self._names_in_sync: set[str] = set()
        self._open_max = open_max
        self._open: dict[str, MappedFile] = {}

    def names_to_sync(self) -> set[str]:
        """Directories for somebody to sync, who tells `names_synced`; a later name is not in it."""
        self._names_in_sync |= self.new_names
        self.new_names = set()
        return set(self._names_in_sync)

    def names_synced(self, directories: set[str]) -> None:
        """The names that were in these directories at `names_to_sync` are on disk."""
        self._names_in_sync -= directories

    def create(self, directory: str, path: str, *, durable_names: bool) -> None:
        """Makes a sparse file. `durable_names`: the names before it are on disk when it appears,

        so that a power cut leaves no gap in the run. Raises OSError and leaves nothing behind.
        """
        if durable_names:
            self.disk.sync_directory(directory)
        elif not self.disk.is_dir(directory):
            topic_directory = directory.rpartition("/")[0]
            root = topic_directory.rpartition("/")[0]
            if root:
                self.disk.make_dirs(root)
            # Not at once: a thousand new queues would stop whoever writes for seconds.
            self.disk.make_dirs(directory, durable=False)
            self.new_names |= {topic_directory, root}
        first_offset = first_offset_of(path.rpartition("/")[2])
        assert first_offset is not None
        file = create_mapped_file(
            self.disk, directory, first_offset, self.file_bytes, sparse=True, durable=False
        )
        self.new_names.add(directory)
        self._keep(path, file)

    def write(self, path: str, data: bytes | bytearray | memoryview, position: int) -> None:
        """Raises OSError."""
        self._get(path).write(data, position)

    def read(self, path: str, count: int, position: int) -> bytes:
        """Bytes of a file, copied."""
        return self._get(path).file.pread(count, position)

    def file(self, path: str) -> DiskFile:
        """The open file itself."""
        return self._get(path).file

    def view(self, path: str) -> memoryview:
        """The whole file as a read-only map, made at the first call."""
        return self._get(path).view

    def zero_from(self, path: str, position: int) -> None:
        """Zeros what is not zero from `position` on, durably."""
        file = self._get(path)
        # The rest of the page alone: the file system takes a page for data as a whole, and a
        # megabyte of the hole behind it would be read (3 ms a queue).
        page_end = min(-(-position // _PAGE_BYTES) * _PAGE_BYTES, self.file_bytes)
        is_stale = any(file.file.pread(page_end - position, position))
        if is_stale:
            file.write(bytes(page_end - position), position)
        if file.zero_from(page_end) or is_stale:
            file.sync()

    def remove(self, path: str) -> None:
        """Deletes a file, or what has its name; maps of it stay valid while somebody holds them."""
        self.forget(path)
        if self.disk.is_dir(path):
            self.disk.remove_tree(path)
        else:
            self.disk.unlink(path)
        self.new_names.add(path.rpartition("/")[0])

    def forget(self, path: str) -> None:
        """Closes a file that somebody else deletes."""
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
            opened = MappedFile(self.disk.open(path), first_offset, self.file_bytes)
            self._keep(path, opened)
        else:
            self._open[path] = opened  # now the one used last
        return opened

    def _keep(self, path: str, file: MappedFile) -> None:
        while len(self._open) >= self._open_max:
            self._open.pop(next(iter(self._open))).close()
        self._open[path] = file
