"""Get for a pull: status, corrected offset and stored records.

Verified units, appended by this process or checked by the scrubber, are used without reading
records. Usually all are valid, and their records lie in one log file, all cached or all on disk.
PlainGet then decodes them in columns, whole blocks per call, and checks limits on the smallest and
the largest value: 6 µs instead of 11 µs for 32 messages, no two adjacent. It leaves other cases to
one pass over the units without an object per message. Examples are a batch over the limits, records
at the edge of the log or of its cached part, and tags codes that are not hashes.

Older units are compared with their records, in one pass if they are regular. Everything else goes
through checked_get.py.

Source: store/DefaultMessageStore.java (getMessage, isTheBatchFull, checkInDiskByCommitOffset).
"""

from collections.abc import Sequence, Set
from functools import lru_cache
from itertools import compress, repeat
from operator import add, lt, sub
from struct import Struct
from typing import Final, TypeAlias

from storage.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.reading.checked_get import READ_BYTES_MAX, CheckedGet, Damaged
from storage.reading.get_result import GetLimits, GetResult, GetStatus, ReadableLog
from storage.reading.page_probe import PageProbe
from storage.reading.unit_check import UnitCheck

__all__ = ["GetLimits", "GetResult", "GetStatus", "ReadableLog", "get_message"]

EXAMINED_BYTES_MIN = 16_000
"""Unit bytes examined by one call: at least this, or 20 per requested message."""
_EXAMINED_UNITS_MIN: Final = EXAMINED_BYTES_MIN // UNIT.size
EXAMINED_UNITS_MAX: Final = 4_096
"""Maximum units examined by one call: a request may name billions of messages."""
_ALL: Final = MessageFilter()

_FOUND: Final = GetStatus.FOUND
_HEAD: Final = Struct(">qi")
"""Fields physical_offset and record_bytes of a unit."""

_SIGNS: Final = bytes(128) + b"\xff" * 128
"""Sign byte of a number, indexed by its first byte."""

_PLAIN_BYTES_MAX: Final = 1 << 16

Units: TypeAlias = bytes | bytearray | memoryview


def get_message(
    queue: ConsumeQueue | None,
    log: ReadableLog,
    queue_offset: int,
    max_count: int,
    wanted: MessageFilter | None,
    limits: GetLimits,
    *,
    damage: Damaged | None = None,
    probe: PageProbe | None = None,
    verified: bool = False,
    filter_bytes_max: int | None = None,
) -> GetResult:
    """Return the messages of a queue from `queue_offset` on.

    The first matching message is returned whatever its size; the others only within the limits. A
    result never crosses a queue file.

    `damage` are the log ranges without messages. With a `probe`, cold bytes are not touched; the
    status is then COLD. With `verified`, the caller has verified the unit at `queue_offset`: a
    readable message is returned now, an unreadable one is skipped. A filter that reads records may
    read `filter_bytes_max`; it reads one record in any case.
    """
    if queue is None:
        return _miss(GetStatus.NO_MATCHED_LOGIC_QUEUE, queue_offset, 0, limits)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        result = _miss(GetStatus.NO_MESSAGE_IN_QUEUE, queue_offset, 0, limits)
    elif queue_offset < low:
        result = _miss(GetStatus.OFFSET_TOO_SMALL, queue_offset, low, limits)
    elif queue_offset == high:
        result = _miss(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, queue_offset, limits)
    elif queue_offset > high:
        result = _miss(GetStatus.OFFSET_OVERFLOW_BADLY, queue_offset, high, limits)
    else:
        if probe is not None and queue_offset < queue.tail_first:
            touched = _unit_count(max_count) if wanted is not None else max(1, max_count)
            if cold := probe.cold_units(queue, queue_offset, touched):
                return GetResult(GetStatus.COLD, queue_offset, cold=cold)
        result = _found(
            queue,
            log,
            queue_offset,
            max_count,
            wanted,
            limits,
            damage,
            probe,
            verified=verified,
            filter_bytes_max=filter_bytes_max,
        )
        if result.runs and not result.views:
            if probe is not None and (cold := probe.cold_records(result.runs)):
                return GetResult(GetStatus.COLD, queue_offset, cold=cold)
            result.views = _views(log, result)
    result.min_offset, result.max_offset = low, high
    return result


def _found(
    queue: ConsumeQueue,
    log: ReadableLog,
    queue_offset: int,
    max_count: int,
    wanted: MessageFilter | None,
    limits: GetLimits,
    damage: Damaged | None,
    probe: PageProbe | None,
    *,
    verified: bool,
    filter_bytes_max: int | None,
) -> GetResult:
    """Choose the way to read an existing offset; the caller adds missing views."""
    tag_codes = None if wanted is None else wanted.tag_codes
    is_verified = queue_offset >= queue.verified_from
    judges_units = wanted is None or (wanted.bits is None and wanted.matches is None)
    unit_count = _unit_count(max_count)
    if is_verified and judges_units:
        plain = PlainGet(log, max_count, limits)
        units = queue.units(queue_offset, plain.count_max + 1 if tag_codes is None else unit_count)
        if units and (damage is None or not _overlaps(units, damage)):
            if tag_codes is None:
                result = plain.everything(units, queue_offset)
            else:
                result = plain.of_tags(units, queue_offset, tag_codes)
            if result is not None:
                return result
    elif wanted is None:
        result = _compared(queue, log, queue_offset, max_count, limits, damage, probe)
        if result is not None:
            return result
    units = queue.units(queue_offset, unit_count)
    if not units:
        following = queue.next_file_offset(queue_offset)
        return _miss(GetStatus.OFFSET_FOUND_NULL, queue_offset, following, limits)
    if is_verified and judges_units and (damage is None or not _overlaps(units, damage)):
        return _collect(units, queue, log, queue_offset, max_count, wanted, limits)
    get = CheckedGet(queue, log, limits, damage, probe, verified=verified)
    return get.collect(units, queue_offset, max_count, wanted, filter_bytes_max)


