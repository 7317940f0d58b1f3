"""Get in the usual case: valid units, and records in one log file, all cached or all on disk.

Units are decoded in columns, whole blocks per call, and limits are checked on the smallest and the
largest value. Unusual cases are left to `get_message`, which examines units one by one. Examples
are a batch over the limits, records at the edge of the log or of its cached part, and tags codes
that are not hashes.

Measured on one core with 32 messages, no two adjacent: 6 µs instead of 11 µs.
"""

from collections.abc import Sequence, Set
from functools import lru_cache
from itertools import compress, repeat
from operator import add, lt, sub
from struct import Struct
from typing import Final

from storage.queues.consume_queue import UNIT_BYTES
from storage.reading.get_result import GetLimits, GetResult, GetStatus, ReadableLog

Units = bytes | bytearray | memoryview

_FOUND: Final = GetStatus.FOUND
_HEAD: Final = Struct(">qi")
"""Fields physical_offset and record_bytes of a unit."""

_SIGNS: Final = bytes(128) + b"\xff" * 128
"""Sign byte of a number, indexed by its first byte."""

_PLAIN_BYTES_MAX: Final = 1 << 16


class PlainGet:
    """Limits of one get, and the readable range of the log."""

    __slots__ = (
        "_begin",
        "_bytes_max",
        "_cached_from",
        "_end",
        "_far_bytes_max",
        "_far_count_max",
        "_file_bytes",
        "count_max",
    )

    def __init__(self, log: ReadableLog, max_count: int, limits: GetLimits) -> None:
        self._begin, self._end = log.min_offset(), log.end_offset
        self._cached_from = self._end - limits.in_memory_bytes
        self._file_bytes = limits.log_file_bytes
        self._bytes_max = limits.memory_bytes_max
        self.count_max = min(max_count, limits.memory_count_max)
        self._far_bytes_max = limits.disk_bytes_max
        self._far_count_max = min(max_count, limits.disk_count_max)

    def everything(self, units: Units, queue_offset: int) -> GetResult | None:
        """Return the messages of the first units, or None for an unusual case.

        Pass one unit more than `count_max`, because the position of the next record matters.
        """
        if len(units) < UNIT_BYTES:
            return None
        cached_from = self._cached_from
        is_far = _HEAD.unpack_from(units)[0] < cached_from
        count_max = self._far_count_max if is_far else self.count_max
        count = min(count_max, len(units) // UNIT_BYTES)
        if count < 1 or count_max > self.count_max:
            return None
        numbers = _places(count).unpack_from(units)
        starts, sizes = numbers[::2], numbers[1::2]
        place = count * UNIT_BYTES
        following = _HEAD.unpack_from(units, place)[0] if len(units) > place else starts[-1]
        if min(sizes) <= 0 or not is_far == (following < cached_from) == (starts[-1] < cached_from):
            return None
        bytes_max = self._far_bytes_max if is_far else self._bytes_max
        result = self._result(starts, sizes, queue_offset + count, bytes_max)
        if result is not None:
            result.is_far_behind = is_far
        return result

    def of_tags(self, units: Units, queue_offset: int, codes: Set[int]) -> GetResult | None:
        """Return the messages with one of these tags codes, or None for an unusual case."""
        unit_count, missing = len(units) // UNIT_BYTES, self.count_max
        if unit_count and _HEAD.unpack_from(units)[0] < self._cached_from:
            return None
        found: list[tuple[int, int]] = []
        examined, block = 0, missing
        # A comparison takes a third of the time of a set lookup.
        is_wanted = codes.__contains__ if len(codes) != 1 else next(iter(codes)).__eq__
        while examined < unit_count and missing > 0:
            block = min(block, unit_count - examined)
            first = examined * UNIT_BYTES
            part = bytes(units[first : first + block * UNIT_BYTES])
            if not _is_plain(part, block):
                return None
            hits = map(is_wanted, _tags(block).unpack(part))
            places = [*compress(range(0, len(part), UNIT_BYTES), hits)]
            if len(places) >= missing:
                del places[missing:]
                block = places[-1] // UNIT_BYTES + 1
            found += map(_HEAD.unpack_from, repeat(part), places)
            examined += block
            missing = self.count_max - len(found)
            block = min(4 * block, missing * examined // max(len(found), 1) + 8)
        if not found:
            is_none = examined == unit_count > 0
            next_offset = queue_offset + examined
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, next_offset) if is_none else None
        starts, sizes = zip(*found, strict=True)
        if min(sizes) <= 0:
            return None
        # An unwanted record may be a large one.
        return self._result(
            starts, sizes, queue_offset + examined, self._bytes_max - _PLAIN_BYTES_MAX
        )

    def _result(
        self, starts: Sequence[int], sizes: Sequence[int], next_offset: int, bytes_max: int
    ) -> GetResult | None:
        """Return the result for these messages, or None for an unusual case."""
        total = sum(sizes)
        ends = (*map(add, starts, sizes),)
        behind = starts[1:]
        low, high = starts[0], ends[-1]
        if (
            low < self._begin
            or high > self._end
            or total > bytes_max
            or low // self._file_bytes != (high - 1) // self._file_bytes
        ):
            return None
        if ends[:-1] == behind:
            runs = [(low, high)]
        else:
            if not all(map(lt, ends, behind)):
                gaps = [*map(sub, behind, ends)]
                if min(gaps) < 0:
                    return None
                starts = [low, *compress(behind, gaps)]
                ends = (*compress(ends, gaps), high)
            runs = [*zip(starts, ends, strict=True)]
        return GetResult(
            _FOUND,
            next_offset,
            runs=runs,
            count=len(sizes),
            body_bytes=total,
            span=(low, high),
        )


def _is_plain(units: bytes, count: int) -> bool:
    """Return whether all tags codes are sign-extended 32-bit hashes and no record is large.

    The check compares one byte of all units at a time, which takes a tenth of the time for numbers.
    """
    sign = units[12::UNIT_BYTES]
    return (
        sign == units[13::UNIT_BYTES] == units[14::UNIT_BYTES] == units[15::UNIT_BYTES]
        and sign == units[16::UNIT_BYTES].translate(_SIGNS)
        and units[8::UNIT_BYTES].count(0) == units[9::UNIT_BYTES].count(0) == count
    )


@lru_cache(maxsize=256)
def _places(count: int) -> Struct:
    """Return the layout of `count` units without tags codes."""
    return Struct(">" + "qi8x" * count)


@lru_cache(maxsize=256)
def _tags(count: int) -> Struct:
    """Return the layout of the low 32 bits of the tags codes of `count` units."""
    return Struct(">" + "16xi" * count)
