"""`lock` and `abort`: single ownership of a store directory, and the mark of an unclean stop.

`lock` has the content `lock`; its owner has a POSIX record lock on byte 0, which Java's `tryLock(0,
1)` respects, and vice versa. Only an owner may open it: closing any descriptor of it releases the
lock. So tools that only read the store never touch it.

`abort` is empty. It exists from start to clean stop; a start that finds it recovers from a crash.

Source: store/DefaultMessageStore.java (start, createTempFile, shutdown).
"""

import os

from storage.config import StoreConfig
from storage.errors import StoreError, StoreLocked, store_error
from storage.files.disk import Disk, DiskFile

_LOCK_CONTENTS = b"lock"
_LOCKS = "/proc/locks"


class StoreLock:
    """The exclusive right to write into a store directory, across processes and within this one."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._root = config.root
        self._path = config.lock_path
        self._disk = disk
        self._file: DiskFile | None = None

    def acquire(self) -> None:
        """Create the directory if needed and lock it; raise StoreLocked if it is in use."""
        try:
            self._disk.make_dirs(self._root)
        except OSError as error:
            raise store_error("cannot create the store directory", error) from error
        if not self._disk.claim(self._root):
            raise self._locked("this process")
        try:
            self._take()
        except StoreError:
            self._disk.release(self._root)
            raise

    def _take(self) -> None:
        try:
            file = self._disk.open(self._path, create=True)
        except OSError as error:
            raise store_error("cannot open the lock of the store", error) from error
        try:
            if not file.lock_byte():
                raise self._locked("another process")
            file.pwrite(_LOCK_CONTENTS, 0)
            file.sync()
        except OSError as error:
            file.close()
            raise store_error("cannot lock the store", error) from error
        except StoreLocked:
            file.close()
            raise
        self._file = file

    def _locked(self, owner: str) -> StoreLocked:
        return StoreLocked(
            f"the store {self._root} is in use by {owner}: "
            "stop that broker, or choose another storePathRootDir."
        )

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.release(self._root)


def was_stopped_cleanly(config: StoreConfig, disk: Disk) -> bool:
    """Return whether the last owner removed `abort`; True for a new store."""
    return not disk.exists(config.abort_path)


def create_abort(config: StoreConfig, disk: Disk) -> None:
    """Mark the store as in use, durably. Raise StoreError."""
    try:
        disk.open(config.abort_path, create=True).close()
        disk.sync_directory(config.root)
    except OSError as error:
        raise store_error("cannot create the file abort", error) from error


def remove_abort(config: StoreConfig, disk: Disk) -> None:
    """Mark the store as stopped cleanly, after everything else is on disk. Raise StoreError."""
    try:
        if disk.exists(config.abort_path):
            disk.unlink(config.abort_path)
            disk.sync_directory(config.root)
    except OSError as error:
        raise store_error("cannot remove the file abort", error) from error


def lock_owner(path: str) -> int:
    """Return the id of the process that has the lock of a store; 0 without one.

    The file is not opened, because closing it would release a lock of this process.
    """
    try:
        inode = os.stat(path).st_ino
        with open(_LOCKS, encoding="ascii") as locks:
            for words in map(str.split, locks):
                # e.g. 1: POSIX  ADVISORY  WRITE 4242 fd:01:131074 0 0
                if "->" not in words and words[5].rpartition(":")[2] == str(inode):
                    return int(words[4])
    except (OSError, IndexError, ValueError):
        pass
    return 0
