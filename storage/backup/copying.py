"""Copying of one file, whole or its growth, at the caller's pace.

Holes and zeros are not written, so that a sparse file stays sparse. Unreadable bytes become zeros
and are counted, so that a store on a failing disk yields a copy of the rest.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import closing
from typing import Final, TypeAlias

from storage.backup.record import BackupFolder
from storage.files.disk import Disk, DiskFile
from storage.log.reader import pread_or_zeros

CHUNK_BYTES: Final = 1 << 20
"""Bytes read and written at a time; the caller may wait between two chunks."""
ALIKE_BYTES: Final = 64 << 10
"""Bytes compared before a copy grows: two logs never share so many at one position."""
_FICLONE: Final = 0x40049409
"""The ioctl of linux/fs.h that shares the blocks of the source until one file changes."""

Pace: TypeAlias = Callable[[int], None]
"""Receives the number of copied bytes; returns when more may be copied."""
Share: TypeAlias = Callable[[str, str], bool]
"""Creates a file without space of its own from a constant one; False means copy it."""


class FileCopier:
    """Copies from one disk to a folder of another. One owner; raises OSError."""

    def __init__(self, source: Disk, folder: BackupFolder, pace: Pace) -> None:
        self._source, self._folder, self._pace = source, folder, pace
        self.copied_bytes = 0
        self.unreadable_bytes = 0

    def is_alike(self, source: str, target: str, end: int) -> bool:
        """Return whether the two files have the same bytes just before `end`."""
        start = max(0, end - ALIKE_BYTES)
        disk = self._folder.disk
        if not disk.exists(target):
            return False
        with (
            closing(self._source.open(source, read_only=True)) as of,
            closing(disk.open(target, read_only=True)) as to,
        ):
            return of.pread(end - start, start) == to.pread(end - start, start)

    def copy(self, source: str, target: str, end: int | None = None) -> int:
        """Create the target, with the source's size and its bytes below `end`, and sync it.

        Return the end of the nonzero bytes.
        """
        self._folder.will_change(target)
        if self._folder.disk.exists(target):
            self._folder.disk.unlink(target)
        return self._into(source, target, 0, end)

    def add(self, source: str, target: str, start: int, end: int) -> int:
        """Copy [start, end) into an existing file; return the end of the nonzero bytes."""
        return self._into(source, target, start, end)

    def _into(self, source: str, target: str, start: int, end: int | None) -> int:
        with (
            closing(self._source.open(source, read_only=True)) as of,
            closing(self._folder.disk.open(target, create=True)) as to,
        ):
            size = of.size()
            if to.size() != size:
                to.set_size(size)
            through = self._copy(of, to, start, size if end is None else end)
            to.sync()
        return through

    def _copy(self, of: DiskFile, to: DiskFile, start: int, end: int) -> int:
        position = through = start
        while position < end and (data_start := of.data_after(position)) is not None:
            position = max(position, data_start)
            if position >= end:
                break
            data = self._read(of, min(CHUNK_BYTES, end - position), position)
            if not data:
                break
            used = len(data.rstrip(b"\0"))
            if used:
                to.pwrite(memoryview(data)[:used], position)
                through = position + used
            position += len(data)
            self.copied_bytes += used
            self._pace(len(data))
        return through

    def _read(self, file: DiskFile, count: int, position: int) -> bytes:
        try:
            return file.pread(count, position)
        except OSError:
            data = pread_or_zeros(file, count, position)
            self.unreadable_bytes += data.count(0)
            return data

    def clear_behind(self, target: str, position: int) -> None:
        """Turn everything behind a position of an existing file into a hole."""
        with closing(self._folder.disk.open(target)) as file:
            size = file.size()
            if position < size and file.data_after(position) is not None:
                file.set_size(position)
                file.set_size(size)
                file.sync()


def clone(source: str, target: str) -> bool:
    """Share a file by reflink, where the file system can (XFS, Btrfs)."""
    new = f"{target}.clone"
    try:
        with open(source, "rb") as of, open(new, "wb") as to:
            fcntl.ioctl(to.fileno(), _FICLONE, of.fileno())
            os.fsync(to.fileno())
        os.replace(new, target)
    except OSError:
        if os.path.exists(new):
            os.unlink(new)
        return False
    return True


def hard_link(source: str, target: str) -> bool:
    """Share a file by a hard link within one file system; else by reflink."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        return clone(source, target)
    return True
