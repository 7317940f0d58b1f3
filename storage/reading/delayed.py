"""Due messages of one delay level, read from SCHEDULE_TOPIC_XXXX.

Queue n holds the messages of level n + 1 in arrival order. The tags code of a unit is the due time
in ms: the store timestamp plus the level's delay.

A message due later than the level's delay from now waits; it is never delivered early:

* If its store timestamp is not in the future, the level had another delay at that time, or is no
  longer configured. The message waits until the due time in its unit.
* If its store timestamp is in the future, the clock was set back. The message arrived before this
  read and before the messages behind it. It therefore waits until one of these is due, or at most
  for its delay on the monotonic clock.

4.9.7 delivers such messages at once.

Messages behind one that waits may be due earlier, if the level had a longer delay before. They do
not wait for it: it is postponed.

A timer (protocol/timers.py) is due at a time of its own, which the record names. `read_timers`
reads timers whose time has come, before the turn of the level's queue. `read` skips those that are
done. A timer whose turn comes first is read like the other messages; it may not be due then.

A unit that disagrees with its record is in doubt. It must be verified before it may be skipped,
because its message may be intact behind a flipped bit.

Source: store/schedule/ScheduleMessageService.java (DeliverDelayedMessageTimerTask).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from protocol.delay_levels import is_due_time
from protocol.java_numbers import NumberFormatError, int_in
from protocol.message import MessageRecord, RecordError
from protocol.properties import REAL_QID, REAL_TOPIC, TAGS
from protocol.timers import due_of
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.dispatching.dispatch import index_keys, property_of, tags_code
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import head_of, message_of
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.consume_queue_ext import is_address
from storage.reading.page_probe import ColdPart, PageProbe
from storage.tables.ahead_set import AheadSet

_REAL_TOPIC, _REAL_QID, _TAGS = (
    f"\x02{name}\x01".encode() for name in (REAL_TOPIC, REAL_QID, TAGS)
)
BATCH_COUNT: Final = 128
"""Maximum messages of one read; with delivery, they take 2 to 4 ms of the event loop."""
BATCH_BYTES: Final = 1 << 20
"""Maximum record bytes of one read, except for the first record."""

_INT_MAX: Final = (1 << 31) - 1

Far: TypeAlias = Literal["", "clock", "settings"]
"""Cause of a due time that is later than the level's delay from now."""


class DueMessage(NamedTuple):
    """Message that is due for delivery to its real topic."""

    queue_offset: int
    """Queue offset in SCHEDULE_TOPIC_XXXX."""
    record: MessageRecord
    topic: str
    queue_id: int
    tags_code: int
    keys: tuple[bytes, ...]
    due_ms: int = 0
    """Time of delivery of a timer, which may be in the future; 0 for other messages."""


