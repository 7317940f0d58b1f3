"""A disk with changes in memory only, on which a start can be rehearsed.

Reads come from the disk below until a file is changed here. A file that is written to or mapped is
a private map of the file below. It takes memory for the written pages only, whatever the file's
size. A new file is anonymous memory, by the same rule.

One thread. The disk below should not change meanwhile.
"""

import errno
import mmap
import os
from collections.abc import Iterator

from storage.files.disk import Disk, DiskFile


class _Inode:
    """One file: that of the disk below, or its changed version."""

    def __init__(self, below: DiskFile | None) -> None:
        self.below = below
        self.data: memoryview | None = None if below is not None else memoryview(b"")
        """Content, once it may differ from the file below."""
        self.written: list[tuple[int, int]] = []
        self.open_count = 0

    def size(self) -> int:
        if self.data is not None:
            return len(self.data)
        assert self.below is not None
        return self.below.size()

    def own(self) -> memoryview:
        """Return the content, for writing."""
        if self.data is None:
            assert self.below is not None
            self.data = self.below.private_view()
        return self.data

    def resize(self, size: int) -> None:
        old = self.own()
        if size != len(old):
            self.data = memoryview(mmap.mmap(-1, size) if size else bytearray())
            kept = min(size, len(old))
            self.data[:kept] = old[:kept]
            if self.below is not None:
                self.below.close()
                self.below = None

    def data_after(self, position: int) -> int | None:
        if self.below is not None:
            found = self.below.data_after(position)
        else:
            found = position if position < self.size() else None
        own = [max(start, position) for start, end in self.written if end > position]
        return min([*own, *(() if found is None else (found,))], default=None)


class OverlayFile:
    def __init__(self, path: str, inode: _Inode, files: dict[str, _Inode]) -> None:
        self.path = path
        self._inode, self._files = inode, files
        self._closed = False
        inode.open_count += 1

    def size(self) -> int:
        return self._inode.size()

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        inode, end = self._inode, position + len(data)
        if not len(data):
            return
        if end > inode.size():
            inode.resize(end)
        inode.own()[position:end] = data
        inode.written.append((position, end))

    def pread(self, count: int, position: int) -> bytes:
        inode = self._inode
        if inode.data is None:
            assert inode.below is not None
            return inode.below.pread(count, position)
        return bytes(inode.data[position : position + count])

    def is_cached(self, position: int, count: int) -> bool:
        return True

    def read_ahead(self, position: int, count: int) -> None:
        """Do nothing: the file is in memory or on the disk below."""

    def view(self) -> memoryview:
        return self._inode.own().toreadonly()

    def writable_view(self) -> memoryview:
        return self._inode.own()

    def private_view(self) -> memoryview:
        return memoryview(bytearray(self._inode.own()))

    def allocate(self, size: int) -> None:
        if size > self.size():
            self._inode.resize(size)

    def set_size(self, size: int) -> None:
        self._inode.resize(size)

    def data_after(self, position: int) -> int | None:
        return self._inode.data_after(position)

    def sync(self) -> None:
        """Do nothing: memory has no durability."""

    def lock_byte(self, *, wait: bool = False) -> bool:
        return True

    def close(self) -> None:
        """Close the file; forget an unchanged one with its last descriptor."""
        inode = self._inode
        inode.open_count -= not self._closed
        self._closed = True
        if not inode.open_count and inode.data is None and inode.below is not None:
            inode.below.close()
            if self._files.get(self.path) is inode:
                del self._files[self.path]


class OverlayDisk:
    """The disk below, plus the changes made here."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self._files: dict[str, _Inode] = {}
        """Files that are open, or that differ from those below."""
        self._directories: set[str] = set()
        self._gone: set[str] = set()
        """Names removed from the disk below, with everything under them."""

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        path = os.path.normpath(path)
        inode = self._files.get(path)
        if inode is None and self._is_below(path):
            inode = _Inode(self._below.open(path, read_only=True))
        if inode is None:
            if not create or not self.is_dir(os.path.dirname(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = _Inode(None)
        self._files[path] = inode
        return OverlayFile(path, inode, self._files)

    def exists(self, path: str) -> bool:
        path = os.path.normpath(path)
        return path in self._files or path in self._directories or self._is_below(path)

    def is_dir(self, path: str) -> bool:
        path = os.path.normpath(path)
        if path in self._directories:
            return True
        return path not in self._files and self._is_below(path) and self._below.is_dir(path)

    def listdir(self, path: str) -> list[str]:
        path = os.path.normpath(path)
        names = set(self._below.listdir(path)) if self._is_below(path) else set()
        names = {name for name in names if os.path.join(path, name) not in self._gone}
        own = (*self._files, *self._directories)
        return sorted(
            names | {os.path.basename(each) for each in own if os.path.dirname(each) == path}
        )

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        path = os.path.normpath(path)
        while not self.is_dir(path):
            self._directories.add(path)
            path = os.path.dirname(path) or "."

    def rename(self, source: str, target: str) -> None:
        source, target = os.path.normpath(source), os.path.normpath(target)
        if self.is_dir(source):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), source)
        file = self.open(source)
        inode = self._files.pop(source)
        inode.own()  # from here on it is a file of this disk
        file.close()
        self._gone |= {source, target}
        self._files[target] = inode

    def unlink(self, path: str) -> None:
        path = os.path.normpath(path)
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._files.pop(path, None)
        self._gone.add(path)

    def remove_tree(self, path: str) -> None:
        path = os.path.normpath(path)
        for each in [*self._files]:
            if path in _and_above(each):
                del self._files[each]
        self._directories = {each for each in self._directories if path not in _and_above(each)}
        self._gone.add(path)

    def real_path(self, path: str) -> str:
        return self._below.real_path(path)

    def copy_access(self, source: str, target: str) -> None:
        """Do nothing: files in memory have no owner."""

    def make_private(self, path: str) -> None:
        """Do nothing: files in memory have no owner."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: memory has no durability."""

    def read_bytes(self, path: str) -> bytes:
        path = os.path.normpath(path)
        inode = self._files.get(path)
        if inode is not None and inode.data is not None:
            return bytes(inode.data)
        if not self._is_below(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._below.read_bytes(path)

    def modified_ms(self, path: str) -> int:
        return self._below.modified_ms(path) if self._is_below(os.path.normpath(path)) else 0

    def usage_ratio(self, path: str) -> float:
        return self._below.usage_ratio(path)

    def capacity(self, path: str) -> tuple[int, int]:
        return self._below.capacity(path)

    def claim(self, root: str) -> bool:
        return True

    def release(self, root: str) -> None:
        """Do nothing: `claim` always succeeds."""

    def _is_below(self, path: str) -> bool:
        """Return whether the disk below has the name, and it was not removed here."""
        return self._gone.isdisjoint(_and_above(path)) and self._below.exists(path)


def _and_above(path: str) -> Iterator[str]:
    """Yield a path and every directory above it."""
    while True:
        yield path
        above = os.path.dirname(path)
        if above == path:
            return
        path = above
