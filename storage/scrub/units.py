"""The check of single queue units: which record a unit means, and its repair if it means none.

A record determines its unit, so a wrong unit is rebuilt from its record. A unit with a damaged
record points at the damaged range, which pulls skip. The units around it show where in the log the
record belongs.

It only reads: repairs are collected for the owner of the queues.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from protocol.codes import has_queue_unit
from protocol.delay_levels import is_due_time
from protocol.message import RecordHead
from protocol.topic_names import SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms, entry_of
from storage.files.disk import Disk
from storage.log.damage import Damage
from storage.log.reader import ONE_RECORD_BYTES, Gap, NamedLogReader, record_at, walk
from storage.queues.consume_queue import FILLER_BYTES, UNIT
from storage.queues.queue_units import FILLER
from storage.scrub.unit_reader import UnitReader

QueueKey: TypeAlias = tuple[bytes, int]
"""Topic and queue id."""

Unit: TypeAlias = tuple[int, int, int]
"""Physical offset, record size in bytes, tags code."""

_LIGHT_QUEUE = b"%LMQ%"
"""Queues of 4.9.7 with units for records of other topics, which cannot be checked."""
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
STEP_RECORDS = 32
"""Records walked between two looks at the clock: 0.2 ms."""
_NEIGHBOURS_MAX = 32
"""Distance of the search for a valid unit, which shows where in the log a doubtful one belongs."""
_STRAYS_MAX = 64
_REPAIRED_KEPT = 4096
_SIZE_MAX = FILLER_BYTES - 1


class UnitRepair(NamedTuple):
    """Correct content of a unit."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    tags_code: int


@dataclass(slots=True)
class ScrubCounts:
    record_count: int = 0
    log_bytes: int = 0
    """Bytes walked, gaps included."""
    unit_count: int = 0
    """Units that agree with their records."""
    repaired_count: int = 0
    damaged_count: int = 0
    newer_count: int = 0
    """Records with queue offsets behind the queues' files as of the start."""
    stray_count: int = 0
    """Whole records unknown to their queue: older lives of a topic."""
    unknown_queues: Counter[QueueKey] = field(default_factory=Counter)
    """Records of queues that are missing."""
    shifted_count: int = 0
    """Units of queues that count differently from their records."""
    unconfirmed_count: int = 0
    """Units without a trace of their record in the log."""


@dataclass(slots=True)
class Findings:
    """Findings since the last call."""

    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    repairs: list[UnitRepair] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """One sentence for each repair."""
    unreadable: list[tuple[str, bool]] = field(default_factory=list)
    """Records with numbers that Java cannot parse, and whether 4.9.7 fails at them."""
    verified: dict[QueueKey, int] = field(default_factory=dict)
    """First confirmed or verified unit, up to the start of the round."""


