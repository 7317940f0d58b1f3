"""Finds where the log goes on behind a place that holds no whole record.

A record counts here if all of it is right: magic, lengths, its own physical offset, the CRC of its
body. A BLANK counts if its length is what is left of the file, or if its magic is right.
"""

from protocol.checksum import body_crc
from protocol.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    LENGTH_FIELDS_BYTES,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    RecordError,
    RecordHead,
    scan_head,
)
from storage.mapped_file import MappedFile
from storage.mapped_file_queue import MappedFileQueue

_RECORD_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4)
_BLANK_MAGIC_BYTES = BLANK_MAGIC.to_bytes(4)
_MAGIC_POSITION = 4
_WINDOW_BYTES = 1 << 18
_BODY_CRC_POSITION = 8


def body_is_intact(view: memoryview, position: int, head: RecordHead) -> bool:
    """Whether the body of the record at `position` has the CRC that the record says."""
    start = position + HEADS[head.sys_flag >> 4 & 3].size
    tail_bytes = LENGTH_FIELDS_BYTES + len(head.topic) + len(head.properties)
    body = view[start : position + head.record_bytes - tail_bytes]
    crc_at = position + _BODY_CRC_POSITION
    return not body or body_crc(body) == int.from_bytes(view[crc_at : crc_at + 4], signed=True)


def whole_record_at(file: MappedFile, position: int) -> RecordHead | None:
    """The head of the record there if nothing of it is wrong."""
    try:
        head = scan_head(file.view, position)
    except RecordError:
        return None
    if head.magic != RECORD_MAGIC or head.physical_offset != file.first_offset + position:
        return None
    return head if body_is_intact(file.view, position, head) else None


def is_blank_at(file: MappedFile, position: int) -> bool:
    """Whether the rest of the file is BLANK, one of the two fields of which may be damaged."""
    remaining_bytes = file.size_bytes - position
    if remaining_bytes < BLANK_BYTES:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(file.view, position)
    return bool(magic == BLANK_MAGIC or size == remaining_bytes)


def is_sound_blank_at(file: MappedFile, position: int) -> bool:
    """Whether both fields are right."""
    remaining_bytes = file.size_bytes - position
    if remaining_bytes < BLANK_BYTES:
        return False
    return bool(SIZE_AND_MAGIC.unpack_from(file.view, position) == (remaining_bytes, BLANK_MAGIC))


def next_record(queue: MappedFileQueue, offset: int, end: int) -> int | None:
    """Where the next whole record (or a BLANK) begins, behind `offset` and below `end`.

    None if there is none. Reads what is not a hole: fast over what was never written.
    """
    file = queue.find(offset)
    start = offset + 1
    while file is not None and file.first_offset < end:
        found = _next_in(file, max(start - file.first_offset, 0), end - file.first_offset)
        if found is not None:
            return file.first_offset + found
        start = file.end_offset
        file = queue.find(start)
    return None


def _next_in(file: MappedFile, position: int, limit: int) -> int | None:
    """The same in one file, from a position on."""
    limit = min(limit, file.size_bytes)
    while position < limit:
        data_start = file.file.data_after(position)
        if data_start is None:
            return None
        position = max(position, data_start)
        window = file.file.pread(_WINDOW_BYTES + RECORD_BYTES_MIN, position)
        for found in _magics_in(window):
            candidate = position + found - _MAGIC_POSITION
            if found < _MAGIC_POSITION or candidate >= limit:
                continue
            if whole_record_at(file, candidate) or is_sound_blank_at(file, candidate):
                return candidate
        if len(window) < _WINDOW_BYTES + RECORD_BYTES_MIN:
            return None
        position += _WINDOW_BYTES
    return None


def _magics_in(window: bytes) -> list[int]:
    """Where one of the two magics stands, in order."""
    found = []
    for magic in (_RECORD_MAGIC_BYTES, _BLANK_MAGIC_BYTES):
        at = window.find(magic)
        while at >= 0:
            found.append(at)
            at = window.find(magic, at + 1)
    return sorted(found)
