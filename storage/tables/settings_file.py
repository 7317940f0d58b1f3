"""A server's settings file as text, read whole and replaced whole.

The file keeps its owner, mode and extended attributes.
"""

from functools import partial

from storage.errors import StoreError, store_error
from storage.files.checked_json import replace_file
from storage.files.disk import Disk


def read_settings(disk: Disk, path: str) -> str:
    """Return the file's text, empty for a missing file. Raise StoreError."""
    try:
        return disk.read_bytes(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise store_error(f"cannot read {path}", error) from error


def save_settings(disk: Disk, path: str, text: str) -> None:
    """Save `text` as the file's content, durably. Raise StoreError and leave the file as it was."""
    replace_file(disk, path, text.encode(), partial(_keep_access, disk))


def _keep_access(disk: Disk, path: str, new: str) -> None:
    if not disk.exists(path):
        return
    try:
        disk.copy_access(path, new)
    except PermissionError as error:
        disk.unlink(new)
        raise StoreError(
            f"cannot save {path}: this process cannot keep the file's owner, because it may not"
            " change owners; make the broker its owner."
        ) from error
