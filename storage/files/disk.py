"""The disk: two protocols for what a store needs, and the disk of this machine.

All file access of `storage/` goes through a `Disk`, so that tests can pass in one that loses
unsynced data, fills up or fails. Writing is always `pwrite`, which raises OSError on a full disk. A
store into a sparse mapped page would kill the process there.
"""

import errno
import fcntl
import mmap
import os
import shutil
import stat
from contextlib import suppress
from typing import Protocol

try:
    from __pypy__ import add_memory_pressure  # type: ignore[import-not-found]
except ImportError:  # CPython ends a map with the last reference to it

    def add_memory_pressure(_bytes: int) -> None:
        """Do nothing in CPython."""


DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o600

READ_WHOLE_BYTES_MAX = 1 << 30
"""Limit for a table; one with a million topics has 150 MB."""

_SCRATCH = memoryview(bytearray(64 << 10))
"""Target for a probe's bytes, which are never read, so threads may share it."""
_ADVICE_BYTES = 128 << 10
"""Bytes per request: the kernel reads no more than its own read-ahead, usually this size."""

_MAP_BYTES = 32 << 10
"""Weight of a map for PyPy's collector, which ends maps and closes their descriptors.

A queue that is opened and closed repeatedly then leaves some 1,500 of them, below the limit of open
files.
"""

_SEEK_DATA = 3
"""Linux's number; PyPy has no name for it."""


