"""Small files that are replaced as a whole: NAME.new is written, synced and renamed over NAME.

A power cut leaves the old or the new content. A link to the file stays a link. Files of our own
have one line of JSON, then its CRC-32 as 8 hexadecimal digits.
"""

from collections.abc import Callable
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


def replace_file(
    disk: Disk, path: str, data: bytes, set_access: Callable[[str, str], None]
) -> None:
    """Replace the file's content by `data`, durably. Raise StoreError and leave the file as it was.

    `set_access(path, new)` sets the access to the new file while it is still empty.
    """
    path = disk.real_path(path)
    directory = path.rpartition("/")[0] or "/"
    new = f"{path}.new"
    try:
        disk.make_dirs(directory)
        file = disk.open(new, create=True)
        try:
            file.set_size(0)
            set_access(path, new)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        disk.rename(new, path)
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot save {path}", error) from error
