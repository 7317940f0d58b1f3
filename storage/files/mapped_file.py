"""Files of one fixed size, written with pwrite and read through maps: one, and a run of them.

A file's name is the absolute offset of its first byte, 20 decimal digits. It has its full size
from the start; what was never written reads as zeros. File n of a run that begins at offset B holds
the bytes from B + n * size to B + (n + 1) * size.
"""

from collections.abc import Iterator
from itertools import pairwise

from storage.errors import OffsetError, StoreError
from storage.files.disk import Disk, DiskFile

NAME_DIGITS = 20
_ZEROS = bytes(1 << 20)
_WARM_CHUNK_BYTES = 1 << 20


def file_name(first_offset: int) -> str:
    """Return the name of the file that begins at this offset."""
    return f"{first_offset:0{NAME_DIGITS}d}"


def first_offset_of(name: str) -> int | None:
    """Return the offset in a file's name; None for a name of another form."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


class MappedFile:
    """One file between `first_offset` and `end_offset` of something longer.

    Positions count from the file's first byte. The file's size must not be changed from outside.
    """

    __slots__ = ("_view", "end_offset", "file", "first_offset", "size_bytes")

    def __init__(self, file: DiskFile, first_offset: int, size_bytes: int) -> None:
        self.file = file
        self.first_offset = first_offset
        self.size_bytes = size_bytes
        self.end_offset = first_offset + size_bytes
        self._view: memoryview | None = None

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def view(self) -> memoryview:
        """Read-only map of all bytes, created at the first call; shows later writes."""
        view = self._view
        if view is None:
            view = self._view = self.file.view()
        return view

    @property
    def is_mapped(self) -> bool:
        """Whether a reader may hold a view."""
        return self._view is not None

    def slice(self, position: int, count: int) -> memoryview:
        """Return uncopied bytes, which keep the map alive. Raise OffsetError.

        Without a descriptor or memory for the map, return a copy.
        """
        if position < 0 or count < 0 or position + count > self.size_bytes:
            raise OffsetError(f"{count} bytes at {position} do not lie in {self.path}")
        try:
            view = self.view
        except OSError:
            return memoryview(self.file.pread(count, position))
        return view[position : position + count]

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write `data` at `position`; raise OSError, and OffsetError past the file's end."""
        if position < 0 or position + len(data) > self.size_bytes:
            raise OffsetError(f"{len(data)} bytes at {position} do not fit into {self.path}")
        self.file.pwrite(data, position)

    def zero_from(self, position: int) -> int:
        """Overwrite everything from `position` on with zeros; return the number of changed bytes.

        Bytes that are zeros already are left alone, so that holes stay holes.
        """
        zeroed = 0
        while position < self.size_bytes:
            start = self.file.data_after(position)
            if start is None:
                break
            data = self.file.pread(len(_ZEROS), start)
            if not data:
                break
            if data != _ZEROS[: len(data)]:  # 50 µs a chunk; stripping alone takes 3 ms
                used = len(data.rstrip(b"\0"))
                self.file.pwrite(_ZEROS[:used], start)
                zeroed += used
            position = start + len(data)
        return zeroed

    def is_zero_from(self, position: int) -> bool:
        while position < self.size_bytes:
            start = self.file.data_after(position)
            if start is None:
                return True
            data = self.file.pread(len(_ZEROS), start)
            if not data:
                return True
            if data != _ZEROS[: len(data)]:
                return False
            position = start + len(data)
        return True

    def sync(self) -> None:
        """Bring everything written to disk; a plain system call for any thread."""
        self.file.sync()

    def close(self) -> None:
        """Close the descriptor and drop the map; existing views stay valid."""
        self._view = None
        self.file.close()


def create_mapped_file(
    disk: Disk,
    directory: str,
    first_offset: int,
    size_bytes: int,
    *,
    sparse: bool,
    warm: bool = False,
    durable: bool = True,
) -> MappedFile:
    """Create a file at its full size; on failure, raise OSError and leave no file.

    A `sparse` file gets no blocks. Otherwise they are allocated, and the file is mapped, so that no
    later write finds the disk full, and no later read lacks a descriptor. `warm` writes zeros
    through the file once. `durable` syncs its size and its name.
    """
    path = f"{directory}/{file_name(first_offset)}"
    file = disk.open(path, create=True)
    mapped = MappedFile(file, first_offset, size_bytes)
    try:
        if sparse:
            file.set_size(size_bytes)
        else:
            file.allocate(size_bytes)
            _ = mapped.view
        if warm:
            for position in range(0, size_bytes, _WARM_CHUNK_BYTES):
                file.pwrite(_ZEROS[: min(_WARM_CHUNK_BYTES, size_bytes - position)], position)
        if durable:
            file.sync()
            disk.sync_directory(directory)
    except OSError:
        mapped.close()
        disk.unlink(path)
        raise
    return mapped