class DiskFile(Protocol):
    """An open file, addressed by position; it has no cursor, so threads may share it."""

    path: str

    def size(self) -> int:
        """Return the size in bytes, holes included."""

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`, or raise OSError after a possible partial write."""

    def pread(self, count: int, position: int) -> bytes:
        """Return up to `count` bytes from `position`; fewer only at the end of the file."""

    def is_cached(self, position: int, count: int) -> bool:
        """Return whether reading or touching these bytes does not wait for the disk.

        True if unknown. The answer may change at any moment.
        """

    def read_ahead(self, position: int, count: int) -> None:
        """Request these bytes from the disk without waiting; a hint that never raises."""

    def view(self) -> memoryview:
        """Return a read-only map of the whole file at its present size; shows later writes.

        It stays valid after `unlink` and `close`, while a reference exists. The file must not
        become shorter meanwhile: touching missing pages kills the process.
        """

    def writable_view(self) -> memoryview:
        """Return a writable map. Store only into regions with real blocks from `allocate`."""

    def private_view(self) -> memoryview:
        """Return a private writable map; also for a file opened for reading only."""

    def allocate(self, size: int) -> None:
        """Give the first `size` bytes real blocks of zeros; extend the file if it is shorter.

        Raise OSError(ENOSPC) without space.
        """

    def set_size(self, size: int) -> None:
        """Set the length without allocating blocks (a sparse file)."""

    def data_after(self, position: int) -> int | None:
        """Return the first position from `position` on that may hold a nonzero byte.

        None if the file system knows that only holes or unwritten blocks follow.
        """

    def sync(self) -> None:
        """Bring everything written so far to disk (fdatasync). Any thread."""

    def lock_byte(self, *, wait: bool = False) -> bool:
        """Lock byte 0 against other processes; return False if it is locked and `wait` is False.

        This is a POSIX record lock, like Java's `tryLock(0, 1)`: closing any descriptor of the file
        in this process releases it.
        """

    def close(self) -> None:
        """Close the descriptor; views stay valid. Closing twice does nothing."""


class Disk(Protocol):
    """The files and directories that a store may use."""

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        """Open a file for reading and writing; with `create`, create a missing one.

        Raise FileNotFoundError if it is missing and `create` is False. With `create`, raise OSError
        for a link: its target must not be written to.
        """

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it is missing."""

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """Create a directory and its parents; their names are on disk unless `durable` is False."""

    def rename(self, source: str, target: str) -> None:
        """Move a file, atomically replacing `target`; durable after `sync_directory`."""

    def unlink(self, path: str) -> None: ...

    def real_path(self, path: str) -> str:
        """Return the path behind links; it need not exist."""

    def copy_access(self, source: str, target: str) -> None:
        """Give `target` the owner, mode and extended attributes (access lists) of `source`.

        Durable on return. Raise PermissionError if this process may not set the owner.
        """

    def make_private(self, path: str) -> None:
        """Restrict reading and writing to the owner of the file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its content; a missing one is ignored."""

    def sync_directory(self, path: str) -> None:
        """Bring new, moved and removed names in this directory to disk."""

    def read_bytes(self, path: str) -> bytes: ...

    def modified_ms(self, path: str) -> int:
        """Return the last modification, milliseconds since 1970."""

    def usage_ratio(self, path: str) -> float:
        """Return used / (used + available), 0 to 1, of the file system of `path`."""

    def capacity(self, path: str) -> tuple[int, int]:
        """Return the total and the available bytes of the file system of `path`."""

    def claim(self, root: str) -> bool:
        """Claim `root` for one store of this process; return False if it is claimed.

        `lock_byte` does not do that, because it never refuses the process that holds the lock.
        """

    def release(self, root: str) -> None: ...


def _open_regular(path: str, flags: int) -> int:
    """Return the descriptor of a regular file.

    Raise OSError for pipes, which would block, for devices, which have no end, and for folders.
    With O_CREAT, raise it for links, too.
    """
    if flags & os.O_CREAT and os.path.islink(path):
        raise OSError(errno.ELOOP, "a link is in the way of a new file: remove it", path)
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file but a pipe or a device", path)


class RealFile:
    _fd = -1

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._fd = _open_regular(path, flags)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        if written != len(data):
            self._write_rest(memoryview(data), position, written)

    def _write_rest(self, data: memoryview, position: int, written: int) -> None:
        """Continue a short write; at a full disk or at 2 GiB the next one raises the reason."""
        while written < len(data):
            count = os.pwrite(self._fd, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "a write wrote no bytes", self.path)
            written += count

    def pread(self, count: int, position: int) -> bytes:
        data = os.pread(self._fd, count, position)
        while 0 < len(data) < count:
            more = os.pread(self._fd, count - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def is_cached(self, position: int, count: int) -> bool:
        end = position + count
        try:
            while position < end:
                scratch = _SCRATCH[: min(end - position, len(_SCRATCH))]
                read_bytes = os.preadv(self._fd, [scratch], position, os.RWF_NOWAIT)
                if not read_bytes:
                    break  # the end of the file
                position += read_bytes
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno == errno.EOPNOTSUPP  # such as tmpfs, which is memory
        return True

    def read_ahead(self, position: int, count: int) -> None:
        with suppress(OSError):
            for start in range(position, position + count, _ADVICE_BYTES):
                size = min(_ADVICE_BYTES, position + count - start)
                os.posix_fadvise(self._fd, start, size, os.POSIX_FADV_WILLNEED)

    def view(self) -> memoryview:
        return self._map(mmap.ACCESS_READ)

    def writable_view(self) -> memoryview:
        return self._map(mmap.ACCESS_WRITE)

    def private_view(self) -> memoryview:
        return self._map(mmap.ACCESS_COPY)

    def _map(self, access: int) -> memoryview:
        if self.size() == 0:
            return memoryview(b"" if access == mmap.ACCESS_READ else bytearray())
        add_memory_pressure(_MAP_BYTES)
        return memoryview(mmap.mmap(self._fd, 0, access=access))

    def allocate(self, size: int) -> None:
        code: int | None = os.posix_fallocate(self._fd, 0, size)  # type: ignore[func-returns-value]
        if code:  # PyPy returns the error that CPython raises
            raise OSError(code, os.strerror(code))

    def set_size(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def data_after(self, position: int) -> int | None:
        try:
            return os.lseek(self._fd, position, _SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def lock_byte(self, *, wait: bool = False) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, 0)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Close the descriptor of a deleted file that was still being read."""
        self.close()


def _attributes(path: str) -> dict[str, bytes]:
    """Return the extended attributes of a file except the kernel's own labels."""
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    return {name: os.getxattr(path, name) for name in names if not name.startswith("security.")}


_claimed_roots: set[str] = set()
"""Real paths of the stores that this process has open."""


class RealDisk:
    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        return RealFile(path, flags | (os.O_CREAT | os.O_NOFOLLOW if create else 0))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_dirs(parent, durable=durable)
        os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        if durable:
            self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def copy_access(self, source: str, target: str) -> None:
        wanted, attributes = os.stat(source), _attributes(source)
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if (found.st_uid, found.st_gid) != (wanted.st_uid, wanted.st_gid):
                os.fchown(fd, wanted.st_uid, wanted.st_gid)
            os.fchmod(fd, stat.S_IMODE(wanted.st_mode))
            for name in _attributes(target).keys() - attributes.keys():
                os.removexattr(fd, name)
            for name, value in attributes.items():
                os.setxattr(fd, name, value)
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_private(self, path: str) -> None:
        os.chmod(path, PRIVATE_MODE)

    def remove_tree(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_bytes(self, path: str) -> bytes:
        with open(_open_regular(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > READ_WHOLE_BYTES_MAX:
                raise OSError(errno.EFBIG, f"{size} bytes are more than any valid file has", path)
            return file.read()

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def usage_ratio(self, path: str) -> float:
        figures = os.statvfs(path)
        used = figures.f_blocks - figures.f_bfree
        usable = used + figures.f_bavail
        return used / usable if usable else 0.0

    def capacity(self, path: str) -> tuple[int, int]:
        figures = os.statvfs(path)
        return figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize

    def claim(self, root: str) -> bool:
        path = os.path.realpath(root)
        if path in _claimed_roots:
            return False
        _claimed_roots.add(path)
        return True

    def release(self, root: str) -> None:
        _claimed_roots.discard(os.path.realpath(root))
