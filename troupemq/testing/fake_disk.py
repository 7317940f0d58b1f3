"""A disk in memory that forgets: what was not synced survives a power cut or not, by seed.

What a power cut may do (`FakeDisk.crashed`), each decision on its own:
- every 4 KiB page written since the file's last sync has any of the contents it had since then;
- a file's size is any of those it had since then;
- pages whose sync failed keep their old content until they are written again: the kernel marks them
  clean, and the next sync succeeds without them;
- every new, moved and removed name is there or not, until its directory is synced.
It runs full at `capacity_bytes`, fails on demand, and `without_sync` makes fdatasync do nothing.

A file that is mapped cannot change its size: that would kill a process on a real disk, and raises
BufferError here.
"""

import errno
import gc
import os
from dataclasses import dataclass, field
from random import Random

from storage.files.disk import DiskFile

PAGE_BYTES = 4096
_VERSIONS_MAX = 4
"""Contents kept of an unsynced page; older ones in between are forgotten."""


def _with_page(data: bytes, page: int, content: bytes) -> bytes:
    """Return `data` with other content in a page, as far as it reaches."""
    start = page * PAGE_BYTES
    whole = content.ljust(PAGE_BYTES, b"\0")
    return data[:start] + whole[: max(0, len(data) - start)] + data[start + PAGE_BYTES :]