class UnitScrub:
    """Compares units with records. One owner, the only writer of `damage`."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        damage: Damage,
        *,
        log_end: int,
        queue_ends: Mapping[QueueKey, int],
        is_patient: bool = False,
    ) -> None:
        """Create a check; units are in files below `queue_ends`, which is read before `log_end`.

        Pages of the log that the disk cannot read are damage, or raise OSError if `is_patient`.
        """
        self.counts = ScrubCounts()
        self.findings = Findings()
        self.damage = damage
        self.ends = {
            key: end for key, end in queue_ends.items() if not key[0].startswith(_LIGHT_QUEUE)
        }
        self.log = NamedLogReader(disk, config, log_end)
        self.log_min = 0
        self._look = NamedLogReader(disk, config, log_end, ONE_RECORD_BYTES)
        self.log.reads_zeros = self._look.reads_zeros = not is_patient
        self._units = UnitReader(disk, config)
        self._levels = delay_levels_ms(config.message_delay_level)
        self._repaired: dict[tuple[QueueKey, int], int] = {}
        self.find_log_min()

    def find_log_min(self) -> None:
        """Update the start of the log, because its first files may be deleted meanwhile."""
        firsts = self.log.firsts()
        self.log_min = firsts[0] if firsts else self.log.end_offset

    def forget(self) -> None:
        self.find_log_min()
        self._units.forget()
        self.log.forget()
        self._look.forget()

    def close(self) -> None:
        for reader in (self.log, self._look, self._units):
            reader.close()

    def begin_file(self) -> None:
        """Start a file of the log.

        Of records with one queue offset, the last one in a file counts, and the newest file.
        """
        self._repaired.clear()

    # -- a record and its unit ------------------------------------------------------------------

    def agrees(self, key: QueueKey, head: RecordHead) -> bool:
        """Return whether a record is the one that its unit means, perhaps after a repair.

        The record's queue offset is below the end of its queue.
        """
        code = entry_of(head, self._levels).tags_code
        wanted = UNIT.pack(head.physical_offset, head.record_bytes, code)
        raw = self._units.raw(*key, head.queue_offset)
        return raw == wanted or self._is_repaired(key, head, code)

    def is_before_last_unit(self, key: QueueKey, physical_offset: int) -> bool:
        """Return whether a record precedes that of the queue's last unit.

        With a higher queue offset, it belongs to a deleted topic of the same name.
        """
        last = self._units.unit(*key, self.ends[key] - 1) if self.ends[key] else None
        return last is not None and physical_offset < last[0]

    def _is_repaired(self, key: QueueKey, head: RecordHead, code: int) -> bool:
        queue_offset = head.queue_offset
        unit = self._units.unit(*key, queue_offset)
        if unit is None:
            return False
        if unit[:2] == (head.physical_offset, head.record_bytes):
            if self._units.ext_tags_code(*key, unit[2]) == code or _is_due_time(head, unit[2]):
                return True
        elif not self._belongs(key, head, unit):
            return False
        if len(self._repaired) < _REPAIRED_KEPT:
            self._repaired[key, queue_offset] = head.physical_offset
        self._repair(key, queue_offset, unit, (head.physical_offset, head.record_bytes, code))
        return True

    def _belongs(self, key: QueueKey, head: RecordHead, unit: Unit) -> bool:
        """Return whether the unit should mean this record, though it names another offset."""
        meant = self._whole_record(unit[0])
        if meant is not None and meant.physical_offset != head.physical_offset:
            if _says(meant, key, head.queue_offset):
                repaired_to = self._repaired.get((key, head.queue_offset))
                if repaired_to is None or repaired_to > head.physical_offset:
                    return False
            elif self._is_shifted(key, head.queue_offset, meant):
                return False
        start, stop = self._bounds(key, head.queue_offset)
        return start <= head.physical_offset < stop

    # -- single units ---------------------------------------------------------------------------

    def verify_unit(self, key: QueueKey, queue_offset: int, *, walked: bool) -> Iterator[None]:
        """Decide about one unit, in steps; then it is right, or points at a damaged range.

        With `walked`, the gaps of the log around it are known already.
        """
        unit = self._units.unit(*key, queue_offset)
        if unit is None:
            return
        if walked and self._points_at_damage(unit):
            self.counts.damaged_count += 1
            return
        meant = self._record_of(key, queue_offset, unit)
        if meant is not None and self.agrees(key, meant):
            return
        start, stop = self._bounds(key, queue_offset)
        if walked and self._decide(key, queue_offset, start, stop, []):
            return
        strays: list[RecordHead] = []
        yield from self._walk_between(key, queue_offset, start, stop, strays)
        if not self._decide(key, queue_offset, start, stop, strays):
            self._give_up(key, queue_offset)

    def _walk_between(
        self,
        key: QueueKey,
        queue_offset: int,
        start: int,
        stop: int,
        strays: list[RecordHead],
    ) -> Iterator[None]:
        """Search the record between those of the neighbours; note gaps and stray records."""
        for number, item in enumerate(walk(self.log, start, stop)):
            if isinstance(item, Gap):
                self.add_damage(item)
            elif item is not None and has_queue_unit(item.sys_flag):
                if _says(item, key, queue_offset) and self.agrees(key, item):
                    return
                if len(strays) < _STRAYS_MAX and not self._is_confirmed(item):
                    strays.append(item)
            if number % STEP_RECORDS == 0:
                yield

    def _decide(
        self, key: QueueKey, queue_offset: int, start: int, stop: int, strays: list[RecordHead]
    ) -> bool:
        """Decide about a unit; return False without any trace of its record."""
        unit = self._units.unit(*key, queue_offset)
        if unit is None or self._record_of(key, queue_offset, unit) is not None:
            return True
        if self._points_at_damage(unit):
            self.counts.damaged_count += 1
            return True
        there = self._whole_record(unit[0])
        if there is not None and self._is_shifted(key, queue_offset, there):
            self.counts.shifted_count += 1
            return True
        if there is not None and start <= unit[0] < stop and not self._is_confirmed(there):
            self._damage_record(key, queue_offset, there)
            return True
        for gap_start, gap_end, _ in self.damage.ranges:
            if start <= gap_start and gap_end <= stop:
                gap_bytes = min(gap_end - gap_start, _SIZE_MAX)
                self._repair(key, queue_offset, unit, (gap_start, gap_bytes, 0))
                self.counts.damaged_count += 1
                return True
        if strays:
            self._damage_record(key, queue_offset, strays[0])
            place = strays[0].physical_offset, strays[0].record_bytes, 0
            self._repair(key, queue_offset, unit, place)
            return True
        return False

    def _give_up(self, key: QueueKey, queue_offset: int) -> None:
        """Point a unit at its neighbour's record: a duplicate is better than an invalid message."""
        unit = self._units.unit(*key, queue_offset)
        nearest = self._neighbour(key, queue_offset, -1) or self._neighbour(key, queue_offset, 1)
        self.counts.unconfirmed_count += 1
        if unit is not None and nearest is not None:
            code = entry_of(nearest, self._levels).tags_code
            place = nearest.physical_offset, nearest.record_bytes, code
            self._repair(key, queue_offset, unit, place)

    def _damage_record(self, key: QueueKey, queue_offset: int, there: RecordHead) -> None:
        reason = (
            f"the record at {there.physical_offset} says it is message {there.queue_offset} of "
            f"queue {there.queue_id} of {_text(there.topic)}, but it is message {queue_offset} of "
            f"queue {key[1]} of {_text(key[0])}"
        )
        end = there.physical_offset + there.record_bytes
        # It may have been counted as one of a missing queue.
        self.counts.unknown_queues -= Counter(((there.topic, there.queue_id),))
        self.add_damage(Gap(there.physical_offset, end, reason))
        self.counts.damaged_count += 1

    # -- looking things up ----------------------------------------------------------------------

    def is_expired(self, key: QueueKey, queue_offset: int) -> bool:
        """Return whether no file has the unit, or its record expired."""
        unit = self._units.unit(*key, queue_offset) if queue_offset >= 0 else None
        return unit is None or unit[0] < self.log_min or unit[1] == FILLER_BYTES

    def is_filler(self, key: QueueKey, queue_offset: int) -> bool:
        """Return whether no message ever had this number: the queue began behind it."""
        return self._units.raw(*key, queue_offset) == FILLER

    def _points_at_damage(self, unit: Unit) -> bool:
        return unit[1] > 0 and self.damage.overlaps(unit[0], unit[0] + unit[1])

    def _is_confirmed(self, head: RecordHead) -> bool:
        """Return whether the unit that a record names means this record."""
        key = head.topic, head.queue_id
        if not 0 <= head.queue_offset < self.ends.get(key, 0):
            return False
        unit = self._units.unit(*key, head.queue_offset)
        return unit is not None and unit[0] == head.physical_offset

    def _is_shifted(self, key: QueueKey, queue_offset: int, there: RecordHead) -> bool:
        """Return whether the queue counts differently from its records, as after a gap.

        4.9.7 then continues at the queue's end, so the records around differ by as much.
        """
        if (there.topic, there.queue_id) != key or there.queue_offset == queue_offset:
            return False
        for each in (queue_offset - 1, queue_offset + 1):
            unit = self._units.unit(*key, each) if 0 <= each < self.ends[key] else None
            record = None if unit is None else self._whole_record(unit[0])
            if record is not None and _says(record, key, each + there.queue_offset - queue_offset):
                return True
        return False

    def _record_of(self, key: QueueKey, queue_offset: int, unit: Unit) -> RecordHead | None:
        """Return the record of a unit, if it is whole and names the unit itself."""
        head = self._whole_record(unit[0])
        return head if head is not None and _says(head, key, queue_offset) else None

    def _whole_record(self, offset: int) -> RecordHead | None:
        found = record_at(self._look, offset)
        return found if isinstance(found, RecordHead) else None

    def _bounds(self, key: QueueKey, queue_offset: int) -> tuple[int, int]:
        """Return the range of the log for a record with this queue offset."""
        before = self._neighbour(key, queue_offset, -1)
        behind = self._neighbour(key, queue_offset, 1)
        return (
            self.log_min if before is None else before.physical_offset + before.record_bytes,
            self.log.end_offset if behind is None else behind.physical_offset,
        )

    def _neighbour(self, key: QueueKey, queue_offset: int, step: int) -> RecordHead | None:
        """Return the record of the nearest valid unit on one side."""
        for each in range(queue_offset + step, queue_offset + step * (_NEIGHBOURS_MAX + 1), step):
            unit = self._units.unit(*key, each) if 0 <= each < self.ends[key] else None
            if unit is None:
                return None
            if (head := self._record_of(key, each, unit)) is not None:
                return head
        return None

    # -- results --------------------------------------------------------------------------------

    def add_damage(self, gap: Gap) -> None:
        """Note a range of the log that must not be read as records."""
        if self.damage.add(*gap):
            self.findings.damaged.append((gap.start, gap.end, gap.reason))

    def _repair(self, key: QueueKey, queue_offset: int, found: Unit, unit: Unit) -> None:
        if found == unit:
            return
        self._units.patch(*key, queue_offset, UNIT.pack(*unit))
        self.findings.repairs.append(UnitRepair(*key, queue_offset, *unit))
        self.findings.reasons.append(
            f"unit {queue_offset} of queue {key[1]} of {_text(key[0])} was {found}, not {unit}"
        )
        self.counts.repaired_count += 1


def _says(head: RecordHead, key: QueueKey, queue_offset: int) -> bool:
    """Return whether a record itself says that it is this message."""
    return (
        head.queue_offset == queue_offset
        and (head.topic, head.queue_id) == key
        and has_queue_unit(head.sys_flag)
    )


def _is_due_time(head: RecordHead, code: int) -> bool:
    """Return whether a code may be a due time by an earlier messageDelayLevel."""
    return head.topic == _SCHEDULE_TOPIC and is_due_time(head.store_timestamp, code)


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "backslashreplace")
