"""Walks the log over damaged places: whole records, and the gaps between them.

A record is whole if its magic, its lengths, its own physical offset and the CRC of its body are
right. Where none begins, the lengths tell where the next one does, if they agree with each other;
a length alone is not believed, for among records of one size a flipped bit would lead to another
record and past good ones. Otherwise the next record is found by its magic and its own offset.
"""

from collections.abc import Iterator
from typing import NamedTuple

from protocol.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    RecordError,
    RecordHead,
    scan_head,
)
from storage.resync import body_is_intact
from storage.scrub.files import LOG_WINDOW_BYTES, LogReader

_MAGIC_POSITION = 4
_RECORD_MAGIC = RECORD_MAGIC.to_bytes(4)
_BLANK_MAGIC = BLANK_MAGIC.to_bytes(4)
_PHYSICAL_OFFSET_BYTES = 8


class Gap(NamedTuple):
    """A part of the log without a whole record."""

    start: int
    end: int
    reason: str


class _Fault(NamedTuple):
    """Why no whole record begins at a place; `end` is where it ends if its lengths agree."""

    reason: str
    end: int | None = None


def walk(reader: LogReader, start: int, end: int) -> Iterator[RecordHead | Gap | None]:
    """Records and gaps between two offsets, the first of which begins a record or a file.

    None where it takes long: look at the clock. Ends early at a file that is gone.
    """
    offset = start
    while offset < end:
        limit = min(reader.limit(offset), end)
        found = record_at(reader, offset, limit)
        if found is None:
            offset = offset - offset % reader.file_bytes + reader.file_bytes
        elif isinstance(found, RecordHead):
            offset += found.record_bytes
            yield found
        else:
            following = found.end
            if following is None:
                following = limit
                for candidate in _candidates(reader, offset + 1, limit):
                    if candidate is not None:
                        following = candidate
                        break
                    yield None
            if not reader.at(offset, 1)[0]:
                return
            yield Gap(offset, following, found.reason)
            offset = following


def whole_record(reader: LogReader, offset: int) -> RecordHead | None:
    """The record at an offset of which nothing is known; None if no whole one begins there."""
    if offset < 0 or offset >= reader.end_offset:
        return None
    found = record_at(reader, offset, reader.limit(offset))
    return found if isinstance(found, RecordHead) else None


def record_at(reader: LogReader, offset: int, limit: int) -> RecordHead | _Fault | None:
    """The whole record at `offset`, why there is none, or None for the BLANK at a file's end."""
    remaining = reader.file_bytes - offset % reader.file_bytes
    if remaining < BLANK_BYTES:
        return None
    data, position = reader.at(offset, BLANK_BYTES)
    if position + BLANK_BYTES > len(data):
        return _Fault(f"the record at {offset} is cut off")
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic == BLANK_MAGIC or size == remaining:
        # No record is that long: BLANK always has room behind it.
        return None
    if not RECORD_BYTES_MIN <= size <= limit - offset:
        return _Fault(f"the length of the record at {offset} cannot be true")
    data, position = reader.at(offset, size)
    try:
        head = scan_head(data, position)
    except RecordError as error:
        return _Fault(str(error).replace(f"at {position}", f"at {offset}"))
    if head.physical_offset != offset:
        reason = f"the record at {offset} says it lies at {head.physical_offset}"
        return _Fault(reason, offset + size)
    if not body_is_intact(memoryview(data), position, head):
        return _Fault(f"the body of the record at {offset} does not have its CRC", offset + size)
    return head


def _candidates(reader: LogReader, offset: int, limit: int) -> Iterator[int | None]:
    """Where whole records begin from `offset` on, or a BLANK; None between windows."""
    while offset < limit:
        window_end = min(offset + LOG_WINDOW_BYTES, limit)
        # What begins in the window may reach over its end.
        data, base = reader.at(offset, min(window_end + RECORD_BYTES_MIN, limit) - offset)
        if not data:
            return
        yield from _in_window(reader, data, base, offset, window_end, limit)
        yield None
        offset = window_end


def _in_window(
    reader: LogReader, data: bytes, base: int, offset: int, window_end: int, limit: int
) -> Iterator[int]:
    stop = base + window_end - offset
    found: list[int] = []
    for magic in (_RECORD_MAGIC, _BLANK_MAGIC):
        at = data.find(magic, base + _MAGIC_POSITION)
        while 0 <= at < stop + _MAGIC_POSITION:
            found.append(at - _MAGIC_POSITION)
            at = data.find(magic, at + 1)
    for position in sorted(found):
        candidate = offset + position - base
        is_record = _names_itself(data, position, candidate) and isinstance(
            record_at(reader, candidate, limit), RecordHead
        )
        if is_record or _is_blank(reader, data, position, candidate):
            yield candidate


def _is_blank(reader: LogReader, data: bytes, position: int, candidate: int) -> bool:
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    remaining = reader.file_bytes - candidate % reader.file_bytes
    return bool(magic == BLANK_MAGIC and size == remaining)


def _names_itself(data: bytes, position: int, candidate: int) -> bool:
    start = position + PHYSICAL_OFFSET_POSITION
    own = data[start : start + _PHYSICAL_OFFSET_BYTES]
    return own == candidate.to_bytes(_PHYSICAL_OFFSET_BYTES)
