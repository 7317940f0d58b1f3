"""Get over unverified units, or with a filter that needs more than units.

Each unit is compared with its record before it counts, even if its tag is not wanted. The batch
ends before the first unit that disagrees. If that is the very first unit, the result is IN_DOUBT,
and the caller has it verified. So damaged data is never returned, no message behind a flipped bit
is lost, and every answer makes progress.
"""

from typing import Final, Protocol

from protocol.message import scan_head
from protocol.properties import parse
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.reading.get_result import GetLimits, GetResult, GetStatus, ReadableLog
from storage.reading.page_probe import PageProbe
from storage.reading.unit_check import UnitCheck

READ_BYTES_MAX: Final = 1 << 20
"""Maximum record bytes read by one call, except for the first record.

A filter may examine 800 records of any size.
"""
READ_COUNT_MAX: Final = 1_000
"""Maximum records read by one call for a filter: 10 ms."""
RECORD_WEIGHT: Final = 512
"""Weight of a record besides its bytes: a short one takes 8 µs."""
PROPERTIES_WEIGHT: Final = 4
"""Extra weight of properties: a filter takes 1.5 ms for thousands of names in one record."""
EXPRESSION_WEIGHT: Final = 4
"""Weight of a character of a filter's expression, in record bytes."""


class Damaged(Protocol):
    """Access to the damaged ranges of the commit log."""

    @property
    def ranges(self) -> tuple[tuple[int, int, str], ...]: ...

    def overlaps(self, start: int, end: int) -> bool: ...