def _unit_count(max_count: int) -> int:
    """Return how many units are examined for so many messages."""
    return min(max(_EXAMINED_UNITS_MIN, max_count), EXAMINED_UNITS_MAX)


def _compared(
    queue: ConsumeQueue,
    log: ReadableLog,
    queue_offset: int,
    max_count: int,
    limits: GetLimits,
    damage: Damaged | None,
    probe: PageProbe | None,
) -> GetResult | None:
    """Compare unverified units with their records, in the regular case; else return None.

    CheckedGet then judges each unit.
    """
    plain = PlainGet(log, max_count, limits)
    units = queue.units(queue_offset, plain.count_max + 1)
    if not units or (damage is not None and _overlaps(units, damage)):
        return None
    result = plain.everything(units, queue_offset)
    if result is None or result.span is None or result.body_bytes > READ_BYTES_MAX:
        return None
    units = units[: result.count * UNIT.size]
    if probe is not None and (cold := probe.cold_records(result.runs)):
        return GetResult(GetStatus.COLD, queue_offset, cold=cold)
    low, high = result.span
    check = UnitCheck(queue.topic, queue.queue_id, limits.delay_levels)
    if not check.all_agree(units, log.view(low, high - low), low, queue_offset):
        return None
    result.views = _views(log, result)
    return result


def _views(log: ReadableLog, result: GetResult) -> list[memoryview]:
    """Return the runs, uncopied, as slices of one view per file."""
    if result.span is None:
        return [log.view(start, end - start) for start, end in result.runs]
    low, high = result.span
    span = log.view(low, high - low)
    if len(result.runs) == 1:
        return [span]
    return [span[start - low : end - low] for start, end in result.runs]


def _miss(status: GetStatus, asked: int, corrected: int, limits: GetLimits) -> GetResult:
    return GetResult(status, corrected if limits.correct_offsets else asked)


def _overlaps(units: Units, damage: Damaged) -> bool:
    """Return whether one of these units, in log order, may lie in a damaged range."""
    if not damage.ranges:
        return False
    first, last = UNIT.unpack_from(units), UNIT.unpack_from(units, len(units) - UNIT.size)
    return damage.overlaps(first[0], last[0] + last[1])


def _collect(
    units: Units,
    queue: ConsumeQueue,
    log: ReadableLog,
    queue_offset: int,
    max_count: int,
    wanted: MessageFilter | None,
    limits: GetLimits,
) -> GetResult:
    """Collect messages from verified units, without touching records."""
    log_end, log_begin, file_bytes = log.end_offset, log.min_offset(), limits.log_file_bytes
    cached_from = log_end - limits.in_memory_bytes
    count_max, bytes_max = min(max_count, limits.memory_count_max), limits.memory_bytes_max
    tags = wanted or _ALL
    tag_codes = tags.tag_codes
    status = GetStatus.NO_MATCHED_MESSAGE
    runs: list[tuple[int, int]] = []
    count = total = run_start = run_end = run_limit = skip_below = physical_offset = examined = 0
    for physical_offset, size, code in UNIT.iter_unpack(units):
        if physical_offset < skip_below:
            examined += 1
            continue
        if count:
            if physical_offset < cached_from:
                if count >= min(max_count, limits.disk_count_max):
                    break
                if total + size > limits.disk_bytes_max:
                    break
            elif count >= count_max or total + size > bytes_max:
                break
        examined += 1
        if tag_codes is not None and code not in tag_codes and not tags.wants_unit(code, queue):
            status = GetStatus.NO_MATCHED_MESSAGE
            continue
        end = physical_offset + size
        if physical_offset == run_end and end <= run_limit:
            run_end = end
        else:
            file_end = physical_offset + file_bytes - physical_offset % file_bytes
            if physical_offset < log_begin or end > log_end or end > file_end:
                status = GetStatus.MESSAGE_WAS_REMOVING
                skip_below = file_end
                continue
            if run_end > run_start:
                runs.append((run_start, run_end))
            run_start, run_end, run_limit = physical_offset, end, min(log_end, file_end)
        skip_below = 0
        count += 1
        total += size
    if run_end > run_start:
        runs.append((run_start, run_end))
    return GetResult(
        GetStatus.FOUND if count else status,
        queue_offset + examined,
        runs=runs,
        count=count,
        body_bytes=total,
        is_far_behind=physical_offset < cached_from,
    )


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
