"""The disk: two protocols of what a store asks of it, and the disk of this machine.

Every access of `storage/` to files goes through a `Disk`, so that tests can hand in one that
forgets what was not synced, fills up or fails. Writing is always `pwrite`: a store into a sparse
mapped page on a full disk would kill the process, `pwrite` raises OSError instead.
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
        """Do nothing."""


DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o600

READ_WHOLE_BYTES_MAX = 1 << 30
"""Of a table: one of a million topics has 150 MB."""

_SCRATCH = memoryview(bytearray(64 << 10))
"""Where a probe's bytes go; nobody looks at them, so threads may share it."""
_ADVICE_BYTES = 128 << 10
"""Asked for at once: the kernel reads no more than it would read ahead by itself, usually this."""

_MAP_BYTES = 32 << 10
"""Weight of a map for the collector of PyPy, which ends maps and closes their descriptors: a queue
that is opened and closed again and again leaves some 1,500 of them, not as many as may be open."""

_SEEK_DATA = 3
"""Linux's number; PyPy has no name for it."""


class DiskFile(Protocol):
    """An open file, addressed by position; it has no cursor, so threads may share it."""

    path: str

    def size(self) -> int:
        """Bytes from the first to the end of the file, holes included."""

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Writes all of `data` at `position`, or raises OSError; part of it may then be there."""

    def pread(self, count: int, position: int) -> bytes:
        """Up to `count` bytes from `position`; fewer only at the end of the file."""

    def is_cached(self, position: int, count: int) -> bool:
        """Whether these bytes can be read, or touched in a map, without waiting for the disk.

        True where nobody can tell. A moment later it may be otherwise.
        """

    def read_ahead(self, position: int, count: int) -> None:
        """Has these bytes brought into memory without waiting for them; a hint, never an error."""

    def view(self) -> memoryview:
        """A read-only map of the whole file as it is sized now; shows later writes.

        Stays valid after `unlink` and after `close`, for as long as somebody holds it. The file
        must not become shorter meanwhile: touching what is gone kills the process.
        """

    def writable_view(self) -> memoryview:
        """The same for writing. Store only into regions that `allocate` has given real blocks."""

    def private_view(self) -> memoryview:
        """A map to write into that nobody else sees; also of a file opened for reading only."""

    def allocate(self, size: int) -> None:
        """Real blocks for the first `size` bytes, read as zeros; grows the file if it is shorter.

        Raises OSError(ENOSPC) when there is no room.
        """

    def set_size(self, size: int) -> None:
        """Makes the file `size` bytes long without giving it blocks (a sparse file)."""

    def data_after(self, position: int) -> int | None:
        """The first position from `position` on that may hold a byte other than zero.

        None when the file system knows that only holes or unwritten blocks follow.
        """

    def sync(self) -> None:
        """Everything written so far is on disk when this returns (fdatasync). Any thread."""

    def lock_byte(self, *, wait: bool = False) -> bool:
        """Locks byte 0 against other processes; False if one of them has it and we do not wait.

        A POSIX record lock, as Java's `tryLock(0, 1)`: closing any descriptor of the file in this
        process gives it up.
        """

    def close(self) -> None:
        """Gives the descriptor back; views stay valid. Closing twice does nothing."""


class Disk(Protocol):
    """The files and directories that a store may see."""

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        """Opens a file for reading and writing; makes an empty one if told to and none is there.

        Raises FileNotFoundError when it is missing and `create` is False; with `create` OSError
        where a link has the name: what it leads to is not ours to write to.
        """

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty when there is no such directory."""

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        """Makes a directory and its parents; their names are on disk unless `durable` is False."""

    def rename(self, source: str, target: str) -> None:
        """Moves a file, replacing `target` at once; durable after `sync_directory`."""

    def unlink(self, path: str) -> None: ...

    def real_path(self, path: str) -> str:
        """Where a file really lies, behind links; it need not be there yet."""

    def copy_access(self, source: str, target: str) -> None:
        """Gives `target` the owner, mode and extended attributes (access lists) of `source`.

        On disk when this returns. Raises PermissionError for an owner whom this process may not
        name.
        """

    def make_private(self, path: str) -> None:
        """From now on only the owner of the file may read and write it."""

    def remove_tree(self, path: str) -> None:
        """Removes a directory with all that is in it; nothing happens if it is missing."""

    def sync_directory(self, path: str) -> None:
        """The names in this directory, new, moved and removed, are on disk when this returns."""

    def read_bytes(self, path: str) -> bytes: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, milliseconds since 1970."""

    def usage_ratio(self, path: str) -> float:
        """Used part of the file system that holds `path`, 0 to 1: used / (used + available)."""

    def capacity(self, path: str) -> tuple[int, int]:
        """Bytes of the file system that holds `path`: all, and those that may still be used."""

    def claim(self, root: str) -> bool:
        """Notes that a store of this process has `root` open; False if one has it already.

        Needed beside `lock_byte`, which never refuses the process that holds the lock.
        """

    def release(self, root: str) -> None:
        """Takes a claim back."""


def _open_regular(path: str, flags: int) -> int:
    """The descriptor of a file that is one. Raises OSError for pipes, which would have us wait for
    ever, for devices, which have no end, and for folders; where it may be made, for links."""
    if flags & os.O_CREAT and os.path.islink(path):
        raise OSError(
            errno.ELOOP, "it is a link, and what is made here is none: take it away", path
        )
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no file but a pipe or a device", path)


class RealFile:
    """A file of this machine."""

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
        """A write may stop short at a full disk or at 2 GiB; the next one then tells why."""
        while written < len(data):
            count = os.pwrite(self._fd, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "a write of more than no bytes wrote none", self.path)
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
            return error.errno == errno.EOPNOTSUPP  # as tmpfs, which is memory
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
        """A deleted file that somebody was still reading is not closed by anyone else."""
        self.close()


def _attributes(path: str) -> dict[str, bytes]:
    """The extended attributes of a file but for labels that the kernel's own rules give it."""
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
    """The disk of this machine."""

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
                raise OSError(errno.EFBIG, f"it has {size} bytes, which nothing here writes", path)
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
