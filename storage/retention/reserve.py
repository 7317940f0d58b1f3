"""Disk space that a store allocates at once, before messages fill it.

Blocks are allocated for the log's current and next file, and for the slots of an index file at its
first key. Queue files are sparse and grow by 20 bytes per message. 4.9.7 creates sparse files and
crashes when it writes to a full disk.
"""

import os
from dataclasses import dataclass

from storage.config import StoreConfig
from storage.errors import DiskFull
from storage.files.disk import Disk
from storage.files.mapped_file import first_offset_of
from storage.index.index_layout import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES

LOG_FILES_AHEAD = 2
"""Log files allocated: the current and the next one."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Reserve:
    """Disk space that a store needs, and the space available."""

    total_bytes: int
    """Bytes that a new store allocates."""
    missing_bytes: int
    """Part of these bytes that this store has not allocated yet."""
    free_bytes: int | None
    """Free bytes on the log's disk; None if unknown."""

    @property
    def fits(self) -> bool:
        """Whether the disk has space for the missing bytes."""
        return self.free_bytes is None or self.missing_bytes <= self.free_bytes

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f" ({in_words(self.free_bytes)} are free)"
        if self.missing_bytes == self.total_bytes:
            return f"which takes {in_words(self.total_bytes)} of the disk at once{free}"
        more = in_words(self.missing_bytes) if self.missing_bytes else "nothing"
        return f"which takes {more} more of the disk for now{free}"


def reserve_of(config: StoreConfig, disk: Disk, log_files_missing: int) -> Reserve:
    index_bytes = 0
    if config.message_index_enable:
        index_bytes = HEADER_BYTES + config.max_hash_slots * SLOT_BYTES
    file_bytes = config.commit_log_file_bytes
    missing = log_files_missing * file_bytes
    if not disk.listdir(config.index_dir):
        missing += index_bytes
    total = LOG_FILES_AHEAD * file_bytes + index_bytes
    return Reserve(total, missing, _free_bytes(disk, config.commit_log_dir))


def require_room(config: StoreConfig, disk: Disk) -> Reserve | None:
    """Refuse a new store on a disk that is too small for it, while there is nothing to lose.

    Return the reserve of the new store, measured before its creation. A store with messages always
    opens, because they can be read; it yields None. An unreadable directory also yields None; its
    opening reports the error. Raises DiskFull.
    """
    try:
        names = disk.listdir(config.commit_log_dir)
        if any(first_offset_of(name) is not None for name in names):
            return None
        reserve = reserve_of(config, disk, LOG_FILES_AHEAD)
    except OSError:
        return None
    if not reserve.fits:
        assert reserve.free_bytes is not None
        raise DiskFull(
            f"A new store in {config.root} takes {in_words(reserve.missing_bytes)} of the disk at "
            f"once ({_what(config)}), and {in_words(reserve.free_bytes)} are free: make room, "
            "choose another storePathRootDir, or make the log files smaller "
            "(mappedFileSizeCommitLog=134217728 for 128 MiB), which cannot be changed later."
        )
    return reserve


def little_room(config: StoreConfig, reserve: Reserve) -> str:
    """Return the warning for a store that will soon lack disk space."""
    return (
        f"the next log file takes {in_words(config.commit_log_file_bytes)}, and "
        f"{in_words(reserve.free_bytes or 0)} are free: make room, or sends are rejected when the "
        "current file is full; stored messages remain readable"
    )


def _what(config: StoreConfig) -> str:
    what = f"{LOG_FILES_AHEAD} log files of {in_words(config.commit_log_file_bytes)}"
    if not config.message_index_enable:
        return what
    most = HEADER_BYTES + config.max_hash_slots * SLOT_BYTES
    most += config.max_index_entries * ENTRY_BYTES
    return f"{what}, and the slots of an index file, which grows to {in_words(most)}"


def in_words(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {_UNITS[unit]}" if size < 1000 else f"{size:.0f} {_UNITS[unit]}"


def _free_bytes(disk: Disk, path: str) -> int | None:
    """Return the free bytes of the file system of `path`, or of its nearest existing parent."""
    while not disk.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        total, free = disk.capacity(path or ".")
    except OSError:
        return None
    return free if total else None
