"""The timers of one delay level: those that wait, those that are done, and their records.

LevelTimers is a plain class, a part of Schedule.

TimerIndex has the pending timers by due time, in memory. A timer costs 8 bytes: its due time within
a bucket of a second or more, and its queue offset in the level's queue. The message itself stays in
the commit log. 10 million timers take 85 to 95 MiB.

    bucket of the due time -> array of  due time in the bucket (20 bits) | queue offset (44 bits)

A bucket is opened when it begins: its timers move to a heap, which gives them in order. Of a bucket
with more than OPENED_AT_ONCE timers, a part moves with each call, the first stored ones first.

TimerScan searches for timers among the waiting messages of a level, after a start.

Owns: nothing; it reads the ends of records.
Receives: ScanTimers from Schedule.
Sends: TimersFound to Schedule.

A timer's record ends with its due time (protocol/timers.py), so one small read tells it from other
delayed messages. A level has at most the messages of its own delay, so no start reads older files.
"""

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import ClassVar

from actors.delays.messages import ScanTimers, TimersFound
from actors.engine.actor import Actor, Where, handles
from actors.sending.appender import InternalRecord
from actors.sending.send_rules import TimerRules
from protocol.timers import DUE_BYTES, TIMER_OUT_MS, LevelTimers, copy_mark, due_of, due_property
from protocol.topic_names import SCHEDULE_TOPIC
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import UNIT
from storage.queues.consume_queue_ext import is_address
from storage.reading.delayed import BATCH_BYTES, BATCH_COUNT, Due, DueMessage
from storage.tables.ahead_set import AheadSet

_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_BUCKET_MS_MIN = 1_000
_BUCKET_MS_MAX = (1 << 20) - 1
_BUCKETS = 86_400
"""Maximum number of buckets for the longest delay of the level, whatever that is."""

OPENED_AT_ONCE = 20_000
"""Timers that move to the heap in one call, some 4 ms; a million may have one due time."""


