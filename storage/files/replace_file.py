"""Replacement of a small file: NAME.new is written, synced and renamed over NAME.

A power cut leaves the old or the new content. A link to the file stays a link.
"""

from collections.abc import Callable

from storage.errors import store_error
from storage.files.disk import Disk


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
