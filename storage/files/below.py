"""Safe paths from names in files, requests and archives: they never leave their folder."""

from collections.abc import Callable

from storage.errors import StoreError

NAME_BYTES_MAX = 255
"""Longest name in a directory on Linux."""


class OutsideFolder(StoreError):
    """A name that would lead out of its folder, or is invalid in one; the text has the name."""


def name_fault(name: str) -> str:
    """Return why this cannot be the name of a file or folder; empty if it can."""
    if not name:
        return "a name is empty"
    if name in (".", "..") or "/" in name or "\0" in name:
        return f"{name!r} is not the name of a file"
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # JSON may hold half a character
        return f"{name[:40]!r} is not the name of a file"
    if size > NAME_BYTES_MAX:
        return f"{name[:40]!r}… is longer than {NAME_BYTES_MAX} bytes"
    return ""


def below(folder: str, *names: str, real_path: Callable[[str], str] | None = None) -> str:
    """Return the path of `names`, one below the other, in `folder`. Raise OutsideFolder.

    With `real_path` (`Disk.real_path`), refuse a link that leads out of the folder, too.
    """
    for name in names:
        if fault := name_fault(name):
            raise OutsideFolder(f"a path below {folder} cannot be made: {fault}")
    path = "/".join((folder, *names))
    if real_path is not None:
        real = real_path(folder)
        if not f"{real_path(path)}/".startswith(f"{real.rstrip('/')}/"):
            raise OutsideFolder(f"{path} is a link that leads out of {folder}")
    return path
