"""The files of a store directory, for tools that do not open the store.

File sizes are settings of the broker. Without its settings they are read from the files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from protocol.message import RecordHead
from storage.config import StoreConfig
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import first_offset_of
from storage.index.index_layout import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexHeader
from storage.log.reader import NamedLogReader, record_at, walk
from storage.queues.consume_queue import UNIT
from storage.queues.consume_queue_ext import is_address
from storage.queues.queue_files import UNIT_BYTES
from storage.queues.queue_run import size_of
from storage.scrub.units import QueueKey

_SCAN_BYTES = 1 << 16
_INDEX_NAME_DIGITS = 17
_INDEX_BYTES_MAX = 256 << 20
"""Bytes of an index file that are read."""
_HASH_BYTES = 4
"""Bytes before the physical offset of an entry."""


def with_sizes_of_files(disk: Disk, config: StoreConfig) -> StoreConfig:
    """Return the settings with the file sizes and the queue extensions found in the directory."""
    sizes: dict[str, Any] = _index_sizes(disk, config)
    if log_bytes := _first_size(disk, config.commit_log_dir):
        sizes["commit_log_file_bytes"] = log_bytes
    if queue := _first_queue(disk, config.consume_queue_dir):
        size = sizes["consume_queue_file_bytes"] = _first_size(disk, queue)
        extents = QueueExtents()
        firsts = [int(name) for name in disk.listdir(queue) if first_offset_of(name) is not None]
        _queue_end(disk, queue, firsts, size, extents)
        sizes["enable_consume_queue_ext"] = extents.has_addresses
    if queue := _first_queue(disk, config.consume_queue_ext_dir):
        sizes["enable_consume_queue_ext"] = True
        sizes["consume_queue_ext_file_bytes"] = _first_size(disk, queue)
    return replace(config, **sizes)


def _first_queue(disk: Disk, root: str) -> str:
    """Return the directory of the first queue with a nonempty file below `root`; else ""."""
    for topic, queue_id in queue_names(disk, root):
        directory = f"{root}/{topic}/{queue_id}"
        if _first_size(disk, directory):
            return directory
    return ""


def queue_names(disk: Disk, root: str) -> Iterator[tuple[str, str]]:
    """Yield topic and queue id of each queue's directory; a start ignores everything else, too."""
    for topic in disk.listdir(root):
        for name in disk.listdir(f"{root}/{topic}") if disk.is_dir(f"{root}/{topic}") else ():
            if name.isascii() and name.isdigit() and disk.is_dir(f"{root}/{topic}/{name}"):
                yield topic, name


def _first_size(disk: Disk, directory: str) -> int:
    """Return the size of a directory's first file named by an offset; 0 without one."""
    for name in disk.listdir(directory):
        if first_offset_of(name) is not None:
            return size_of(disk, f"{directory}/{name}")
    return 0


def _index_sizes(disk: Disk, config: StoreConfig) -> dict[str, int]:
    """Return slot and entry settings that fit the index files; {} if the given ones do."""
    usual = HEADER_BYTES + config.max_hash_slots * SLOT_BYTES
    usual += config.max_index_entries * ENTRY_BYTES
    for name in index_names(disk, config):
        file = disk.open(f"{config.index_dir}/{name}", read_only=True)
        try:
            if (size := file.size()) == usual:
                return {}
            data = file.pread(min(size, _INDEX_BYTES_MAX), 0)
        finally:
            file.close()
        for slot_count in _slot_counts(data, size):
            entries_bytes = size - HEADER_BYTES - slot_count * SLOT_BYTES
            entry_count = entries_bytes // ENTRY_BYTES
            return {"max_hash_slots": slot_count, "max_index_entries": entry_count}
    return {}


def _slot_counts(data: bytes, size: int) -> Iterator[int]:
    """Yield slot counts that agree with the position of an index file's newest entry."""
    if len(data) < HEADER_BYTES:
        return
    header = IndexHeader.of(data[:HEADER_BYTES])
    newest = header.next_entry - 1
    wanted = header.end_physical_offset.to_bytes(8, signed=True)
    at = data.find(wanted, HEADER_BYTES) if newest > 0 else -1
    while at >= 0:
        start = at - _HASH_BYTES
        slot_count, rest = divmod(start - newest * ENTRY_BYTES - HEADER_BYTES, SLOT_BYTES)
        is_whole = not rest and not (size - HEADER_BYTES - slot_count * SLOT_BYTES) % ENTRY_BYTES
        if slot_count > 0 and is_whole:
            key_hash = int.from_bytes(data[start:at])
            slot_at = HEADER_BYTES + key_hash % slot_count * SLOT_BYTES
            if int.from_bytes(data[slot_at : slot_at + SLOT_BYTES]) == newest:
                yield slot_count
        at = data.find(wanted, at + 1)


def index_names(disk: Disk, config: StoreConfig) -> list[str]:
    """Return the names of the index files, in order."""
    return [
        name
        for name in disk.listdir(config.index_dir)
        if len(name) == _INDEX_NAME_DIGITS and name.isascii() and name.isdigit()
    ]


