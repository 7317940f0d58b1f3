"""One file of fixed size: written with pwrite, read through a map, named by its first offset.

The name is the absolute offset of the first byte, 20 decimal digits. The file has its full size
from the start; what was never written reads as zeros.
"""

from storage.errors import OffsetError
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
        """Return uncopied bytes, which keep the map alive. Raise OffsetError."""
        if position < 0 or count < 0 or position + count > self.size_bytes:
            raise OffsetError(f"{count} bytes at {position} do not lie in {self.path}")
        return self.view[position : position + count]

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

    A `sparse` file gets no blocks. Otherwise they are allocated, so that no later write finds the
    disk full. `warm` writes zeros through the file once. `durable` syncs its size and its name.
    """
    path = f"{directory}/{file_name(first_offset)}"
    file = disk.open(path, create=True)
    try:
        if sparse:
            file.set_size(size_bytes)
        else:
            file.allocate(size_bytes)
        if warm:
            for position in range(0, size_bytes, _WARM_CHUNK_BYTES):
                file.pwrite(_ZEROS[: min(_WARM_CHUNK_BYTES, size_bytes - position)], position)
        if durable:
            file.sync()
            disk.sync_directory(directory)
    except OSError:
        file.close()
        disk.unlink(path)
        raise
    return MappedFile(file, first_offset, size_bytes)
