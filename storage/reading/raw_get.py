"""Bulk reads of a queue: its units, and the log pieces that contain their records.

Only units are read, few of them for a dense queue; the client compares records with units. A queue
is dense if little data of other queues lies between its records. Sending this data is then cheaper
than skipping it, and the answer is one piece. Clients without permission for other queues' records
get pieces without gaps.

Measured (docs/decisions/0015): skipping between two records costs the broker about as much as 1 KiB
of unneeded data costs both ends.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from operator import eq
from sys import byteorder
from typing import Final

from protocol.raw_records import UNITS_ALONE_MAX, UNITS_MAX, piece_table
from storage.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from storage.reading.get_result import ReadableLog
from storage.reading.page_probe import ColdPart, PageProbe

GAP_BYTES: Final = 1024
"""Foreign bytes between two records that are sent along, on average or at one place."""

PIECES_MAX: Final = 512
"""Maximum pieces of one answer: about half a millisecond of event loop time."""

JOINED_BYTES_MAX: Final = 2 << 10
"""Average piece size below which cached pieces are joined.

The copy costs less than many socket buffers.
"""

_SIZE_AT: Final = 2  # third of the five 4-byte words of a unit, behind the physical offset
_UNIT_WORDS: Final = 5
_WORD: Final = "i"
assert array(_WORD).itemsize * _UNIT_WORDS == UNIT_BYTES


@dataclass(slots=True)
class RawPart:
    """Answer to a bulk read; `cold` lists parts to read from the disk first."""

    next_offset: int
    units: bytes = b""
    table: bytes = b""
    views: list[memoryview] = field(default_factory=list)
    """Pieces, uncopied; empty if they are `joined`."""
    joined: bytes = b""
    """Copy of all pieces, if they are small and cached."""
    record_bytes: int = 0
    cold: list[ColdPart] = field(default_factory=list)

    @property
    def unit_count(self) -> int:
        return len(self.units) // UNIT_BYTES


def raw_units(queue: ConsumeQueue, first: int, end: int, probe: PageProbe | None = None) -> RawPart:
    """Return units [first, end), at most as many as one answer allows.

    The queue must have the first unit.
    """
    return _units(queue, first, min(end - first, UNITS_ALONE_MAX), probe)


def raw_records(
    queue: ConsumeQueue,
    log: ReadableLog,
    first: int,
    end: int,
    bytes_max: int,
    log_file_bytes: int,
    probe: PageProbe | None = None,
    *,
    gap_bytes: int = GAP_BYTES,
) -> RawPart:
    """Return units like `raw_units` with their records, at most `bytes_max` of the log.

    The first record may be longer. With a `probe`, cold bytes are not touched. With `gap_bytes` 0,
    the pieces contain only records that units point at.
    """
    part = _units(queue, first, min(end - first, UNITS_MAX), probe)
    if part.cold or not part.units:
        return part
    there = _Log(log.min_offset(), log.end_offset, log_file_bytes)
    found = _dense(part.units, there, bytes_max, gap_bytes)
    found = found or _sparse(part.units, there, bytes_max, gap_bytes)
    lows, highs = found.lows, found.highs
    if probe is not None and (cold := probe.cold_records([*zip(lows, highs, strict=True)])):
        part.cold = list(cold)
        return part
    if found.count < part.unit_count:
        part.next_offset = first + found.count
        part.units = part.units[: found.count * UNIT_BYTES]
    part.table = piece_table(lows, highs)
    part.record_bytes = sum(highs) - sum(lows)
    if probe is not None and part.record_bytes < JOINED_BYTES_MAX * len(lows):
        part.joined = b"".join([bytes(view) for view in _views(log, found, log_file_bytes)])
    else:
        part.views = [*_views(log, found, log_file_bytes)]
    return part


def _views(log: ReadableLog, found: "_Found", file_bytes: int) -> Iterator[memoryview]:
    """Yield the pieces, uncopied, as slices of one view per file: 0.2 µs each."""
    first = limit = 0
    span = memoryview(b"")
    for low, high in zip(found.lows, found.highs, strict=True):
        if low >= limit:
            first, limit = low, low - low % file_bytes + file_bytes
            last = bisect_left(found.lows, limit) - 1
            span = log.view(first, found.highs[last] - first)
        yield span[low - first : high - first]


def _units(queue: ConsumeQueue, first: int, count: int, probe: PageProbe | None) -> RawPart:
    if probe is not None and (cold := probe.cold_units(queue, first, count)):
        return RawPart(first, cold=list(cold))
    units = bytes(queue.units(first, count))
    if units:
        return RawPart(first + len(units) // UNIT_BYTES, units)
    # A hole in the queue's files: its messages are lost.
    return RawPart(min(queue.next_file_offset(first), first + count))


@dataclass(frozen=True, slots=True)
class _Log:
    """Readable range of the log."""

    begin: int
    end: int
    file_bytes: int

    def has(self, start: int, size: int) -> bool:
        return size > 0 and start >= self.begin and start + size <= self.end_of_file(start)

    def end_of_file(self, start: int) -> int:
        """Return the end of the file that contains `start`, or of the log."""
        return min(self.end, start - start % self.file_bytes + self.file_bytes)


@dataclass(frozen=True, slots=True)
class _Found:
    """Number of units covered, and their pieces [low, high) in log order.

    Two lists of numbers: one object per piece would trigger the garbage collector after every other
    answer, with pauses of up to 50 ms.
    """

    count: int
    lows: list[int]
    highs: list[int]


def _dense(units: bytes, log: _Log, bytes_max: int, gap_bytes: int) -> _Found | None:
    """Return one piece, or None if the queue is not dense."""
    low, first_size, _ = UNIT.unpack_from(units)
    if not log.has(low, first_size):
        return None
    limit = min(low + bytes_max, log.end_of_file(low))
    count, above = 1, len(units) // UNIT_BYTES + 1
    high = low + first_size
    while above - count > 1:
        middle = (count + above) // 2
        start, size, _ = UNIT.unpack_from(units, (middle - 1) * UNIT_BYTES)
        if low <= start and start + size <= limit:
            count, high = middle, start + size
        else:
            above = middle
    if count < len(units) // UNIT_BYTES and high - low <= bytes_max // 2:
        return None  # the next record is far away: most of the answer would be empty
    words = array(_WORD, units[: count * UNIT_BYTES])
    if byteorder == "little":
        words.byteswap()
    if gap_bytes == 0:  # a sum would count a record named twice as foreign data
        is_dense = _are_neighbours(words, count)
    else:
        own = sum(words[_SIZE_AT::_UNIT_WORDS])
        is_dense = high - low - own <= (count - 1) * gap_bytes
    return _Found(count, [low], [high]) if is_dense else None


def _are_neighbours(words: "array[int]", count: int) -> bool:
    """Return whether each record begins where the previous one ends."""
    # All in C. A record at a multiple of 2 GiB within a file wrongly yields False.
    highs, lows = words[::_UNIT_WORDS], words[1::_UNIT_WORDS]
    ends = accumulate(words[_SIZE_AT::_UNIT_WORDS], initial=lows[0])
    return highs.count(highs[0]) == count and all(map(eq, ends, lows))


def _sparse(units: bytes, log: _Log, bytes_max: int, gap_bytes: int) -> _Found:
    """Return pieces without small gaps between them.

    Units without a record have no piece. A unit that points backwards ends the answer.
    """
    lows: list[int] = []
    highs: list[int] = []
    examined = low = high = limit = total = 0
    near = -1
    begin, log_end, file_bytes = log.begin, log.end, log.file_bytes
    # One loop without calls of our functions: 0.7 → 0.5 µs per unit.
    for start, size, _ in UNIT.iter_unpack(units):
        end = start + size
        if low <= start <= near and end <= limit:
            if end > high:
                total += end - high
                if total > bytes_max:
                    break
                high, near = end, end + gap_bytes
        elif size > 0 and begin <= start and end <= log_end:
            if start < low:
                break
            file_end = start - start % file_bytes + file_bytes
            if end <= file_end:
                total += size
                if near >= 0:
                    if total > bytes_max or len(lows) + 1 == PIECES_MAX:
                        break
                    lows.append(low)
                    highs.append(high)
                low, high, near, limit = start, end, end + gap_bytes, min(file_end, log_end)
        examined += 1
    if near >= 0:
        lows.append(low)
        highs.append(high)
    return _Found(examined, lows, highs)
