"""A disk without changes, for tools that read a store through the store's own classes."""

import errno
import os

from storage.files.disk import Disk, DiskFile


class ReadOnlyDisk:
    """Read-only view of another disk; files are opened for reading.

    Creating or moving a file raises OSError; other changes are ignored.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        if create and not self._disk.exists(path):
            raise _refused(path)
        return self._disk.open(path, read_only=True)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def is_dir(self, path: str) -> bool:
        return self._disk.is_dir(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """Ignore the request."""

    def rename(self, source: str, target: str) -> None:
        raise _refused(source)

    def unlink(self, path: str) -> None:
        """Ignore the request."""

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def copy_access(self, source: str, target: str) -> None:
        """Ignore the request."""

    def make_private(self, path: str) -> None:
        """Ignore the request."""

    def remove_tree(self, path: str) -> None:
        """Ignore the request."""

    def sync_directory(self, path: str) -> None:
        """Ignore the request."""

    def read_bytes(self, path: str) -> bytes:
        return self._disk.read_bytes(path)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def usage_ratio(self, path: str) -> float:
        return self._disk.usage_ratio(path)

    def capacity(self, path: str) -> tuple[int, int]:
        return self._disk.capacity(path)

    def claim(self, root: str) -> bool:
        return self._disk.claim(root)

    def release(self, root: str) -> None:
        self._disk.release(root)


def _refused(path: str) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)
