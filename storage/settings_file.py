"""A server's settings file as text: read whole, replaced whole.

Saving writes NAME.new, syncs it, renames it over NAME and syncs the directory: a power cut leaves
the old settings or the new ones. The file keeps its owner, mode and extended attributes; a link to
it stays a link.
"""

from storage.disk import Disk
from storage.errors import StoreError, store_error


def read_settings(disk: Disk, path: str) -> str:
    """The file's text; empty where there is none. Raises StoreError."""
    try:
        return disk.read_bytes(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise store_error(f"cannot read {path}", error) from error


def save_settings(disk: Disk, path: str, text: str) -> None:
    """Makes `text` the file's content, durably. Raises StoreError; the file is as it was then."""
    path = disk.real_path(path)
    directory = path.rpartition("/")[0] or "/"
    new = f"{path}.new"
    try:
        disk.make_dirs(directory)
        file = disk.open(new, create=True)
        try:
            file.set_size(0)
            if disk.exists(path):
                _keep_access(disk, path, new)  # before there is anything to read in it
            file.pwrite(text.encode(), 0)
            file.sync()
        finally:
            file.close()
        disk.rename(new, path)
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot save {path}", error) from error


def _keep_access(disk: Disk, path: str, new: str) -> None:
    try:
        disk.copy_access(path, new)
    except PermissionError as error:
        disk.unlink(new)
        raise StoreError(
            f"cannot save {path}: it would not stay the file of its owner, for this process may not"
            " give files away; make it the broker's own."
        ) from error
