"""The delayed messages of one level that are due, read from SCHEDULE_TOPIC_XXXX.

Queue n holds the messages of level n + 1, in the order in which they are due; the tags code of a
unit is the moment in ms.  A moment further away than the level's delay cannot be true, and counts
as now.

A unit that does not agree with its record is in doubt: somebody has to look into it before it may
be skipped, for the message may lie beside a flipped bit.

Source: store/schedule/ScheduleMessageService.java (DeliverDelayedMessageTimerTask).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.java_numbers import NumberFormatError, int_in
from protocol.message import MessageRecord, RecordError
from protocol.properties import REAL_QID, REAL_TOPIC, TAGS
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.dispatching.dispatch import index_keys, property_of, tags_code
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import message_of
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.consume_queue_ext import is_address
from storage.reading.page_probe import ColdPart, PageProbe

_REAL_TOPIC, _REAL_QID, _TAGS = (
    f"\x02{name}\x01".encode() for name in (REAL_TOPIC, REAL_QID, TAGS)
)
BATCH_COUNT: Final = 128
"""Read at a time; with their delivery 2 to 4 ms of the loop."""
BATCH_BYTES: Final = 1 << 20
"""Of records read at a time, the first aside."""


class DueMessage(NamedTuple):
    """A message that goes to its real topic now."""

    queue_offset: int
    """Its number among the delayed ones."""
    record: MessageRecord
    topic: str
    queue_id: int
    tags_code: int
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class Due:
    """What is to be done next about a level."""

    next_offset: int
    """Everything below it is among `messages` or `skipped`."""
    messages: list[DueMessage] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Queue offset and reason of those that cannot be delivered."""
    wait_ms: int | None = 0
    """Until the message at `next_offset` is due; None if the queue ends there."""
    cold: Sequence[ColdPart] = ()
    """Not in memory: it has to be read first; the rest is as if nothing was due."""
    in_doubt: bool = False
    """The unit at `next_offset` does not agree with its record."""


class DueReader:
    """Reads one level. One owner."""

    def __init__(
        self, log: CommitLog, damage: Damage, probe: PageProbe, level: int, delay_ms: int
    ) -> None:
        self._log = log
        self._damage = damage
        self._probe = probe
        self._queue_id = level - 1
        self._delay_ms = delay_ms

    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        now_ms: int,
        *,
        verified: int = -1,
        cold_reads: int = 0,
    ) -> Due:
        """What is due from `offset` on, which lies within the queue.

        `verified`: the unit there has been looked into; if it cannot be read now, it is skipped.
        `cold_reads`: how often the caller has just had read what was cold: the units come first,
        then the records; after that nobody is asked.
        """
        due = Due(offset)
        if cold_reads == 0:
            due.cold = self._probe.cold_units(queue, offset, BATCH_COUNT)
            if due.cold:
                return due
        units = bytes(queue.units(offset, BATCH_COUNT))
        chosen = self._choose(queue, units, due, now_ms)
        if cold_reads < 2:
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
        self, queue: ConsumeQueue, units: bytes, due: Due, now_ms: int
    ) -> list[tuple[int, int, int]]:
        """Queue offset, place and size of those that are due; notes in `due` what follows them."""
        chosen: list[tuple[int, int, int]] = []
        number, total = due.next_offset, 0
        for start, size, code in UNIT.iter_unpack(units):
            wait_ms = self._due_ms(queue, code, start) - now_ms
            if 0 < wait_ms <= self._delay_ms:
                due.wait_ms = wait_ms
                break
            if chosen and total + size > BATCH_BYTES:
                break
            total += size
            chosen.append((number, start, size))
            number += 1
        else:
            if not units:  # a hole in the queue's files
                number = max(queue.next_file_offset(number), number + 1)
            due.wait_ms = 0 if number < queue.max_offset else None
        due.next_offset = number
        return chosen

    def _due_ms(self, queue: ConsumeQueue, code: int, start: int) -> int:
        """When a message is due, wall time; 0 where that cannot be known."""
        if not is_address(code):
            return code
        ext = queue.ext(code)
        if ext is not None:
            return ext.tags_code
        record = self._log.read_record(start)
        return 0 if record is None else record.store_timestamp + self._delay_ms

    def _take(self, due: Due, number: int, start: int, size: int) -> str | None:
        """Adds the message that lies there; else says what is wrong with it."""
        try:
            if size <= 0 or start < 0:
                return "its unit names no record"
            record = message_of(self._log.view(start, size), start)
        except (OffsetError, RecordError) as error:
            return str(error)
        place = record.topic, record.queue_id, record.queue_offset
        if place != (SCHEDULE_TOPIC, self._queue_id, number):
            return "another record lies there"
        raw = b"\x02" + record.properties  # pairs of 32 KiB would take 2 ms to be taken apart
        topic = property_of(raw, _REAL_TOPIC).decode("utf-8", "replace")
        try:
            queue_id = int_in(property_of(raw, _REAL_QID))
        except NumberFormatError:
            queue_id = -1
        if not topic or queue_id < 0:
            due.skipped.append((number, "it does not say where it belongs"))
        elif topic == HALF_TOPIC:
            due.skipped.append((number, "it belongs to a transaction"))
        else:
            code, keys = tags_code(property_of(raw, _TAGS)), index_keys(record.properties)
            due.messages.append(DueMessage(number, record, topic, queue_id, code, keys))
        return None
