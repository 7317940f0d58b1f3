"""Delivery of due delayed messages of one level; each level has its own actor.

Owns: the offset of its level.
Receives: DelayOffsetReply from DelayOffsets; DueStored from PutMessage; UnitVerified from the
scrubber; its read message from ColdRead; its own timer.
Sends: InternalAppend to PutMessage; GetDelayOffset and Delivered to DelayOffsets; ReadCold to
ColdRead; VerifyUnit to the scrubber.

One batch is in progress at a time, and the offset moves only past stored messages. So the order is
kept, and a failed append is tried again, never skipped. Only a message that can never be delivered
is skipped, with a log line. The actor sleeps until the next message is due, and some ms after a
delivery, so that a busy level delivers many at a time. A message that arrives meanwhile is due a
whole delay later, so no notification is needed.

Source: store/schedule/ScheduleMessageService.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from structlog import get_logger

from actors.delays.messages import DelayOffsetReply, Delivered, GetDelayOffset
from actors.dispatching.messages import UnitVerified, VerifyUnit
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.messages import Message
from actors.engine.supervisor import ChildSpec
from actors.pulling.messages import ReadCold
from actors.sending.messages import AppendResult, InternalAppend
from actors.sending.records import InternalRecord
from protocol.codes import ResponseCode
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.delayed import Due, DueMessage, DueReader, Far
from storage.reading.page_probe import PageProbe

log = get_logger(__name__)

LOOK_MS = 1000.0
"""Maximum sleep; after it a changed wall clock is noticed."""
LOOK_MIN_MS = 100.0
"""Sleep of a level without a delay that finds no message."""
STEP_MS = 25.0
"""Minimum time between deliveries of a level, unless the last one was full.