def wrong_size(path: str, size: int, size_key: str, file_bytes: int) -> StoreError:
    """Return the error for a file whose size is not that of the setting `size_key`."""
    return StoreError(
        f"{path} has {size} bytes, but {size_key} is {file_bytes}: "
        f"set {size_key} to the size of the files that are there."
    )


class MappedFileQueue:
    """The files of one directory. One owner changes it; other threads may read `files`."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int, size_key: str) -> None:
        """Create an unloaded run; errors about a wrong file size name the setting `size_key`."""
        self.disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: tuple[MappedFile, ...] = ()
        """In order of offset, without gaps. Replaced as a whole, so a reader's copy stays valid."""
        self._size_key = size_key

    def load(self) -> list[str]:
        """Open the files in the directory; return the paths that were removed.

        A crash during the creation of the last file can leave it too short. If it has only zeros,
        it was never written to and is removed. Any other wrong size raises StoreError, and so does
        a missing file. Names that are not 20 digits are ignored.
        """
        names = [
            name for name in self.disk.listdir(self.directory) if first_offset_of(name) is not None
        ]
        loaded: list[MappedFile] = []
        removed: list[str] = []
        try:
            for name in names:
                path = f"{self.directory}/{name}"
                file = self.disk.open(path)
                size = file.size()
                mapped = MappedFile(file, int(name), size)
                loaded.append(mapped)
                if size == self.file_bytes:
                    continue
                if name == names[-1] and size < self.file_bytes and mapped.is_zero_from(0):
                    loaded.pop().close()
                    self.disk.unlink(path)
                    self.disk.sync_directory(self.directory)
                    removed.append(path)
                    continue
                raise wrong_size(path, size, self._size_key, self.file_bytes)
            self._check_gaps(loaded)
        except BaseException:
            for mapped in loaded:
                mapped.close()
            raise
        self.files = tuple(loaded)
        return removed

    def _check_gaps(self, files: list[MappedFile]) -> None:
        for before, after in pairwise(files):
            if after.first_offset != before.end_offset:
                missing = f"{self.directory}/{file_name(before.end_offset)}"
                raise StoreError(
                    f"{missing} is missing between {before.path} and {after.path}: "
                    "restore it, or move the files before it away."
                )

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the first file; 0 without files."""
        files = self.files
        return files[0].first_offset if files else 0

    @property
    def capacity_end(self) -> int:
        """End of the last file; 0 without files."""
        files = self.files
        return files[-1].end_offset if files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file with the byte at `offset`, or None."""
        files = self.files
        if not files:
            return None
        number = (offset - files[0].first_offset) // self.file_bytes
        return files[number] if 0 <= number < len(files) else None

    def slice(self, offset: int, count: int) -> memoryview:
        """Return `count` bytes at `offset` of one file, uncopied; raise OffsetError."""
        file = self.find(offset)
        if file is None:
            raise OffsetError(f"no file of {self.directory} holds offset {offset}")
        return file.slice(offset - file.first_offset, count)

    def spanning(self, start: int, end: int) -> Iterator[MappedFile]:
        """Yield the files with bytes of [start, end), in order."""
        for file in self.files:
            if file.first_offset < end and file.end_offset > start:
                yield file

    def add(self, file: MappedFile) -> None:
        """Append a file that another component has created.

        Raise OffsetError if it does not begin where the last one ends.
        """
        files = self.files
        if files and file.first_offset != files[-1].end_offset:
            raise OffsetError(f"{file.path} does not begin at {files[-1].end_offset}")
        self.files = (*files, file)

    def remove_from(self, offset: int) -> list[str]:
        """Delete the files that begin at or behind `offset`; return their paths.

        Delete the last one first: a power cut may undo some deletions, but never leaves a hole.
        """
        gone = [file for file in self.files if file.first_offset >= offset]
        self.files = self.files[: len(self.files) - len(gone)]
        for file in reversed(gone):
            self.disk.unlink(file.path)
            self.disk.sync_directory(self.directory)
            file.close()
        return [file.path for file in gone]

    def drop_below(self, offset: int) -> list[MappedFile]:
        """Take the files that end at or before `offset`, except the last, out of the run.

        They stay open and on disk, because they may have readers and because deletion takes time.
        """
        gone = [file for file in self.files[:-1] if file.end_offset <= offset]
        self.files = self.files[len(gone) :]
        return gone

    def sync(self) -> None:
        for file in self.files:
            file.sync()

    def close(self) -> None:
        """Close all files; existing views stay valid."""
        files, self.files = self.files, ()
        for file in files:
            file.close()