def _pages(position: int, count: int) -> range:
    """Return the pages that hold any of these bytes."""
    return range(position // PAGE_BYTES, -(-(position + count) // PAGE_BYTES))


@dataclass(eq=False)
class Inode:
    """A file's contents, and what of them is on disk."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    sizes: list[int] = field(default_factory=list)
    pages: dict[int, list[bytes]] = field(default_factory=dict)
    dropped: dict[int, bytes] = field(default_factory=dict)
    """Content on disk of the pages whose sync failed."""
    allocated: int = 0
    written_pages: set[int] = field(default_factory=set)
    mapped_writable: bool = False
    modified_ms: int = 0
    access: str = ""
    """Owner, mode and attributes, as one name; on disk at once."""
    locked: bool = False
    cached_pages: set[int] | None = None
    """Pages in memory; None: all."""

    def touch(self, position: int, count: int) -> None:
        """Note that these pages are in memory."""
        if self.cached_pages is not None:
            self.cached_pages |= set(_pages(position, count))

    def is_cached(self, position: int, count: int) -> bool:
        """Return whether all these pages are in memory."""
        return self.cached_pages is None or self.cached_pages >= set(_pages(position, count))

    def note_pages(self, position: int, count: int) -> None:
        """Keep the present contents of the pages that were just written."""
        data, pages = self.data, self.pages
        for page in _pages(position, count):
            self.dropped.pop(page, None)
            versions = pages.setdefault(page, [])
            if len(versions) == _VERSIONS_MAX:
                del versions[-2]
            versions.append(bytes(data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]))

    def resize(self, size: int) -> None:
        """Change the size. Raises BufferError while the file is mapped."""
        if size == len(self.data):
            return
        is_shorter = size < len(self.data)
        try:
            self._set_size(size)
        except BufferError:
            gc.collect()  # on PyPy a view ends only when it is collected
            self._set_size(size)
        if is_shorter:
            self.pages.clear()
            self.dropped.clear()
            self.durable = self.durable[:size]
        self.sizes.append(size)

    def _set_size(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))
        else:
            del self.data[size:]

    def make_durable(self) -> None:
        self.durable = bytes(self.data)
        for page, content in self.dropped.items():
            self.durable = _with_page(self.durable, page, content)
        self.sizes.clear()
        self.pages.clear()

    def drop_unsynced(self) -> None:
        """Mark the dirty pages as clean, as a failed sync does."""
        for page in self.pages:
            start = page * PAGE_BYTES
            self.dropped.setdefault(page, self.durable[start : start + PAGE_BYTES])
        self.pages.clear()

    def surviving(self, random: Random) -> "Inode":
        """Return the content of this file after a power cut."""
        if self.mapped_writable:
            self._note_stores_through_the_map()
        size = random.choice([len(self.durable), *self.sizes])
        data = bytearray(self.durable[:size])
        data.extend(bytes(size - len(data)))
        for page, versions in self.pages.items():
            start = page * PAGE_BYTES
            number = random.randint(0, len(versions))
            if number and start < size:
                content = versions[number - 1][: size - start]
                data[start : start + len(content)] = content
        result = Inode(data=data, durable=bytes(data), modified_ms=self.modified_ms)
        result.access = self.access
        result.allocated = min(self.allocated, size)
        result.written_pages = {page for page in self.written_pages if page * PAGE_BYTES < size}
        return result

    def _note_stores_through_the_map(self) -> None:
        for start in range(0, len(self.data), PAGE_BYTES):
            content = bytes(self.data[start : start + PAGE_BYTES])
            if content != self.durable[start : start + PAGE_BYTES]:
                self.pages.setdefault(start // PAGE_BYTES, []).append(content)

    def used_bytes(self) -> int:
        blocks = sum(1 for page in self.written_pages if page * PAGE_BYTES >= self.allocated)
        return self.allocated + blocks * PAGE_BYTES


@dataclass(slots=True)
class _NameChange:
    """One change of the directory tree that no `sync_directory` has made durable yet."""

    kind: str
    path: str
    inode: Inode | None = None
    target: str = ""

    def directories(self) -> set[str]:
        return {os.path.dirname(path) for path in (self.path, self.target) if path}


class FakeFile:
    """An open file of a FakeDisk."""

    def __init__(self, disk: "FakeDisk", path: str, inode: Inode, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._read_only = read_only
        self._has_lock = False
        self._closed = False

    def size(self) -> int:
        return len(self._open_inode().data)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        inode = self._writable_inode()
        self._disk.maybe_fail("pwrite", self.path)
        end = position + len(data)
        if not len(data):
            return
        self._disk.take_pages(inode, position, end)
        if end > len(inode.data):
            inode.resize(end)
        inode.data[position:end] = data
        inode.note_pages(position, len(data))
        inode.touch(position, len(data))
        inode.modified_ms = self._disk.now_ms

    def pread(self, count: int, position: int) -> bytes:
        self._disk.maybe_fail("pread", self.path)
        self._inode.touch(position, count)
        return bytes(self._open_inode().data[position : position + count])

    def is_cached(self, position: int, count: int) -> bool:
        return self._open_inode().is_cached(position, count)

    def read_ahead(self, position: int, count: int) -> None:
        inode = self._open_inode()
        inode.touch(position, min(count, len(inode.data) - position))

    def view(self) -> memoryview:
        self._disk.maybe_fail("view", self.path)
        return memoryview(self._open_inode().data).toreadonly()

    def writable_view(self) -> memoryview:
        inode = self._writable_inode()
        inode.mapped_writable = True
        return memoryview(inode.data)

    def private_view(self) -> memoryview:
        return memoryview(bytearray(self._open_inode().data))

    def allocate(self, size: int) -> None:
        inode = self._writable_inode()
        self._disk.maybe_fail("allocate", self.path)
        self._disk.reserve(size - inode.allocated)
        inode.allocated = max(inode.allocated, size)
        if size > len(inode.data):
            inode.resize(size)

    def set_size(self, size: int) -> None:
        self._disk.maybe_fail("set_size", self.path)
        self._writable_inode().resize(size)

    def data_after(self, position: int) -> int | None:
        return position if position < self.size() else None

    def sync(self) -> None:
        inode = self._open_inode()
        try:
            self._disk.maybe_fail("sync", self.path)
        except OSError:
            inode.drop_unsynced()
            raise
        self._disk.sync_count += 1
        if not self._disk.without_sync:
            inode.make_durable()

    def lock_byte(self, *, wait: bool = False) -> bool:
        inode = self._open_inode()
        assert not (wait and inode.locked and not self._has_lock), (
            "no other process would release it"
        )
        if inode.locked and not self._has_lock:
            return False
        inode.locked = self._has_lock = True
        return True

    def close(self) -> None:
        if not self._closed and self._has_lock:
            self._inode.locked = False
        self._closed = True

    def _open_inode(self) -> Inode:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._inode

    def _writable_inode(self) -> Inode:
        if self._read_only:
            raise OSError(errno.EBADF, "opened for reading only", self.path)
        return self._open_inode()


class FakeDisk:
    """A disk in memory; see the module for what it forgets."""

    def __init__(self, *, without_sync: bool = False, capacity_bytes: int | None = None) -> None:
        self.without_sync = without_sync
        """Makes `sync` and `sync_directory` do nothing, to prove that a test would notice."""
        self.capacity_bytes = capacity_bytes
        self.now_ms = 0
        """Time of change for written files; set by the test."""
        self.usage: float | None = None
        """Value of `usage_ratio`; None: the used part of `capacity_bytes`."""
        self.sync_count = 0
        """Number of syncs of any file."""
        self._files: dict[str, Inode] = {}
        self._directories: set[str] = {"/"}
        self._durable_files: dict[str, Inode] = {}
        self._durable_directories: set[str] = {"/"}
        self._changes: list[_NameChange] = []
        self._failures: dict[str, list[tuple[str, OSError]]] = {}
        self._claimed: set[str] = set()

    def crashed(self, seed: int) -> "FakeDisk":
        """Return the disk as a power cut now would leave it; this one stays as it is."""
        random = Random(seed)
        after = FakeDisk(capacity_bytes=self.capacity_bytes)
        after.now_ms, after.usage = self.now_ms, self.usage
        files, directories = dict(self._durable_files), set(self._durable_directories)
        for change in self._changes:
            if random.random() < 0.5:
                _apply(change, files, directories)
        survivors: dict[Inode, Inode] = {}
        for path in sorted(files):
            if not _ancestors(path) <= directories:
                continue
            inode = files[path]
            if inode not in survivors:
                survivors[inode] = inode.surviving(random)
            after._files[path] = survivors[inode]
        after._directories = {path for path in directories if _ancestors(path) <= directories}
        after._durable_files = dict(after._files)
        after._durable_directories = set(after._directories)
        return after

    def killed(self) -> "FakeDisk":
        """Return the disk as the death of the process, but not the machine, would leave it."""
        after = FakeDisk(without_sync=self.without_sync, capacity_bytes=self.capacity_bytes)
        after.now_ms, after.usage = self.now_ms, self.usage
        copies = {
            inode: Inode(
                data=bytearray(inode.data),
                durable=bytes(inode.data),
                modified_ms=inode.modified_ms,
                access=inode.access,
                allocated=inode.allocated,
                written_pages=set(inode.written_pages),
            )
            for inode in self._files.values()
        }
        after._files = {path: copies[inode] for path, inode in self._files.items()}
        after._directories = set(self._directories)
        after._durable_files = dict(after._files)
        after._durable_directories = set(after._directories)
        return after

    def fail_next(self, operation: str, error: OSError, *, times: int = 1, below: str = "") -> None:
        """Make the next calls of an operation (`pwrite`, `sync`, `rename` …) raise `error`.

        `below`: only those on paths that begin so.
        """
        self._failures.setdefault(operation, []).extend([(below, error)] * times)

    def access_of(self, path: str, access: str | None = None) -> str:
        """Return the permissions of a file, as one name; set them first if given."""
        if access is not None:
            self._inode(path).access = access
        return self._inode(path).access

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(self._files)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flip one bit of a file without a change of its time, as a failing disk does."""
        inode = self._files[path]
        inode.data[position] ^= 1 << bit
        inode.durable = bytes(inode.data)

    def forget_cache(self, path: str = "/") -> None:
        """Drop the files below `path` from memory."""
        for name, inode in self._files.items():
            if name.startswith(path):
                inode.cached_pages = set()

    def maybe_fail(self, operation: str, path: str) -> None:
        """Raise the error that `fail_next` has ordered for this operation, if any."""
        for number, (below, error) in enumerate(self._failures.get(operation, ())):
            if path.startswith(below):
                del self._failures[operation][number]
                raise OSError(error.errno, error.strerror, path)

    def used_bytes(self) -> int:
        """Blocks in use by files that have a name."""
        return sum(inode.used_bytes() for inode in set(self._files.values()))

    def reserve(self, count: int) -> None:
        """Raise OSError(ENOSPC) if `count` more bytes do not fit."""
        if self.capacity_bytes is not None and self.used_bytes() + count > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def take_pages(self, inode: Inode, start: int, end: int) -> None:
        """Give blocks to the pages of [start, end) that have none yet."""
        if end <= inode.allocated:
            return
        pages = set(range(start // PAGE_BYTES, -(-end // PAGE_BYTES))) - inode.written_pages
        new = sum(1 for page in pages if page * PAGE_BYTES >= inode.allocated)
        if new:
            self.reserve(new * PAGE_BYTES)
        inode.written_pages |= pages

    # -- Disk -----------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        self.maybe_fail("open", path)
        path = os.path.normpath(path)
        inode = self._files.get(path)
        if inode is None:
            if not create or os.path.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = self._files[path] = Inode(modified_ms=self.now_ms)
            self._changes.append(_NameChange("create", path, inode))
        return FakeFile(self, path, inode, read_only)

    def exists(self, path: str) -> bool:
        path = os.path.normpath(path)
        return path in self._files or path in self._directories

    def is_dir(self, path: str) -> bool:
        return os.path.normpath(path) in self._directories

    def listdir(self, path: str) -> list[str]:
        path = os.path.normpath(path)
        self.maybe_fail("listdir", path)
        below = path if path.endswith("/") else path + "/"
        start = len(below)
        paths = (*self._files, *self._directories)
        names = [p[start:] for p in paths if p.startswith(below) and p != below]
        return sorted(name for name in names if "/" not in name)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        path = os.path.normpath(path)
        if path in self._directories:
            return
        self.maybe_fail("make_dirs", path)
        parent = os.path.dirname(path)
        self.make_dirs(parent, durable=durable)
        self._directories.add(path)
        self._changes.append(_NameChange("mkdir", path))
        if durable:
            self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        self.maybe_fail("rename", source)
        source, target = os.path.normpath(source), os.path.normpath(target)
        inode = self._inode(source)
        self._change(_NameChange("rename", source, inode, target))

    def unlink(self, path: str) -> None:
        self.maybe_fail("unlink", path)
        path = os.path.normpath(path)
        self._change(_NameChange("unlink", path, self._inode(path)))

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)

    def copy_access(self, source: str, target: str) -> None:
        self.maybe_fail("copy_access", target)
        self._inode(target).access = self._inode(source).access

    def make_private(self, path: str) -> None:
        self.maybe_fail("make_private", path)
        self._inode(path).access = "private"

    def remove_tree(self, path: str) -> None:
        path = os.path.normpath(path)
        for name in [p for p in self._files if p.startswith(path + "/")]:
            self.unlink(name)
        below = [p for p in self._directories if p == path or p.startswith(path + "/")]
        for directory in sorted(below, reverse=True):
            self._change(_NameChange("rmdir", directory))

    def sync_directory(self, path: str) -> None:
        self.maybe_fail("sync_directory", path)
        path = os.path.normpath(path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self.without_sync:
            return
        waiting = []
        for change in self._changes:
            if path in change.directories():
                _apply(change, self._durable_files, self._durable_directories)
            else:
                waiting.append(change)
        self._changes = waiting

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._inode(os.path.normpath(path)).data)

    def modified_ms(self, path: str) -> int:
        self.maybe_fail("modified_ms", path)
        return self._inode(os.path.normpath(path)).modified_ms

    def usage_ratio(self, path: str) -> float:
        self.maybe_fail("usage_ratio", path)
        if self.usage is not None:
            return self.usage
        return self.used_bytes() / self.capacity_bytes if self.capacity_bytes else 0.0

    def capacity(self, path: str) -> tuple[int, int]:
        total = self.capacity_bytes or 0
        return total, max(0, total - self.used_bytes())

    def claim(self, root: str) -> bool:
        root = os.path.normpath(root)
        if root in self._claimed:
            return False
        self._claimed.add(root)
        return True

    def release(self, root: str) -> None:
        self._claimed.discard(os.path.normpath(root))

    def _inode(self, path: str) -> Inode:
        inode = self._files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _change(self, change: _NameChange) -> None:
        _apply(change, self._files, self._directories)
        self._changes.append(change)


def _apply(change: _NameChange, files: dict[str, Inode], directories: set[str]) -> None:
    """Make one change of names; without its precondition it has only part of its effect."""
    if change.kind == "mkdir":
        directories.add(change.path)
    elif change.kind == "rmdir":
        directories.discard(change.path)
    elif change.kind == "unlink":
        if files.get(change.path) is change.inode:
            del files[change.path]
    elif change.inode is not None:
        if change.kind == "rename" and files.get(change.path) is change.inode:
            del files[change.path]
        files[change.target or change.path] = change.inode


def _ancestors(path: str) -> set[str]:
    """All directories above a path."""
    result = set()
    while path != "/":
        path = os.path.dirname(path)
        result.add(path)
    return result
