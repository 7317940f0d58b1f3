"""Small files with one line of JSON, then its CRC-32 as 8 hexadecimal digits.

They are written under a temporary name, so that a power cut leaves the old or the new content.
"""

from json import dumps, loads
from typing import Any
from zlib import crc32

from storage.errors import store_error
from storage.files.disk import Disk

ODD_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors from using values of unexpected types: a valid checksum does not prove the writer."""

_TEMPORARY = ".tmp"


def write_checked(disk: Disk, path: str, value: Any) -> None:
    """Replace the file by `value`, durably. Raise StoreError."""
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
    """Return the value; None if the file is missing or invalid."""
    try:
        line, _, crc = disk.read_bytes(path).rstrip(b"\n").rpartition(b"\n")
        return loads(line) if crc == b"%08x" % crc32(line) else None
    except (OSError, RecursionError, ValueError):
        return None
