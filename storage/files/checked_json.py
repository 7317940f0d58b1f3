"""Small files of our own: one line of JSON, and behind it its CRC-32, 8 hexadecimal digits.

Written under a temporary name, so that a power cut leaves the old contents or the new ones.
"""

from json import dumps, loads
from typing import Any
from zlib import crc32

from storage.errors import store_error
from storage.files.disk import Disk

ODD_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the use of values of other kinds raises: a right checksum does not say who wrote them."""

_TEMPORARY = ".tmp"


def write_checked(disk: Disk, path: str, value: Any) -> None:
    """Puts `value` on disk, in place of what was there. Raises StoreError."""
    line = dumps(value).encode()
    directory = path.rpartition("/")[0]
    try:
        disk.make_dirs(directory)
        if disk.exists(path + _TEMPORARY):
            disk.unlink(path + _TEMPORARY)
        file = disk.open(path + _TEMPORARY, create=True)
        try:
            file.pwrite(b"%s\n%08x\n" % (line, crc32(line)), 0)
            file.sync()
        finally:
            file.close()
        disk.rename(path + _TEMPORARY, path)
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot write {path}", error) from error


def read_checked(disk: Disk, path: str) -> Any:
    """The value; None if the file is missing or anything about it is wrong."""
    try:
        line, _, crc = disk.read_bytes(path).rstrip(b"\n").rpartition(b"\n")
        return loads(line) if crc == b"%08x" % crc32(line) else None
    except (OSError, RecursionError, ValueError):
        return None
