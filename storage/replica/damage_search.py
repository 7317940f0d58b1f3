"""Search for the next whole record behind damage, in a log that still grows.

A slave gets the master's damage as it is, and a master may send anything. Therefore a step reads
one window, and no bytes are searched again when more have come.
"""

from collections.abc import Callable
from contextlib import suppress

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
from storage.files.mapped_file import MappedFile
from storage.log.reader import body_is_intact

WINDOW_BYTES = 128 << 10
FOUND_BYTES_MAX = 16 << 20
"""Bytes of a record that is found, and of bodies that a step checks, but for the last: 20 ms."""
HALF_MAX = 1000
"""Records that have come in part; beyond it the search waits for them."""

_MAGIC_POSITION = 4
_MAGICS = RECORD_MAGIC.to_bytes(4), BLANK_MAGIC.to_bytes(4)


class DamageSearch:
    """Search behind one place of damage. One owner."""

    def __init__(self, offset: int, head: RecordHead | None) -> None:
        """Begin behind the damaged record if `head` has its lengths."""
        self.offset = offset
        self._next = offset + (1 if head is None else head.record_bytes)
        self._half: dict[int, int] = {}
        """Ends of records that have come in part, by place."""
        self._checked_bytes = 0
        self.has_more = False
        """Whether the last step has left bytes for the next one."""

    def step(self, find: Callable[[int], MappedFile | None], end: int) -> int | None:
        """Search the next window below `end`; return the place of a record or BLANK, or None."""
        self.has_more = False
        self._checked_bytes = 0
        for place in [place for place, behind in self._half.items() if behind <= end]:
            if self._checked_bytes > FOUND_BYTES_MAX:
                self.has_more = True
                return None
            del self._half[place]
            file = find(place)
            if file is not None and self._is_whole(file, place, end):
                return place
        file = find(self._next)
        if file is None or self._next >= end or len(self._half) > HALF_MAX:
            return None
        return self._in_window(file, min(end, file.end_offset), end)

    def _in_window(self, file: MappedFile, limit: int, end: int) -> int | None:
        start = self._next
        window_end = min(start + WINDOW_BYTES, limit)
        read_end = min(window_end + RECORD_BYTES_MIN, limit)
        data = bytes(file.view[start - file.first_offset : read_end - file.first_offset])
        for position in _positions(data, window_end - start):
            place = start + position
            if self._checked_bytes > FOUND_BYTES_MAX:
                self._next, self.has_more = place, True
                return None
            if self._is_whole(file, place, end):
                return place
        self._next = window_end
        if window_end == end:  # a head may have come in part
            self._next = max(start, end - RECORD_BYTES_MIN + 1)
        else:
            self.has_more = True
        return None

    def _is_whole(self, file: MappedFile, place: int, end: int) -> bool:
        """Return whether a record or BLANK is at `place`; note one that has come in part."""
        view, position = file.view, place - file.first_offset
        left, come = file.end_offset - place, min(end, file.end_offset) - place
        if come < BLANK_BYTES:
            return False
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
        if magic == BLANK_MAGIC:
            return bool(size == left)
        if not RECORD_BYTES_MIN <= size <= min(left, FOUND_BYTES_MAX) or come < RECORD_BYTES_MIN:
            return False
        own_at = position + PHYSICAL_OFFSET_POSITION
        if view[own_at : own_at + 8] != place.to_bytes(8):
            return False
        if size > come:
            self._half[place] = place + size
            return False
        with suppress(RecordError):
            head = scan_head(view, position)
            self._checked_bytes += size
            return body_is_intact(view, position, head)
        return False


def _positions(data: bytes, stop: int) -> list[int]:
    """Return the positions below `stop` at which a record or BLANK may begin."""
    found: list[int] = []
    for magic in _MAGICS:
        at = data.find(magic, _MAGIC_POSITION)
        while 0 <= at < stop + _MAGIC_POSITION:
            found.append(at - _MAGIC_POSITION)
            at = data.find(magic, at + 1)
    return sorted(found)
