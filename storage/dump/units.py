"""Readable output for files of units: consume queues, their extensions, the transaction table.

Long runs of empty units are one item. `from_number` counts units of the queue or of the table. In
an extension, where units differ in length, it counts bytes.
"""

from collections.abc import Iterator
from itertools import groupby
from struct import Struct

from protocol.topic_names import SCHEDULE_TOPIC
from storage.dump.item import Item, first_nonzero, opened, utc
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import first_offset_of
from storage.queues.queue_units import FILLER_BYTES, UNIT, UNIT_BYTES
from storage.transactions.units import (
    COMMITTED,
    COMMITTING,
    DISCARDED,
    PREPARED,
    REPLACED,
    ROLLED_BACK,
)
from storage.transactions.units import UNIT as STATE_UNIT
from storage.transactions.units import UNIT_BYTES as STATE_UNIT_BYTES

EMPTY_UNITS = "empty units"
"""Kind of the item for a run of them."""
_READ_UNITS = 8192
_EXT_ADDRESS_MAX = -(1 << 31) - 1
_EXT_BASE = 1 << 63

EXT_UNIT = Struct(
    ">h"  # unit_bytes
    "q"  # tags_code
    "q"  # store_timestamp, ms
    "h"  # bitmap_bytes
)
_EXT_UNIT_BYTES_MAX = 32_767

STATE_WORDS = {
    PREPARED: "prepared",
    COMMITTING: "committing",
    COMMITTED: "committed",
    ROLLED_BACK: "rolled back",
    REPLACED: "replaced by a newer half message",
    DISCARDED: "discarded",
}


def dump_queue(disk: Disk, path: str, from_number: int | None = None) -> Iterator[Item]:
    file = opened(disk, path)
    try:
        start = (first_offset_of(path.rpartition("/")[2]) or 0) // UNIT_BYTES
        yield Item("consume queue file", {"first_queue_offset": start, "bytes": file.size()})
        is_schedule = SCHEDULE_TOPIC in path.split("/")
        count = 0
        for number, unit in _units(file, UNIT, start, from_number):
            if isinstance(unit, int):
                yield Item(EMPTY_UNITS, {"queue_offset": number, "count": unit}, counted=True)
                continue
            count += 1
            yield Item("unit", _unit_fields(number, unit, is_schedule), counted=True)
        yield Item("end", {"units": count})
    finally:
        file.close()


def _unit_fields(number: int, unit: tuple[int, ...], is_schedule: bool) -> dict[str, object]:
    physical_offset, record_bytes, tags_code = unit
    fields: dict[str, object] = {
        "queue_offset": number,
        "physical_offset": physical_offset,
        "bytes": record_bytes,
        "tags_code": tags_code,
    }
    if record_bytes == FILLER_BYTES and physical_offset == 0:
        fields["meaning"] = "stands for messages deleted before the file was created"
    elif is_schedule:
        fields["meaning"] = f"due {utc(tags_code)}"
    elif tags_code <= _EXT_ADDRESS_MAX:
        fields["meaning"] = f"extension at {tags_code + _EXT_BASE}"
    return fields


def dump_transactions(disk: Disk, path: str, from_number: int | None = None) -> Iterator[Item]:
    """Yield the items of a file of the transaction table."""
    file = opened(disk, path)
    try:
        start = (first_offset_of(path.rpartition("/")[2]) or 0) // STATE_UNIT_BYTES
        yield Item("transaction table file", {"first_number": start, "bytes": file.size()})
        count = 0
        for number, unit in _units(file, STATE_UNIT, start, from_number):
            if isinstance(unit, int):
                yield Item(EMPTY_UNITS, {"number": number, "count": unit}, counted=True)
                continue
            count += 1
            physical_offset, record_bytes, timestamp_s, group_hash, state = unit
            fields: dict[str, object] = {
                "number": number,
                "physical_offset": physical_offset,
                "bytes": record_bytes,
                "born": utc(timestamp_s * 1000),
                "group_hash": group_hash,
                "state": STATE_WORDS.get(state, f"unknown {state}"),
            }
            yield Item("transaction", fields, counted=True)
        yield Item("end", {"units": count})
    finally:
        file.close()


def _units(
    file: DiskFile, layout: Struct, start: int, from_number: int | None
) -> Iterator[tuple[int, tuple[int, ...] | int]]:
    """Yield each unit with its number; for a run of empty ones, their count."""
    size = file.size() // layout.size * layout.size
    position = min(size, max(0, (from_number or 0) - start) * layout.size)
    while position < size:
        found = first_nonzero(file, position, size)
        next_unit = size if found is None else found // layout.size * layout.size
        if next_unit > position:
            yield start + position // layout.size, (next_unit - position) // layout.size
        position = next_unit
        data = file.pread(min(_READ_UNITS * layout.size, size - position), position)
        used = -(-len(data.rstrip(b"\0")) // layout.size)
        whole = memoryview(data)[: min(used, len(data) // layout.size) * layout.size]
        numbered = enumerate(layout.iter_unpack(whole), start + position // layout.size)
        for is_empty, run in groupby(numbered, key=lambda each: not any(each[1])):
            if is_empty:
                first, *others = [number for number, _ in run]
                yield first, len(others) + 1
            else:
                yield from run
        if not whole:
            return
        position += len(whole)


def dump_ext(disk: Disk, path: str, from_position: int | None = None) -> Iterator[Item]:
    file = opened(disk, path)
    try:
        first = first_offset_of(path.rpartition("/")[2]) or 0
        size = file.size()
        yield Item("consume queue extension file", {"first_address": first, "bytes": size})
        position, count = 0, 0
        reason = "the file is full"
        while position + 2 <= size:
            data = file.pread(_EXT_UNIT_BYTES_MAX, position)
            unit_bytes = int.from_bytes(data[:2], signed=True)
            if unit_bytes < EXT_UNIT.size or unit_bytes > len(data):
                reason = {-1: "the next file follows", 0: "zeros follow"}.get(
                    unit_bytes, f"no unit has {unit_bytes} bytes"
                )
                break
            _, tags_code, timestamp, bitmap_bytes = EXT_UNIT.unpack_from(data)
            bitmap = data[EXT_UNIT.size : unit_bytes]
            fields: dict[str, object] = {
                "address": first + position,
                "bytes": unit_bytes,
                "tags_code": tags_code,
                "stored": utc(timestamp),
                "bitmap": bitmap.hex(),
            }
            if bitmap_bytes != len(bitmap):
                fields["meaning"] = f"damaged: the bit map says {bitmap_bytes} bytes"
            if first + position >= (from_position or 0):
                yield Item("extension", fields, counted=True)
            position, count = position + unit_bytes, count + 1
        yield Item("end", {"address": first + position, "units": count, "reason": reason})
    finally:
        file.close()