Small deliveries wake every consumer for a message or two. At 8,000 per second each message costs
67 µs without this pause and 48 µs with it; four times the pause saves nothing more.
"""
RETRY_MS = 500.0
VERIFY_MS = 5000.0
"""Time for the verification of an unreadable message; then the message is skipped."""


_FAR: Mapping[Far, str] = {
    "clock": "the clock was set back after it was stored",
    "settings": "messageDelayLevel had another delay for its level when it was stored",
}


@dataclass(frozen=True, slots=True)
class _Look:
    """Timer tick: check which messages are due."""


@dataclass(frozen=True, slots=True)
class _VerificationIsOver:
    """Timer tick: the verification of the unit at this offset has timed out."""

    offset: int


@dataclass(slots=True, eq=False)
class DueStored(AppendResult):
    """Result of the append of due messages."""

    due: Due


@dataclass(slots=True)
class _ColdReadForSchedule(Message):
    """Report that the cold pages are read."""

    schedule: ActorAddress
    reads: int
    """Number of cold reads of this check."""
    is_read: bool = True

    def on_undelivered(self, _remark: str) -> None:
        """Report a failed read, which ColdRead has logged."""
        self.schedule.tell(_ColdReadForSchedule(self.schedule, self.reads, False))


class Schedule(Actor):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        level: int,
        delay_ms: int,
        probe: PageProbe,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._queues = store.consume_queues
        self._level_count = len(delay_levels_ms(store.config.message_delay_level))
        self._level, self._delay_ms = level, delay_ms
        self._probe = probe
        self._reader = DueReader(store.commit_log, store.damage, probe, level, delay_ms)
        self._to = addresses
        self._offset = 0
        self._under_way: Due | None = None
        """Batch in progress."""
        self._verified = -1
        self._verifying = -1
        self._failing = False
        self._far: Far = ""

    def on_start(self) -> None:
        self._to["delay_offsets"].tell(GetDelayOffset(self._level, self.address))

    @handles(DelayOffsetReply)
    def on_delay_offset_reply(self, message: DelayOffsetReply) -> None:
        if message.offset is None:
            self._to["delay_offsets"].tell(GetDelayOffset(self._level, self.address))
            return
        self._offset = message.offset
        self._note_start(is_known=message.is_known)
        self._look()

    def _note_start(self, *, is_known: bool) -> None:
        """Log what an operator does not expect of the messages that wait."""
        queue = self._queues.get(SCHEDULE_TOPIC, self._level - 1)
        if queue is None:
            return
        count = queue.max_offset - max(self._offset, queue.min_offset)
        if count > 0 and not is_known:
            log.warning(
                "delay offset unknown, level delivered from its first message",
                level=self._level,
                messages=count,
                hint="delayOffset.json does not have the level: delivered messages may come again",
            )
        if count > 0 and self._level > self._level_count:
            log.warning(
                "delay level not configured, its messages are delivered when due",
                level=self._level,
                messages=count,
                hint="messageDelayLevel has fewer levels than when they were stored",
            )

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        self._probe.forget()
        self._look()

    @handles(_ColdReadForSchedule)
    def on_warm(self, message: _ColdReadForSchedule) -> None:
        if message.is_read:
            self._look(message.reads)
        else:
            self.after(RETRY_MS, _Look())

    def _look(self, cold_reads: int = 0) -> None:
        if self.stopping:
            return
        queue = self._queues.get(SCHEDULE_TOPIC, self._level - 1)
        if queue is None or not self._is_inside(queue):
            self._sleep(None)
            return
        clock = self.system.clock
        due = self._reader.read(
            queue,
            self._offset,
            clock.now_ms(),
            clock.monotonic_ms(),
            verified=self._verified,
            cold_reads=cold_reads,
        )
        self._note_far(due)
        if due.cold:
            again = _ColdReadForSchedule(self.address, cold_reads + 1)
            self._to["cold_read"].tell(ReadCold(due.cold, again, self.address))
        elif due.in_doubt and not due.skipped:
            self._verify(due.next_offset)
        elif due.messages:
            self._under_way = due
            records = [_own_record(message) for message in due.messages]
            self._to["put_message"].tell(InternalAppend(records, self.address, DueStored(due)))
        else:
            self._done(due, due.next_offset, 0)
            self._sleep(due.wait_ms)

    def _is_inside(self, queue: ConsumeQueue) -> bool:
        """Return whether the offset has a message; move it into the queue if it is outside."""
        low, high = queue.min_offset, queue.max_offset
        edge = min(max(self._offset, low), high)
        if edge != self._offset:
            log.error(
                "delay offset outside its queue",
                level=self._level,
                offset=self._offset,
                moved_to=edge,
                queue_min=low,
                queue_max=high,
            )
            self._offset = edge
            self._to["delay_offsets"].tell(Delivered(self._level, edge, 0))
        return edge < high

    def _sleep(self, wait_ms: float | None) -> None:
        """Sleep; None: until a message that arrives now could be due."""
        if wait_ms is None:
            wait_ms = max(self._delay_ms, LOOK_MIN_MS)
        self.after(min(max(wait_ms, 0), LOOK_MS), _Look())

    # --- unreadable messages

    def _verify(self, offset: int) -> None:
        """Request a verification of the unit, and wait for it."""
        self._verifying = offset
        doubtful = VerifyUnit(SCHEDULE_TOPIC, self._level - 1, offset, self.address)
        self._to["scrubber"].tell(doubtful)
        self.after(VERIFY_MS, _VerificationIsOver(offset))

    @handles(UnitVerified)
    def on_unit_verified(self, message: UnitVerified) -> None:
        self._go_on_behind_doubt(message.queue_offset)

    @handles(_VerificationIsOver)
    def on_verification_is_over(self, message: _VerificationIsOver) -> None:
        self._go_on_behind_doubt(message.offset)

    def _go_on_behind_doubt(self, offset: int) -> None:
        if offset == self._verifying:
            self._verifying, self._verified = -1, offset
            self._look()

    # --- append results

    @handles(DueStored)
    def on_due_stored(self, message: DueStored) -> None:
        """Advance past the stored messages; try the others again."""
        due = self._under_way
        if due is None or message.due is not due:
            return  # from before a restart: that batch is delivered again
        self._under_way = None
        end, failed = 0, -1
        for own, result in zip(due.messages, message.results, strict=True):
            if result.is_stored:
                end = result.physical_offset + result.record_bytes
            elif result.code == ResponseCode.MESSAGE_ILLEGAL:
                due.skipped.append((own.queue_offset, "it does not fit into the log"))
            else:
                failed = own.queue_offset
                break
        self._done(due, due.next_offset if failed < 0 else failed, end)
        if failed < 0:
            self._sleep(max(due.wait_ms, STEP_MS) if due.wait_ms else due.wait_ms)
        else:
            self.after(RETRY_MS, _Look())
        self._note_failing(message.remark, is_failing=failed >= 0)

    def _done(self, due: Due, next_offset: int, end: int) -> None:
        """Record that everything below `next_offset` is delivered or skipped."""
        skipped = [each for each in due.skipped if each[0] < next_offset]
        if skipped:
            first, reason = skipped[0]
            log.error(
                "delayed messages skipped",
                level=self._level,
                count=len(skipped),
                first=first,
                reason=reason,
            )
        if next_offset != self._offset:
            self._offset = next_offset
            self._to["delay_offsets"].tell(Delivered(self._level, next_offset, end))

    def _note_far(self, due: Due) -> None:
        """Log once why messages are due later than their level says."""
        if due.far and due.far != self._far:
            log.warning(
                "delayed message due late",
                level=self._level,
                offset=due.next_offset,
                wait_ms=due.wait_ms,
                reason=_FAR[due.far],
            )
        if due.far or due.wait_ms is None:
            self._far = due.far

    def _note_failing(self, remark: str | None, *, is_failing: bool) -> None:
        if is_failing == self._failing:
            return
        self._failing = is_failing
        if is_failing:
            log.error("delayed delivery failed", level=self._level, reason=remark)
        else:
            log.info("delayed delivery resumed", level=self._level)

    def can_stop(self) -> bool:
        return self._under_way is None


def schedule_children(
    store: MessageStore, recent_bytes: int, address: Callable[[str], ActorAddress]
) -> list[ChildSpec]:
    """Return one child for each configured delay level, and for each other level with messages."""
    names = ("put_message", "delay_offsets", "cold_read", "scrubber")
    to = {name: address(name) for name in names}

    def new(level: int, delay_ms: int, _: System) -> Schedule:
        return Schedule(store, level, delay_ms, PageProbe(store.commit_log, recent_bytes), to)

    delays_ms = delay_levels_ms(store.config.message_delay_level)
    levels = dict(enumerate(delays_ms, 1))
    for queue in store.consume_queues:
        if queue.topic == SCHEDULE_TOPIC and not queue.is_empty:
            levels.setdefault(queue.queue_id + 1, 0)
    return [
        ChildSpec(f"schedule_{level}", partial(new, level, delay_ms))
        for level, delay_ms in sorted(levels.items())
    ]


def _own_record(message: DueMessage) -> InternalRecord:
    """Return the delivered record; as in 4.9.7 it keeps DELAY, REAL_TOPIC and REAL_QID."""
    record = message.record
    return InternalRecord(
        message.topic,
        message.queue_id,
        record.body,
        record.properties,
        message.tags_code,
        message.keys,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
    )
