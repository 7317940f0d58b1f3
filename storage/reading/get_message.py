"""Get for a pull: status, corrected offset and stored records.

Verified units, appended by this process or checked by the scrubber, are used without reading
records. They are processed in whole blocks (plain_get.py), or else in one pass without an object
per message. Older units are compared with their records, in one pass if they are regular.
Everything else goes through checked_get.py.

Source: store/DefaultMessageStore.java (getMessage, isTheBatchFull, checkInDiskByCommitOffset).
"""

from typing import Final

from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.reading.checked_get import READ_BYTES_MAX, CheckedGet, Damaged
from storage.reading.get_result import GetLimits, GetResult, GetStatus, ReadableLog
from storage.reading.page_probe import PageProbe
from storage.reading.plain_get import PlainGet
from storage.reading.unit_check import UnitCheck

__all__ = ["GetLimits", "GetResult", "GetStatus", "ReadableLog", "get_message"]

EXAMINED_BYTES_MIN = 16_000
"""Unit bytes examined by one call: at least this, or 20 per requested message."""
_EXAMINED_UNITS_MIN: Final = EXAMINED_BYTES_MIN // UNIT.size
EXAMINED_UNITS_MAX: Final = 4_096
"""Maximum units examined by one call: a request may name billions of messages."""
_ALL: Final = MessageFilter()


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


def _overlaps(units: bytes | bytearray | memoryview, damage: Damaged) -> bool:
    """Return whether one of these units, in log order, may lie in a damaged range."""
    if not damage.ranges:
        return False
    first, last = UNIT.unpack_from(units), UNIT.unpack_from(units, len(units) - UNIT.size)
    return damage.overlaps(first[0], last[0] + last[1])


def _collect(
    units: bytes | bytearray | memoryview,
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
