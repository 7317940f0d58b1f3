"""Readable output for an index file: header, statistics of the chains, entries.

The number of slots is a setting of the broker that made the file, and is not in the file. The usual
number is tried first, then the one that a full file beside it shows. Last comes every number that
the size allows. First and last entry must be where the header says.
"""

from array import array
from collections.abc import Iterator
from struct import error as StructError

from storage.dump.item import Item, opened, utc
from storage.files.disk import Disk, DiskFile
from storage.index.index_layout import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    IndexHeader,
)

_USUAL_SLOTS = 5_000_000
_READ_ENTRIES = 8192
_TRIED_BYTES_MAX = 64 << 20
"""Limit of file size for the search for an unusual number of slots."""
_CHAINED_ENTRIES_MAX = 1 << 20
"""Limit of entries for the longest chain: it takes 4 bytes of memory each."""


def dump_index(disk: Disk, path: str, from_number: int | None = None) -> Iterator[Item]:
    """Yield the file's items, with entries from `from_number` on."""
    file = opened(disk, path)
    try:
        data = file.pread(HEADER_BYTES, 0)
        if len(data) < HEADER_BYTES:
            yield Item("index file", {"bytes": len(data), "meaning": "cut off in its header"})
            return
        header, size = IndexHeader.of(data), file.size()
        slots = _slot_count(disk, path, file, header)
        yield Item("index file", _header_fields(header, size, slots))
        if slots is None:
            yield Item("end", {"reason": "unknown number of slots: no entries shown"})
            return
        yield Item("chains", _chains(file, header, slots))
        yield from _entries(file, header, slots, max(1, from_number or 1))
        yield Item("end", {"entries": header.next_entry - 1})
    finally:
        file.close()


def _header_fields(header: IndexHeader, size: int, slots: int | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "bytes": size,
        "begin": utc(header.begin_timestamp),
        "end": utc(header.end_timestamp),
        "begin_offset": header.begin_physical_offset,
        "end_offset": header.end_physical_offset,
        "used_slots": header.used_slots,
        "next_entry": header.next_entry,
    }
    if slots is not None:
        fields["slots"] = slots
        fields["entries_max"] = (size - HEADER_BYTES - slots * SLOT_BYTES) // ENTRY_BYTES
    return fields


def _slot_count(disk: Disk, path: str, file: DiskFile, header: IndexHeader) -> int | None:
    size = file.size()
    candidates = [_USUAL_SLOTS, *_from_full_files(disk, path, size)]
    if size <= _TRIED_BYTES_MAX:
        body = size - HEADER_BYTES
        most = body // ENTRY_BYTES
        candidates += [
            (body - count * ENTRY_BYTES) // SLOT_BYTES
            for count in range(max(1, header.next_entry), most + 1)
        ]
    for slots in candidates:
        rest = size - HEADER_BYTES - slots * SLOT_BYTES
        if slots > 0 and rest > 0 and not rest % ENTRY_BYTES and _fits(file, header, slots):
            return slots
    return None


def _from_full_files(disk: Disk, path: str, size: int) -> Iterator[int]:
    """Yield the slot count that follows from the entries of the directory's first file."""
    directory = path.rpartition("/")[0] or "."
    for name in disk.listdir(directory)[:1]:
        if disk.is_dir(f"{directory}/{name}"):
            continue
        other = opened(disk, f"{directory}/{name}")
        try:
            data = other.pread(HEADER_BYTES, 0)
            if other.size() == size and len(data) == HEADER_BYTES:
                entries = IndexHeader.of(data).next_entry
                yield (size - HEADER_BYTES - entries * ENTRY_BYTES) // SLOT_BYTES
        finally:
            other.close()


def _fits(file: DiskFile, header: IndexHeader, slots: int) -> bool:
    """Return whether first and last entry are where they must be with that many slots.

    The seconds of the first one say nothing: they count from the end of the file before.
    """
    last = header.next_entry - 1
    if last < 1:
        return slots == _USUAL_SLOTS
    try:
        _, first_offset, _, previous = _entry(file, slots, 1)
        key_hash, last_offset, _, _ = _entry(file, slots, last)
        position = HEADER_BYTES + abs(key_hash) % slots * SLOT_BYTES
        newest = SLOT.unpack(file.pread(SLOT_BYTES, position))[0]
    except StructError:
        return False
    return (first_offset, previous) == (header.begin_physical_offset, 0) and (
        last_offset,
        newest,
    ) == (header.end_physical_offset, last)


def _entry(file: DiskFile, slots: int, number: int) -> tuple[int, int, int, int]:
    position = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
    key_hash, offset, seconds, previous = ENTRY.unpack(file.pread(ENTRY_BYTES, position))
    return key_hash, offset, seconds, previous


def _chains(file: DiskFile, header: IndexHeader, slots: int) -> dict[str, object]:
    used, position = 0, HEADER_BYTES
    end = HEADER_BYTES + slots * SLOT_BYTES
    while position < end:
        data = file.pread(min(1 << 18, end - position), position)
        if not data:
            break
        used += len(data) // SLOT_BYTES
        used -= memoryview(data)[: len(data) // 4 * 4].cast("I").tolist().count(0)
        position += len(data)
    fields: dict[str, object] = {"slots_in_use": used}
    if header.next_entry <= _CHAINED_ENTRIES_MAX:
        lengths = array("i", [0])
        for number, (_, _, _, previous) in _raw_entries(file, header, slots, 1):
            lengths.append(lengths[previous] + 1 if 0 < previous < number else 1)
        fields["longest_chain"] = max(lengths)
    return fields


def _raw_entries(
    file: DiskFile, header: IndexHeader, slots: int, number: int
) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    while number < header.next_entry:
        position = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
        count = min(_READ_ENTRIES, header.next_entry - number)
        data = file.pread(count * ENTRY_BYTES, position)
        whole = memoryview(data)[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
        for key_hash, offset, seconds, previous in ENTRY.iter_unpack(whole):
            yield number, (key_hash, offset, seconds, previous)
            number += 1
        if len(whole) < count * ENTRY_BYTES:
            return


def _entries(file: DiskFile, header: IndexHeader, slots: int, number: int) -> Iterator[Item]:
    for own, (key_hash, offset, seconds, previous) in _raw_entries(file, header, slots, number):
        fields: dict[str, object] = {
            "number": own,
            "key_hash": key_hash,
            "slot": abs(key_hash) % slots,
            "physical_offset": offset,
            # the first one counts from the end of the file before, and begins this one
            "stored_about": utc(header.begin_timestamp + (seconds * 1000 if own > 1 else 0)),
            "previous": previous,
        }
        if not 0 <= previous < own:
            fields["meaning"] = "damaged: invalid chain"
        yield Item("entry", fields, counted=True)
