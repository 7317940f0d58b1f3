"""A get in the usual case: every unit is right, all records lie in one file of the log, in memory.

The units are taken apart in columns, whole blocks by one call, and what is asked of each record is
asked of the smallest and the largest. Where the answer is not plain — a batch that would become too
large, records at the edge of the log or no longer taken for cached, a tags code that is not just a
hash — nothing is decided here: `get_message` goes through the units one by one.

Measured, one core, 32 messages of which none are neighbours: 6 µs, against 11 µs.
"""

from collections.abc import Sequence, Set
from functools import lru_cache
from itertools import compress
from operator import add, sub
from struct import Struct
from typing import Final

from storage.queues.consume_queue import UNIT_BYTES
from storage.reading.get_result import GetLimits, GetResult, GetStatus, ReadableLog

Units = bytes | bytearray | memoryview

_FOUND: Final = GetStatus.FOUND
_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1


class PlainGet:
    """The limits of one get, and what of the log it may hand out."""

    __slots__ = ("_begin", "_bytes_max", "_cached_from", "_end", "_file_bytes", "count_max")

    def __init__(self, log: ReadableLog, max_count: int, limits: GetLimits) -> None:
        self._begin, self._end = log.min_offset(), log.end_offset
        self._cached_from = self._end - limits.in_memory_bytes
        self._file_bytes = limits.log_file_bytes
        self._bytes_max = limits.memory_bytes_max
        self.count_max = min(max_count, limits.memory_count_max)

    def everything(self, units: Units, queue_offset: int) -> GetResult | None:
        """The messages of the first units; None where they have to be looked at one by one."""
        count = min(self.count_max, len(units) // UNIT_BYTES)
        if count < 1:
            return None
        numbers = _places(count).unpack_from(units)
        starts, sizes = numbers[::2], numbers[1::2]
        if starts[0] < self._cached_from or min(sizes) <= 0:
            return None
        return self._result(starts, sizes, queue_offset + count, room=0)

    def of_tags(self, units: Units, queue_offset: int, codes: Set[int]) -> GetResult | None:
        """Those of them that have one of these tags codes; None as above."""
        unit_count, missing = len(units) // UNIT_BYTES, self.count_max
        starts: list[int] = []
        sizes: list[int] = []
        examined, largest, block = 0, 0, missing
        while examined < unit_count and missing > 0:
            block = min(block, unit_count - examined)
            numbers = _units(block).unpack_from(units, examined * UNIT_BYTES)
            tags, seen = numbers[2::3], numbers[1::3]
            largest = max(largest, *seen)
            if (
                min(tags) < _INT_MIN
                or max(tags) > _INT_MAX
                or min(seen) <= 0
                or min(numbers[::3]) < self._cached_from
            ):
                return None
            hits = [*map(codes.__contains__, tags)]
            if hits.count(True) >= missing:
                block = _place_of(hits, missing) + 1
                del hits[block:]
            starts += compress(numbers[::3], hits)
            sizes += compress(seen, hits)
            examined += block
            missing = self.count_max - len(starts)
            block *= 2
        if not starts:
            is_none = examined == unit_count > 0
            next_offset = queue_offset + examined
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, next_offset) if is_none else None
        return self._result(starts, sizes, queue_offset + examined, room=largest)

    def _result(
        self, starts: Sequence[int], sizes: Sequence[int], next_offset: int, room: int
    ) -> GetResult | None:
        """These messages, if nothing speaks against them; `room` for one more is left."""
        total = sum(sizes)
        ends = [*map(add, starts, sizes)]
        behind = starts[1:]
        gaps = [*map(sub, behind, ends)]
        least = min(gaps, default=1)
        low, high = starts[0], ends[-1]
        if (
            least < 0
            or low < self._begin
            or high > self._end
            or total + room > self._bytes_max
            or low // self._file_bytes != (high - 1) // self._file_bytes
        ):
            return None
        if not least:
            starts = [low, *compress(behind, gaps)]
            ends = [*compress(ends, gaps), high]
        return GetResult(
            _FOUND,
            next_offset,
            runs=[*zip(starts, ends, strict=True)],
            count=len(sizes),
            body_bytes=total,
            span=(low, high),
        )


def _place_of(hits: Sequence[bool], number: int) -> int:
    """Where in `hits` the true one of this number, from 1 on, is."""
    place = -1
    for _ in range(number):
        place = hits.index(True, place + 1)
    return place


@lru_cache(maxsize=256)
def _places(count: int) -> Struct:
    """So many units without their tags codes."""
    return Struct(">" + "qi8x" * count)


@lru_cache(maxsize=256)
def _units(count: int) -> Struct:
    return Struct(">" + "qiq" * count)