@dataclass(slots=True)
class LogExtent:
    """Range of the records in a log."""

    start: int = 0
    end: int = 0
    """End of the last whole record; start of the next file if BLANK follows."""
    capacity_end: int = 0
    last_store_timestamp: int = 0
    """Newest time in the last file with records, ms."""
    stale_bytes: int = 0
    """Nonzero bytes behind the end."""
    problems: list[str] = field(default_factory=list)
    """Files that are missing or have a wrong size."""


def log_extent(disk: Disk, config: StoreConfig) -> LogExtent:
    """Return the extent of the log; reads the file with the last record and those behind it."""
    extent = LogExtent()
    directory, size = config.commit_log_dir, config.commit_log_file_bytes
    names = [name for name in disk.listdir(directory) if first_offset_of(name) is not None]
    firsts = [int(name) for name in names]
    for name in names:
        found = size_of(disk, f"{directory}/{name}")
        if found != size:
            extent.problems.append(f"{directory}/{name} has {found} bytes instead of {size}")
    for before, after in pairwise(firsts):
        if after != before + size:
            extent.problems.append(f"{directory} has no files between {before + size} and {after}")
    extent.start = extent.end = firsts[0] if firsts else 0
    if not firsts:
        return extent
    extent.capacity_end = firsts[-1] + size
    reader = NamedLogReader(disk, config, extent.capacity_end)
    for first in reversed(firsts):
        if _end_in(reader, first, extent):
            break
    reader.close()
    for first, name in zip(firsts, names, strict=True):
        if first + size > extent.end:
            path = f"{directory}/{name}"
            extent.stale_bytes += _bytes_from(disk, path, max(0, extent.end - first))
    return extent


def _end_in(reader: NamedLogReader, first: int, extent: LogExtent) -> bool:
    """Find the last whole record of a file; return False without one."""
    last: RecordHead | None = None
    newest = 0
    for item in walk(reader, first, first + reader.file_bytes):
        if isinstance(item, RecordHead):
            last, newest = item, max(newest, item.store_timestamp)
    if last is None:
        return False
    end = last.physical_offset + last.record_bytes
    file_end = first + reader.file_bytes
    is_blank = end < file_end and record_at(reader, end) is None
    extent.end = file_end if is_blank or end == file_end else end
    extent.last_store_timestamp = newest
    return True


def _bytes_from(disk: Disk, path: str, position: int) -> int:
    """Return the number of nonzero bytes of a file from a position on."""
    count = 0
    file = disk.open(path, read_only=True)
    try:
        data_start = file.data_after(position)
        while data_start is not None and (data := file.pread(_SCAN_BYTES, data_start)):
            count += len(data) - data.count(0)
            data_start = file.data_after(data_start + len(data))
    finally:
        file.close()
    return count


@dataclass(slots=True)
class QueueExtents:
    ends: dict[QueueKey, int] = field(default_factory=dict)
    """Queue offset behind the last unit that is not all zeros."""
    physical_end: int = 0
    """Largest record end in the last unit of any queue."""
    has_addresses: bool = False
    """Whether a last unit points into an extension of its queue."""
    problems: list[str] = field(default_factory=list)
    """Files that are missing or have a wrong size."""


def queue_extents(disk: Disk, config: StoreConfig) -> QueueExtents:
    """Return the extents of all queues; reads the last units of each."""
    extents = QueueExtents()
    root, size = config.consume_queue_dir, config.consume_queue_file_bytes
    for topic, name in queue_names(disk, root):
        directory = f"{root}/{topic}/{name}"
        key = topic.encode("utf-8", "surrogateescape"), int(name)
        firsts = [first_offset_of(each) for each in disk.listdir(directory)]
        known = [first for first in firsts if first is not None]
        for before, after in pairwise(known):
            if after != before + size:
                problem = f"{directory} has no files between {before + size} and {after}"
                extents.problems.append(problem)
        extents.ends[key] = _queue_end(disk, directory, known, size, extents)
    return extents


def _queue_end(
    disk: Disk, directory: str, firsts: list[int], size: int, extents: QueueExtents
) -> int:
    for first in reversed(firsts):
        path = f"{directory}/{first:020d}"
        file = disk.open(path, read_only=True)
        try:
            if (found := file.size()) != size:
                extents.problems.append(f"{path} has {found} bytes instead of {size}")
            position = _last_unit(file, min(found, size))
            if position is None:
                continue
            physical_offset, record_bytes, code = UNIT.unpack(file.pread(UNIT_BYTES, position))
        finally:
            file.close()
        extents.has_addresses |= is_address(code)
        if record_bytes > 0:
            extents.physical_end = max(extents.physical_end, physical_offset + record_bytes)
        return (first + position) // UNIT_BYTES + 1
    return 0


def _last_unit(file: DiskFile, size: int) -> int | None:
    """Return the position of the last unit that is not all zeros."""
    end = size - size % UNIT_BYTES
    step = _SCAN_BYTES - _SCAN_BYTES % UNIT_BYTES
    while end > 0:
        start = max(0, end - step)
        data = file.pread(end - start, start).rstrip(b"\0")
        if data:
            return start + (len(data) - 1) // UNIT_BYTES * UNIT_BYTES
        end = start
    return None