class CheckedGet:
    """One get; call `collect` once."""

    def __init__(
        self,
        queue: ConsumeQueue,
        log: ReadableLog,
        limits: GetLimits,
        damage: Damaged | None,
        probe: PageProbe | None,
        *,
        verified: bool,
    ) -> None:
        self._queue = queue
        self._log = log
        self._limits = limits
        self._damage = damage
        self._probe = probe
        self._verified = verified
        self._check = UnitCheck(queue.topic, queue.queue_id, limits.delay_levels)
        self._log_begin, self._log_end = log.min_offset(), log.end_offset
        self._cached_from = self._log_end - limits.in_memory_bytes
        self._runs: list[tuple[int, int]] = []
        self._count = self._total = self._read_count = self._read_bytes = 0

    def collect(
        self,
        units: bytes | bytearray | memoryview,
        queue_offset: int,
        max_count: int,
        wanted: MessageFilter | None,
        filter_bytes_max: int | None = None,
    ) -> GetResult:
        """Return the messages of these units; `queue_offset` is that of the first unit."""
        reads_all = wanted is not None and wanted.matches is not None
        bytes_max = READ_BYTES_MAX
        if reads_all and filter_bytes_max is not None:
            bytes_max = min(bytes_max, filter_bytes_max)
        checked = max(0, self._queue.verified_from - queue_offset)
        may_read = len(units) // UNIT.size if wanted is not None else max(1, max_count)
        may_read = min(may_read, READ_COUNT_MAX)
        if self._probe is not None:
            ranges = self._ranges(units, may_read if reads_all else min(may_read, checked))
            if cold := self._probe.cold_records(ranges):
                return GetResult(GetStatus.COLD, queue_offset, cold=cold)
        status = GetStatus.NO_MATCHED_MESSAGE
        examined = physical_offset = 0
        for unit in UNIT.iter_unpack(units):
            physical_offset, size, _ = unit
            if self._is_full(physical_offset, size, max_count):
                break
            is_checked = examined < checked
            has_read_all = self._read_count >= may_read or self._read_bytes + size > bytes_max
            if has_read_all and examined and (is_checked or reads_all):
                break
            verdict = self._judge(unit, queue_offset + examined, wanted, is_checked=is_checked)
            if verdict is GetStatus.IN_DOUBT:
                if self._is_gone(units, examined):
                    verdict = GetStatus.MESSAGE_WAS_REMOVING
                elif self._verified and not examined:
                    verdict = self._judge_settled(unit, wanted)
                else:
                    break
            examined += 1
            if verdict is GetStatus.FOUND:
                self._take(physical_offset, size)
            elif not self._count:
                status = verdict
        if not examined:
            return GetResult(GetStatus.IN_DOUBT, queue_offset)
        return GetResult(
            GetStatus.FOUND if self._count else status,
            queue_offset + examined,
            runs=self._runs,
            count=self._count,
            body_bytes=self._total,
            is_far_behind=physical_offset < self._cached_from,
            read_bytes=self._read_bytes + RECORD_WEIGHT * self._read_count,
        )

    def _judge(
        self,
        unit: tuple[int, int, int],
        offset: int,
        wanted: MessageFilter | None,
        *,
        is_checked: bool,
    ) -> GetStatus:
        """Return FOUND for one unit, or why it yields no message."""
        physical_offset, size, code = unit
        if self._is_damaged(physical_offset, size):
            return GetStatus.NO_MATCHED_MESSAGE
        record = self._record(physical_offset, size)
        is_wanted = wanted is None or wanted.wants_unit(code, self._queue)
        if record is None:
            if is_checked:
                return GetStatus.IN_DOUBT
            return GetStatus.MESSAGE_WAS_REMOVING if is_wanted else GetStatus.NO_MATCHED_MESSAGE
        asks_record = is_wanted and wanted is not None and wanted.matches is not None
        if is_checked or asks_record:
            self._read_count += 1
            self._read_bytes += size
        if is_checked and not self._check.agrees(
            record, physical_offset, code, offset, with_body=is_wanted
        ):
            return GetStatus.IN_DOUBT
        if is_wanted and (wanted is None or self._matches(record, wanted)):
            return GetStatus.FOUND
        return GetStatus.NO_MATCHED_MESSAGE

    def _judge_settled(self, unit: tuple[int, int, int], wanted: MessageFilter | None) -> GetStatus:
        """Judge a unit that a verification has left unchanged.

        A whole message of this queue is returned, even if misplaced; anything else is skipped.
        """
        physical_offset, size, code = unit
        record = self._record(physical_offset, size)
        if record is None or not self._check.is_of_queue(record, physical_offset):
            return GetStatus.NO_MATCHED_MESSAGE
        if wanted is None or (
            wanted.wants_unit(code, self._queue) and self._matches(record, wanted)
        ):
            return GetStatus.FOUND
        return GetStatus.NO_MATCHED_MESSAGE

    def _is_full(self, physical_offset: int, size: int, max_count: int) -> bool:
        """Return whether the batch ends before this message; it has at least one message."""
        if not self._count:
            return False
        limits = self._limits
        if physical_offset < self._cached_from:
            count_max, bytes_max = limits.disk_count_max, limits.disk_bytes_max
        else:
            count_max, bytes_max = limits.memory_count_max, limits.memory_bytes_max
        return self._count >= min(max_count, count_max) or self._total + size > bytes_max

    def _is_in_log(self, physical_offset: int, size: int) -> bool:
        end = physical_offset + size
        file_end = physical_offset + self._limits.log_file_bytes
        file_end -= physical_offset % self._limits.log_file_bytes
        return (
            size > 0 and self._log_begin <= physical_offset and end <= min(self._log_end, file_end)
        )

    def _is_damaged(self, physical_offset: int, size: int) -> bool:
        damage = self._damage
        return damage is not None and damage.overlaps(
            physical_offset, physical_offset + max(size, 1)
        )

    def _record(self, physical_offset: int, size: int) -> memoryview | None:
        """Return the record of a unit, or None if it is not within one file of the log."""
        if not self._is_in_log(physical_offset, size):
            return None
        return self._log.view(physical_offset, size)

    def _is_gone(self, units: bytes | bytearray | memoryview, number: int) -> bool:
        """Return whether this record and the next one lie before the log, so their file is deleted.

        A unit that points before the log while the next one does not is doubtful.
        """
        start = number * UNIT.size
        pair = UNIT.iter_unpack(units[start : start + 2 * UNIT.size])
        return all(offset < self._log_begin and size > 0 for offset, size, _ in pair)

    def _matches(self, record: memoryview, wanted: MessageFilter) -> bool:
        """Return whether the filter accepts the record; errors reject it, as in 4.9.7."""
        if wanted.matches is None:
            return True
        try:
            properties = scan_head(record, 0).properties
            self._read_bytes += PROPERTIES_WEIGHT * len(properties)
            self._read_bytes += EXPRESSION_WEIGHT * wanted.chars
            return bool(wanted.matches(parse(properties)))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return False

    def _take(self, physical_offset: int, size: int) -> None:
        """Add a message to the result."""
        runs, end = self._runs, physical_offset + size
        if runs and runs[-1][1] == physical_offset and self._continues(end, size):
            runs[-1] = runs[-1][0], end
        else:
            runs.append((physical_offset, end))
        self._count += 1
        self._total += size

    def _ranges(self, units: bytes | bytearray | memoryview, count: int) -> list[tuple[int, int]]:
        """Return the log ranges of the first `count` units that exist and that one call reads.

        Adjacent records form one range.
        """
        ranges: list[tuple[int, int]] = []
        total = 0
        for physical_offset, size, _ in UNIT.iter_unpack(units):
            if not self._is_in_log(physical_offset, size) or self._is_damaged(
                physical_offset, size
            ):
                continue
            total += size
            count -= 1
            if count < 0 or (total > READ_BYTES_MAX and ranges):
                break
            end = physical_offset + size
            if ranges and ranges[-1][1] == physical_offset and self._continues(end, size):
                ranges[-1] = ranges[-1][0], end
            else:
                ranges.append((physical_offset, end))
        return ranges

    def _continues(self, end: int, size: int) -> bool:
        """Return whether the record that ends at `end` begins after the first byte of its file."""
        return (end - size) % self._limits.log_file_bytes != 0
