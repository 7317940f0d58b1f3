"""The redo log of the transaction table: the commit log offset that the table covers on disk.

`<root>/transaction/redolog/covered_offset`, all integers big-endian:

    offset  size  type  field
    0       8     bytes magic              "TRPTXN01"
    8       8     i64   covered_offset     every record that begins below it is in the table
    16      8     i64   last_offset        the last of these records; -1 if there was none
    24      8     i64   last_timestamp     its store timestamp, ms, which identifies the log
    32      8     i64   end_number         units below it are in the table's files
    40      8     i64   settled_before     units below it are settled for good
    48      4     u32   crc                CRC-32 of the bytes above

It is written after the table was synced, so replaying the log from there completes the table.
"""

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from storage.errors import store_error
from storage.files.disk import Disk

_MAGIC: Final = b"TRPTXN01"
_LAYOUT: Final = Struct(
    ">8s"  # magic
    "q"  # covered_offset
    "q"  # last_offset
    "q"  # last_timestamp, ms
    "q"  # end_number
    "q"  # settled_before
)
_CRC: Final = Struct(">I")
assert _LAYOUT.size == 48

NO_REDO_LOG: Final = "its redo log is missing"
"""Reason for a rebuild if the file is missing."""


class Covered(NamedTuple):
    """Content of the file."""

    offset: int
    last_offset: int = -1
    last_timestamp: int = 0
    end_number: int = 0
    settled_before: int = 0


class TransactionRedoLog:
    """The file. Any one thread may save; the owner of the table loads and removes."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._directory = f"{root}/transaction/redolog"
        self.path = f"{self._directory}/covered_offset"

    def load(self) -> tuple[Covered | None, str]:
        """Return the last saved content, or None and the reason for a rebuild."""
        try:
            data = self._disk.read_bytes(self.path)
        except FileNotFoundError:
            return None, NO_REDO_LOG
        except OSError as error:
            return None, f"{self.path} cannot be read ({error.strerror})"
        try:
            magic, *fields = _LAYOUT.unpack_from(data)
            (crc,) = _CRC.unpack_from(data, _LAYOUT.size)
        except StructError:
            return None, f"{self.path} is cut off"
        if magic != _MAGIC or crc != crc32(data[: _LAYOUT.size]):
            return None, f"{self.path} is damaged"
        return Covered(*fields), ""

    def save(self, covered: Covered) -> None:
        """Write the content to disk. Blocks. Raise StoreError."""
        data = _LAYOUT.pack(_MAGIC, *covered)
        try:
            is_new = not self._disk.exists(self.path)
            if is_new:
                self._disk.make_dirs(self._directory)
            file = self._disk.open(self.path, create=True)
            try:
                file.pwrite(data + _CRC.pack(crc32(data)), 0)
                file.sync()
            finally:
                file.close()
            if is_new:  # the folders above too: the table may have made them, not durably
                folder = self._directory.rpartition("/")[0]
                for directory in (self._directory, folder, folder.rpartition("/")[0] or "/"):
                    self._disk.sync_directory(directory)
        except OSError as error:
            raise store_error("cannot write the transaction table's offset", error) from error

    def remove(self) -> None:
        """Delete the file durably, so that a start rebuilds the table. Raise OSError."""
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)
            self._disk.sync_directory(self._directory)