class TimerIndex:
    """Index of one level. One owner."""

    def __init__(self, delay_ms: int) -> None:
        """Create the index of a level with this delay."""
        self._bucket_ms = min(max(_BUCKET_MS_MIN, -(-delay_ms // _BUCKETS)), _BUCKET_MS_MAX)
        self._buckets: dict[int, array[int]] = {}
        self._begins: list[int] = []
        """Heap of the buckets' numbers."""
        self._open: list[int] = []
        """Heap of timers in open buckets: due time << _OFFSET_BITS | queue offset."""
        self._opened = -1
        """Number of the bucket that is open now; timers of it and of earlier ones are in a heap."""

    def add(self, due_ms: int, offset: int) -> None:
        number, within_ms = divmod(due_ms, self._bucket_ms)
        if number <= self._opened:
            heappush(self._open, due_ms << _OFFSET_BITS | offset)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("Q")
            heappush(self._begins, number)
        bucket.append(within_ms << _OFFSET_BITS | offset)

    def take(self, now_ms: int, count_max: int) -> list[tuple[int, int]]:
        """Remove and return the earliest due timers: due time, queue offset.

        Buckets are opened only while more is wanted, so that a clock set forward costs no pause.
        With fewer than wanted, `next_due_ms` tells whether more are due.
        """
        self._opened = now_ms // self._bucket_ms
        found: list[tuple[int, int]] = []
        waiting = self._open
        end, left = (now_ms + 1) << _OFFSET_BITS, OPENED_AT_ONCE
        while len(found) < count_max:
            if waiting and waiting[0] < end:
                timer = heappop(waiting)
                found.append((timer >> _OFFSET_BITS, timer & _OFFSET_MASK))
            elif left > 0 and self._begins and self._begins[0] <= self._opened:
                left -= self._open_next(left)
            else:
                break
        return found

    def _open_next(self, most: int) -> int:
        """Move at most so many timers of the first bucket to the heap; return their number."""
        number = self._begins[0]
        bucket, begin_ms = self._buckets[number], number * self._bucket_ms << _OFFSET_BITS
        part = bucket[:most]
        del bucket[:most]
        if not bucket:
            del self._buckets[heappop(self._begins)]
        for timer in part:
            heappush(self._open, begin_ms + timer)
        return len(part)

    @property
    def next_due_ms(self) -> int | None:
        """Earliest due time, or the beginning of its bucket; None without a timer."""
        times = []
        if self._open:
            times.append(self._open[0] >> _OFFSET_BITS)
        if self._begins:
            times.append(self._begins[0] * self._bucket_ms)
        return min(times) if times else None


_DELAY = b"\x02DELAY\x01"


class TimersOfLevel:
    """Timers of one level. One owner."""

    def __init__(self, delay_ms: int, figures: LevelTimers) -> None:
        self._delay_ms = delay_ms
        self.figures = figures
        self.index = TimerIndex(delay_ms)
        self.ahead = AheadSet()
        """Queue offsets of timers that are done before their turn."""
        self.taken: dict[int, int] = {}
        """Due timers that are about to be read: queue offset to due time."""
        self.rests_until_ms = 0.0
        """Monotonic time before which no delivery begins."""
        self.search = 0
        """Number of the present search for timers of earlier runs."""
        self.searched = 0
        """Queue offset up to which the search has come."""

    # --- timers that wait

    def begin_search(self, offset: int) -> int:
        """Forget all timers but those done, and return the number of a new search from `offset`."""
        self.index, self.taken = TimerIndex(self._delay_ms), {}
        self.search += 1
        self.searched = offset
        self.figures.pending, self.figures.next_due_ms = 0, 0
        return self.search

    def add(self, timers: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Note timers: due time, queue offset. One that outlasts the level waits for its turn."""
        figures, turn_ms = self.figures, now_ms + self._delay_ms
        for due_ms, offset in timers:
            if due_ms <= turn_ms:
                self.index.add(due_ms, offset)
        figures.pending += len(timers)
        figures.stored_count += len(timers)
        self._note_next()

    def add_found(self, timers: Sequence[tuple[int, int, int]], offset: int) -> None:
        """Note timers of an earlier run: due time, queue offset, time of their turn.

        Those done or below `offset` are left out. The turn is that of the unit: the level may have
        had another delay.
        """
        ahead = self.ahead
        for due_ms, found, turn_ms in timers:
            if found < offset or found in ahead:
                continue
            if due_ms <= turn_ms:
                self.index.add(due_ms, found)
            self.figures.pending += 1
        self._note_next()

    @property
    def next_due_ms(self) -> int | None:
        return self.index.next_due_ms

    def take(self, now_ms: int, offset: int) -> None:
        """Take the next due timers of at most a batch; those below `offset` had their turn."""
        while not self.taken:
            found = self.index.take(now_ms, BATCH_COUNT)
            if not found:
                return
            for due_ms, number in found:
                if number >= offset and number not in self.ahead:
                    self.taken[number] = due_ms

    def put_back(self, due: Due, now_ms: int) -> None:
        """Leave only messages that are due now, of BATCH_BYTES at most, in `due.messages`.

        The others return to the index. A timer at its turn may be due later: it moves.
        """
        taken, self.taken = self.taken, {}
        for number in due.missing:
            self.index.add(max(taken[number], now_ms + 1), number)
        chosen: list[DueMessage] = []
        total_bytes = 0
        for message in due.messages:
            total_bytes += message.record.record_bytes
            due_ms = taken[message.queue_offset]
            if due_ms > now_ms or (chosen and total_bytes > BATCH_BYTES):
                self.index.add(due_ms, message.queue_offset)
            else:
                chosen.append(message)
        due.messages = chosen

    # --- timers that are done

    def delivered(self, message: DueMessage, now_ms: int) -> None:
        figures = self.figures
        figures.delivered_count += 1
        figures.late_max_ms = max(figures.late_max_ms, now_ms - message.due_ms)
        self.finished()

    def turned(self, message: DueMessage, topic: str, now_ms: int) -> None:
        """Note a timer that was delivered, or at its turn moved to another level."""
        if not message.due_ms:
            return  # postponed, and no timer
        if topic == SCHEDULE_TOPIC:
            self.figures.moved_count += 1
            self.finished()
        else:
            self.delivered(message, now_ms)

    def recalled(self, offset: int) -> None:
        self.figures.recalled_count += 1
        self.ahead.add(offset)
        self.taken.pop(offset, None)
        self.finished()

    def finished(self) -> None:
        self.figures.pending = max(0, self.figures.pending - 1)
        self._note_next()

    def _note_next(self) -> None:
        self.figures.next_due_ms = self.index.next_due_ms or 0


def own_record(message: DueMessage) -> InternalRecord:
    """Return the delivered record; as in 4.9.7 it keeps DELAY, REAL_TOPIC and REAL_QID."""
    return _copy(message, message.topic, message.queue_id, message.record.properties)


def timer_record(message: DueMessage, level: int, now_ms: int, rules: TimerRules) -> InternalRecord:
    """Return the copy of a timer of `level`: in its topic if it is due, else in a level that fits.

    The delivered record has no DELAY, so that no client delays it again when it passes it on.
    TIMER_OUT_MS stays, as in 5.x, for the same reason.
    """
    due_ms = message.due_ms
    text = message.record.properties[:-DUE_BYTES]
    topic, queue_id, delay_ms = message.topic, message.queue_id, 0
    if due_ms > now_ms:
        next_level, delay_ms = rules.level(due_ms)
        topic, queue_id = SCHEDULE_TOPIC, next_level - 1
        text = _without_delay(text) + b"\x02DELAY\x01%d" % next_level + due_property(due_ms)
    else:
        text = _without_delay(text) + b"\x02%b\x01%d" % (TIMER_OUT_MS, due_ms)
        due_ms = 0
    mark = copy_mark(level, message.queue_offset)
    return _copy(message, topic, queue_id, text.removeprefix(b"\x02"), mark, delay_ms, due_ms)


def _copy(
    message: DueMessage,
    topic: str,
    queue_id: int,
    properties: bytes,
    prepared_offset: int = 0,
    delay_ms: int = 0,
    due_ms: int = 0,
) -> InternalRecord:
    record = message.record
    return InternalRecord(
        topic,
        queue_id,
        record.body,
        properties,
        message.tags_code,
        message.keys,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        prepared_offset,
        delay_ms,
        due_ms,
    )


def _without_delay(text: bytes) -> bytes:
    raw = b"\x02" + text
    start = raw.rfind(_DELAY)
    if start < 0:
        return text
    end = raw.find(b"\x02", start + 1)
    return (raw[:start] + (raw[end:] if end >= 0 else b""))[1:]


SCAN_UNITS = 4096
"""Units of one search, some 8 ms of a thread."""


class TimerScan(Actor):
    """Actor on a thread, because it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(self, log: CommitLog) -> None:
        super().__init__()
        self._log = log

    @handles(ScanTimers)
    def on_scan(self, message: ScanTimers) -> None:
        found: list[tuple[int, int, int]] = []
        view, units = self._log.view, UNIT.iter_unpack(message.units)
        for number, (start, size, code) in enumerate(units, message.first):
            if start < 0 or size < DUE_BYTES:
                continue
            try:
                due_ms = due_of(view(start + size - DUE_BYTES, DUE_BYTES))
            except OffsetError:
                continue  # the level's turn reports it
            if due_ms:
                found.append((due_ms, number, due_ms if is_address(code) else code))
        end = message.first + len(message.units) // UNIT.size
        message.reply_to.tell(TimersFound(found, end, message.run))
