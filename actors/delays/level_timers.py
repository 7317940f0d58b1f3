"""The timers of one delay level: those that wait, those that are done, and their records.

A plain class, a part of Schedule.
"""

from collections.abc import Sequence

from actors.delays.timer_index import TimerIndex
from actors.sending.records import InternalRecord
from actors.sending.timer_rules import TimerRules
from protocol.timers import DUE_BYTES, TIMER_OUT_MS, LevelTimers, copy_mark, due_property
from protocol.topic_names import SCHEDULE_TOPIC
from storage.reading.delayed import BATCH_BYTES, BATCH_COUNT, Due, DueMessage
from storage.tables.ahead_set import AheadSet

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

    def add_found(self, timers: Sequence[tuple[int, int]], offset: int, now_ms: int) -> None:
        """Note timers of an earlier run; those done or below `offset` are left out."""
        turn_ms, ahead = now_ms + self._delay_ms, self.ahead
        for due_ms, found in timers:
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
        """Leave only timers that are due now, of BATCH_BYTES at most, in `due.messages`.

        The others return to the index.
        """
        taken, self.taken = self.taken, {}
        for number in due.missing:
            self.index.add(max(taken[number], now_ms + 1), number)
        chosen: list[DueMessage] = []
        total_bytes = 0
        for message in due.messages:
            total_bytes += message.record.record_bytes
            if message.due_ms > now_ms or (chosen and total_bytes > BATCH_BYTES):
                self.index.add(message.due_ms, message.queue_offset)
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
        """Note a timer whose turn came; it was delivered, or moved to another level."""
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


def timer_record(message: DueMessage, level: int, now_ms: int, rules: TimerRules) -> InternalRecord:
    """Return the copy of a timer of `level`: in its topic if it is due, else in a level that fits.

    The delivered record has no DELAY, so that no client delays it again when it passes it on.
    TIMER_OUT_MS stays, as in 5.x, for the same reason.
    """
    record, due_ms = message.record, message.due_ms
    text = record.properties[:-DUE_BYTES]
    topic, queue_id, delay_ms = message.topic, message.queue_id, 0
    if due_ms > now_ms:
        next_level, delay_ms = rules.level(due_ms)
        topic, queue_id = SCHEDULE_TOPIC, next_level - 1
        text = _without_delay(text) + b"\x02DELAY\x01%d" % next_level + due_property(due_ms)
    else:
        text = _without_delay(text) + b"\x02%b\x01%d" % (TIMER_OUT_MS, due_ms)
        due_ms = 0
    return InternalRecord(
        topic,
        queue_id,
        record.body,
        text.removeprefix(b"\x02"),
        message.tags_code,
        message.keys,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        prepared_offset=copy_mark(level, message.queue_offset),
        delay_ms=delay_ms,
        due_ms=due_ms,
    )


def _without_delay(text: bytes) -> bytes:
    raw = b"\x02" + text
    start = raw.rfind(_DELAY)
    if start < 0:
        return text
    end = raw.find(b"\x02", start + 1)
    return (raw[:start] + (raw[end:] if end >= 0 else b""))[1:]
