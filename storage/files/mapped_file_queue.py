"""A run of mapped files of one size, addressed by one absolute offset.

File n of a run that begins at offset B holds the bytes from B + n * size to B + (n + 1) * size.
"""

from collections.abc import Iterator
from itertools import pairwise

from storage.errors import OffsetError, StoreError
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile, file_name, first_offset_of


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
                raise StoreError(
                    f"{path} has {size} bytes, but {self._size_key} is {self.file_bytes}: "
                    f"set {self._size_key} to the size of the files that are there."
                )
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