@dataclass(slots=True)
class Due:
    """Result of one read of a delay level."""

    next_offset: int
    """Next queue offset; earlier messages are in `messages` or `skipped`."""
    messages: list[DueMessage] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Queue offset and reason of messages that cannot be delivered."""
    wait_ms: int | None = 0
    """Milliseconds until the message at `next_offset` is due; None at the end of the queue."""
    cold: Sequence[ColdPart] = ()
    """Parts to read from the disk first; the other fields then report nothing due."""
    in_doubt: bool = False
    """Whether the unit at `next_offset` disagrees with its record."""
    far: Far = ""
    """Cause of the late due time of the message at `next_offset`."""
    postponed: list[tuple[int, int]] = field(default_factory=list)
    """Due time and queue offset of messages below `next_offset` that wait while others pass."""
    missing: list[int] = field(default_factory=list)
    """Queue offsets of timers whose units are not there yet."""


@dataclass(slots=True)
class _Seen:
    """Time when messages with future store timestamps were first seen."""

    end: int = 0
    """Max offset of the queue at that time; messages below it had arrived."""
    monotonic_ms: float = 0.0


class _Moment(NamedTuple):
    """Inputs of one read of a level."""

    now_ms: int
    monotonic_ms: float
    verified: int
    is_patient: bool
    """Whether to read uncached records, too."""
    ahead: AheadSet


class DueReader:
    """Reader of one delay level. One owner."""

    def __init__(
        self, log: CommitLog, damage: Damage, probe: PageProbe, level: int, delay_ms: int
    ) -> None:
        """Initialize the reader; `delay_ms` is 0 for a level that is not configured."""
        self._log = log
        self._damage = damage
        self._probe = probe
        self._queue_id = level - 1
        self._delay_ms = delay_ms
        self._seen = _Seen()

    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        now_ms: int,
        monotonic_ms: float,
        *,
        verified: int = -1,
        cold_reads: int = 0,
        ahead: AheadSet | None = None,
    ) -> Due:
        """Return what is due from `offset` on, an offset within the queue.

        `verified` is an offset verified by the caller: if its message is unreadable, it is skipped.
        Messages in `ahead` are done.
        `cold_reads` counts the caller's reads of cold parts just before: first units, then records.
        After two of them, nothing counts as cold.
        """
        due = Due(offset)
        if cold_reads == 0:
            due.cold = self._probe.cold_units(queue, offset, BATCH_COUNT)
            if due.cold:
                return due
        units = bytes(queue.units(offset, BATCH_COUNT))
        done = AheadSet() if ahead is None else ahead
        moment = _Moment(now_ms, monotonic_ms, verified, cold_reads >= 2, done)
        chosen = self._choose(queue, units, due, moment)
        if due.cold:
            return Due(offset, cold=due.cold)
        if due.in_doubt and not chosen:
            return due
        due.in_doubt = False
        if not moment.is_patient:
            due.cold = self._probe.cold_records(
                [(start, start + size) for _, start, size in chosen]
            )
            if due.cold:
                return Due(offset, cold=due.cold)
        for number, start, size in chosen:
            reason = self._take(due, number, start, size)
            if reason is None:
                continue
            if number != verified and not self._damage.overlaps(start, start + max(size, 1)):
                due.next_offset, due.wait_ms = number, 0
                due.skipped = [each for each in due.skipped if each[0] < number]
                due.in_doubt = not due.messages
                break
            due.skipped.append((number, reason))
        return due

    def _choose(
        self, queue: ConsumeQueue, units: bytes, due: Due, moment: _Moment
    ) -> list[tuple[int, int, int]]:
        """Return queue offset, physical offset and size of due messages; update `due`."""
        chosen: list[tuple[int, int, int]] = []
        number, total, ahead = due.next_offset, 0, moment.ahead
        for start, size, code in UNIT.iter_unpack(units):
            if ahead and number in ahead:
                number += 1
                continue
            due_ms = self._due_ms(queue, code, start)
            wait_ms: float = due_ms - moment.now_ms
            if wait_ms > 0:
                behind = units[(number - due.next_offset + 1) * UNIT.size :]
                if wait_ms > self._delay_ms:
                    place = number, start, size
                    wait_ms = self._far_wait_ms(queue, place, due_ms, behind, due, moment)
                if wait_ms > 0 and due.far != "clock" and self._is_passed(queue, due_ms, behind):
                    due.postponed.append((due_ms, number))
                    due.far, number = "", number + 1
                    continue
            if wait_ms > 0 or due.cold or due.in_doubt:
                due.wait_ms = int(wait_ms) + (wait_ms % 1 > 0)
                break
            if chosen and total + size > BATCH_BYTES:
                break
            total += size
            chosen.append((number, start, size))
            number += 1
        else:
            if not units:  # hole in the queue's files
                number = max(queue.next_file_offset(number), number + 1)
            due.wait_ms = 0 if number < queue.max_offset else None
        due.next_offset = number
        return chosen

    def _far_wait_ms(
        self,
        queue: ConsumeQueue,
        place: tuple[int, int, int],
        due_ms: int,
        behind: bytes,
        due: Due,
        moment: _Moment,
    ) -> float:
        """Return the wait for a message that is due later than the level's delay.

        `place` is its queue offset, physical offset and size; `behind` are the units behind its
        own. `due` receives the cause of the late due time, or what prevents finding it.
        """
        (number, start, size), now_ms = place, moment.now_ms
        if not moment.is_patient and size > 0:
            due.cold = self._probe.cold_records([(start, start + size)])
            if due.cold:
                return 0
        try:
            stored_ms = head_of(self._log.view(start, size), start).store_timestamp
        except (OffsetError, RecordError):
            return 0  # `_take` reports the fault
        delay_ms = due_ms - stored_ms
        if not is_due_time(stored_ms, due_ms):
            if number != moment.verified:
                due.in_doubt = True
                return 0
            delay_ms = self._delay_ms
        due.far = "settings" if stored_ms <= now_ms else "clock"
        if stored_ms <= now_ms:
            return stored_ms + delay_ms - now_ms
        if number >= self._seen.end:
            self._seen = _Seen(queue.max_offset, moment.monotonic_ms)
        waits: list[int] = [code - now_ms for _, _, code in UNIT.iter_unpack(behind)]
        return min(
            stored_ms + delay_ms - now_ms,
            self._seen.monotonic_ms + delay_ms - moment.monotonic_ms,
            *(wait_ms for wait_ms in waits if 0 <= wait_ms <= self._delay_ms),
        )

    def _is_passed(self, queue: ConsumeQueue, due_ms: int, behind: bytes) -> bool:
        """Return whether the newest message, or one of those behind, is due before `due_ms`."""
        last = queue.unit(queue.max_offset - 1)
        if last is not None and self._due_ms(queue, last[2], last[0]) < due_ms:
            return True
        codes = (code for _, _, code in UNIT.iter_unpack(behind))
        return any(code < due_ms and not is_address(code) for code in codes)

    def _due_ms(self, queue: ConsumeQueue, code: int, start: int) -> int:
        """Return the due time of a message, wall time in ms; 0 if unknown."""
        if not is_address(code):
            return code
        ext = queue.ext(code)
        if ext is not None:
            return ext.tags_code
        record = self._log.read_record(start)
        return 0 if record is None else record.store_timestamp + self._delay_ms

    def _take(self, due: Due, number: int, start: int, size: int) -> str | None:
        """Add the message at `start`, or return why it is invalid."""
        try:
            if size <= 0 or start < 0:
                return "its unit names no record"
            record = message_of(self._log.view(start, size), start)
        except (OffsetError, RecordError) as error:
            return str(error)
        place = record.topic, record.queue_id, record.queue_offset
        if place != (SCHEDULE_TOPIC, self._queue_id, number):
            return "another record is there"
        raw = b"\x02" + record.properties  # parsing pairs of 32 KiB would take 2 ms
        topic = property_of(raw, _REAL_TOPIC).decode("utf-8", "replace")
        try:
            queue_id = int_in(property_of(raw, _REAL_QID))
        except NumberFormatError:
            queue_id = -1
        if not topic or queue_id < 0:
            due.skipped.append((number, "it names no real topic or queue"))
        elif topic == HALF_TOPIC:
            due.skipped.append((number, "it belongs to a transaction"))
        else:
            code, keys = tags_code(property_of(raw, _TAGS)), index_keys(record.properties)
            due_ms = due_of(record.properties)
            due.messages.append(DueMessage(number, record, topic, queue_id, code, keys, due_ms))
        return None

    def read_timers(
        self, queue: ConsumeQueue, offsets: Sequence[int], turn: int, *, cold_reads: int = 0
    ) -> Due:
        """Return the timers at these queue offsets, and postponed messages below `turn`, in order.

        Other messages and unreadable ones are left out: their turn in the queue comes. `missing`
        of the result has offsets without a unit, which are not dispatched yet.
        """
        due = Due(-1)
        places = []
        for number in offsets:
            if cold_reads == 0 and number < queue.max_offset:
                due.cold = self._probe.cold_units(queue, number, 1)
                if due.cold:
                    return due
            unit = queue.unit(number)
            if unit is None:
                due.missing.append(number)
            else:
                places.append((number, unit[0], unit[1]))
        if cold_reads < 2:
            runs = sorted((start, start + size) for _, start, size in places if size > 0)
            due.cold = self._probe.cold_records(runs)
            if due.cold:
                return Due(-1, cold=due.cold)
        for number, start, size in places:
            count = len(due.messages)
            self._take(due, number, start, size)
            if len(due.messages) > count and not due.messages[-1].due_ms and number >= turn:
                due.messages.pop()
        due.skipped.clear()
        return due
