"""Delivery of due delayed messages of one level; each level has its own actor.

Owns: the offset of its level, and the due times of its timers.
Receives: DelayOffsetReply from DelayOffsets; DueStored and TimersStored from PutMessage;
TimersFound from TimerScan; CancelTimer from Recalls; UnitVerified from the scrubber; its read
message from ColdRead; its own timer.
Sends: InternalAppend to PutMessage; GetDelayOffset and Delivered to DelayOffsets; AwaitDispatch to
Reput; ScanTimers to TimerScan; ReadCold to ColdRead; VerifyUnit to the scrubber.

One batch is in progress at a time, and the offset moves only past stored messages. So the order is
kept, and a failed append is tried again, never skipped. Only a message that can never be delivered
is skipped, with a log line. The actor sleeps until the next message is due, and some ms after a
delivery, so that a busy level delivers many at a time. A message that arrives meanwhile is due a
whole delay later, so no notification is needed, except for a timer.

Timers are delivered by their own due times, before their turn in the queue (level_timers.py). The
level's turns skip them. A timer that is not due at its turn is stored again, in the level that fits
the time that is left. Batches of both kinds alternate, one at a time.

Source: store/schedule/ScheduleMessageService.java.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from actors.delays.level_timers import (
    SCAN_UNITS,
    TimerScan,
    TimersOfLevel,
    own_record,
    timer_record,
)
from actors.delays.messages import (
    CancelTimer,
    DelayOffsetReply,
    Delivered,
    GetDelayOffset,
    ScanTimers,
    TimerCancelled,
    TimersBegin,
    TimersFound,
)
from actors.dispatching.messages import AwaitDispatch, UnitVerified, VerifyUnit
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.messages import Message
from actors.engine.server_log import get_logger
from actors.engine.supervisor import ChildSpec
from actors.engine.timer import TimerHandle
from actors.pulling.messages import ReadCold
from actors.sending.messages import AppendResult, InternalAppend, TimersStored
from actors.sending.send_rules import TimerRules
from actors.statistics.counts import TimerFigures
from protocol.codes import ResponseCode
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.delayed import BATCH_COUNT, Due, DueReader, Far
from storage.reading.page_probe import ColdPart, PageProbe

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

    serial: int
    """Number of the sleep that it ends; of an older one it is ignored."""


@dataclass(frozen=True, slots=True)
class _VerificationIsOver:
    """Timer tick: the verification of the unit at this offset has timed out."""

    offset: int


@dataclass(slots=True, eq=False)
class DueStored(AppendResult):
    """Result of the append of due messages."""

    due: Due
    is_early: bool
    """Whether they are timers, delivered before their turn."""


@dataclass(slots=True)
class _ScanMore(Message):
    """Request for the next part of the search for timers."""

    schedule: ActorAddress
    run: int
    cold_reads: int = 0
    """Number of cold reads for this part; a failed one counts as two."""

    def on_undelivered(self, _remark: str) -> None:
        """Go on without the cold read, which has failed and is logged.

        The second refusal is of a schedule that has stopped.
        """
        if self.cold_reads < 2:
            self.schedule.tell(_ScanMore(self.schedule, self.run, 2))


@dataclass(slots=True)
class _ColdReadForSchedule(Message):
    """Report that the cold pages are read."""

    schedule: ActorAddress
    reads: int
    """Number of cold reads of this check."""
    is_read: bool = True

    def on_undelivered(self, _remark: str) -> None:
        """Report a failed read, which ColdRead has logged, unless the schedule has stopped."""
        if self.is_read:
            self.schedule.tell(_ColdReadForSchedule(self.schedule, self.reads, False))


class Schedule(Actor):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        level: int,
        delay_ms: int,
        probe: PageProbe,
        *,
        rules: TimerRules,
        figures: TimerFigures,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._queues, self._log = store.consume_queues, store.commit_log
        self._level_count = len(delay_levels_ms(store.config.message_delay_level))
        self._level, self._delay_ms = level, delay_ms
        self._probe = probe
        self._reader = DueReader(store.commit_log, store.damage, probe, level, delay_ms)
        self._rules = rules
        self._timers = TimersOfLevel(delay_ms, figures.of_level(level))
        self._to = addresses
        self._offset = self._turn = 0
        """First message that is not done, and the next one to read: between them some wait."""
        self._under_way: Due | None = None
        """Batch in progress."""
        self._is_timers_turn = True
        self._is_started = False
        self._sleeping: TimerHandle | None = None
        self._wakes_ms = 0.0
        self._serial = 0
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
        self._offset = self._turn = message.offset
        self._timers.ahead = message.ahead
        self._note_start(is_known=message.is_known)
        self._is_started = True
        search = _ScanMore(self.address, self._timers.begin_search(self._offset))
        self._to["reput"].tell(AwaitDispatch(self._log.end_offset, search, self.address))
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
    def on_look(self, message: _Look) -> None:
        if message.serial == self._serial:
            self._sleeping = None
            self._probe.forget()
            self._look()

    @handles(_ColdReadForSchedule)
    def on_warm(self, message: _ColdReadForSchedule) -> None:
        if message.is_read:
            self._look(message.reads)
        else:
            self._sleep(RETRY_MS)

    def _look(self, cold_reads: int = 0) -> None:
        try:
            if not self.stopping:
                self._look_at(cold_reads)
        except OSError as error:
            self._note_failing(self.note_unread(error), is_failing=True)
            self._sleep(RETRY_MS)

    def _look_at(self, cold_reads: int) -> None:
        """Deliver what is due. Raises OSError when the disk refuses a read."""
        queue = self._queues.get(SCHEDULE_TOPIC, self._level - 1)
        if queue is not None and self._looks_at_timers(queue, cold_reads):
            return
        self._is_timers_turn = True
        if queue is None or not self._is_inside(queue):
            self._sleep(None)
            return
        due = self._reader.read(
            queue,
            self._turn,
            self.system.clock.now_ms(),
            self.system.clock.monotonic_ms(),
            verified=self._verified,
            cold_reads=cold_reads,
            ahead=self._timers.ahead,
        )
        self._note_far(due)
        if due.cold:
            self._read_cold(due.cold, _ColdReadForSchedule(self.address, cold_reads + 1))
        elif due.in_doubt and not due.skipped:
            self._verify(due.next_offset)
        elif due.messages:
            self._append(due, is_early=False)
        else:
            self._done(due, due.next_offset, 0)
            self._sleep(due.wait_ms)

    def _read_cold(self, cold: Sequence[ColdPart], again: Message) -> None:
        self._to["cold_read"].tell(ReadCold(cold, again, self.address))

    def _append(self, due: Due, *, is_early: bool) -> None:
        self._under_way = due
        now_ms, level, rules = self.system.clock.now_ms(), self._level, self._rules
        records = [
            timer_record(message, level, now_ms, rules) if message.due_ms else own_record(message)
            for message in due.messages
        ]
        stored = DueStored(due, is_early)
        self._to["put_message"].tell(InternalAppend(records, self.address, stored))

    def _is_inside(self, queue: ConsumeQueue) -> bool:
        """Return whether the offset has a message; move it into the queue if it is outside."""
        low, high = queue.min_offset, queue.max_offset
        if self._timers.ahead and (gap := self._timers.ahead.first_gap(self._offset)) <= high:
            self._move_to(gap, 0, 0)
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
            self._offset = self._turn = edge
            self._to["delay_offsets"].tell(Delivered(self._level, edge, 0))
        return self._turn < high

    def _sleep(self, wait_ms: float | None) -> None:
        """Sleep until the next timer, at most; None: until a message of now could be due."""
        if wait_ms is None:
            wait_ms = max(self._delay_ms, LOOK_MIN_MS)
        next_due_ms = self._timers.next_due_ms
        if next_due_ms is not None:
            wait_ms = min(wait_ms, max(next_due_ms - self.system.clock.now_ms(), self._pause_ms()))
        wait_ms = min(max(wait_ms, 0), LOOK_MS)
        if self._sleeping is not None:
            self._sleeping.cancel()
        self._serial += 1
        self._wakes_ms = self.system.clock.monotonic_ms() + wait_ms
        self._sleeping = self.after(wait_ms, _Look(self._serial))

    # --- timers

    @handles(TimersStored)
    def on_timers_stored(self, message: TimersStored) -> None:
        """Note timers that were stored; wake up earlier for the first one if needed."""
        if not self._is_started:
            return  # the search finds them
        if not self._timers.figures.stored_count:
            self._to["delay_offsets"].tell(TimersBegin())
        self._timers.add(message.timers, self.system.clock.now_ms())
        self._wake_for_timers()

    def _wake_for_timers(self) -> None:
        next_due_ms, clock = self._timers.next_due_ms, self.system.clock
        if self._sleeping is None or next_due_ms is None:
            return
        if clock.monotonic_ms() + next_due_ms - clock.now_ms() < self._wakes_ms:
            self._sleep(self._wakes_ms - clock.monotonic_ms())

    def _pause_ms(self) -> float:
        """Return the time until the next delivery of timers may begin."""
        return max(0.0, self._timers.rests_until_ms - self.system.clock.monotonic_ms())

    def _looks_at_timers(self, queue: ConsumeQueue, cold_reads: int) -> bool:
        """Deliver due timers if it is their turn; return False without one."""
        timers, now_ms = self._timers, self.system.clock.now_ms()
        if not timers.taken:
            if not self._is_timers_turn or self._pause_ms() > 0:
                return False
            timers.take(now_ms, self._offset)
            if not timers.taken:
                return False
        self._is_timers_turn = False
        due = self._reader.read_timers(queue, [*timers.taken], self._turn, cold_reads=cold_reads)
        if due.cold:
            self._read_cold(due.cold, _ColdReadForSchedule(self.address, cold_reads + 1))
            return True
        timers.put_back(due, now_ms)
        if not due.messages:
            return False
        is_full = len(due.messages) == BATCH_COUNT
        timers.rests_until_ms = self.system.clock.monotonic_ms() + (0 if is_full else STEP_MS)
        self._append(due, is_early=True)
        return True

    def _timers_stored(self, due: Due, message: DueStored) -> None:
        """Note which timers are delivered; try the others again."""
        begin, end, done, failed, now_ms = 0, 0, [], False, self.system.clock.now_ms()
        for own, result in zip(due.messages, message.results, strict=True):
            if result.is_stored:
                begin = begin or result.physical_offset
                end = max(end, result.physical_offset + result.record_bytes)
                self._timers.turned(own, result.topic_name, now_ms)
            elif result.code == ResponseCode.MESSAGE_ILLEGAL:
                self._log_skipped([(own.queue_offset, "it does not fit into the log")])
                self._timers.finished()
            else:
                self._timers.index.add(own.due_ms, own.queue_offset)
                failed = True
                continue
            self._timers.ahead.add(own.queue_offset)
            done.append(own.queue_offset)
        if done:
            self._report(self._offset, begin, end, done, is_urgent=True)
        if failed:
            self._timers.rests_until_ms = self.system.clock.monotonic_ms() + RETRY_MS
        self._note_failing(message.remark, is_failing=failed)
        self._look()

    def _report(
        self, next_offset: int, begin: int, end: int, ahead: Sequence[int] = (), *, is_urgent: bool
    ) -> None:
        delivered = Delivered(self._level, next_offset, end, begin, ahead, is_urgent)
        self._to["delay_offsets"].tell(delivered)

    @handles(_ScanMore)
    def on_scan_more(self, message: _ScanMore) -> None:
        """Send the next units to the search for timers."""
        queue, timers = self._queues.get(SCHEDULE_TOPIC, self._level - 1), self._timers
        if message.run != timers.search or queue is None:
            return
        first = timers.searched = max(timers.searched, self._offset, queue.min_offset)
        try:
            looks = not message.cold_reads
            cold = self._probe.cold_units(queue, first, SCAN_UNITS) if looks else ()
            units = b"" if cold else bytes(queue.units(first, SCAN_UNITS))
        except OSError as error:
            self.note_unread(error)
            self.after(RETRY_MS, message)
            return
        if cold:
            self._read_cold(cold, _ScanMore(self.address, message.run, 1))
            return
        timers.figures.unread = max(0, queue.max_offset - first)
        if units:
            self._to["timer_scan"].tell(ScanTimers(units, first, message.run, self.address))
        elif first < queue.max_offset:  # hole in the queue's files
            timers.searched = max(queue.next_file_offset(first), first + 1)
            self.address.tell(_ScanMore(self.address, message.run))

    @handles(TimersFound)
    def on_timers_found(self, message: TimersFound) -> None:
        """Note timers that an earlier run has stored."""
        timers = self._timers
        if message.run != timers.search:
            return
        timers.searched = message.next_offset
        if message.timers:  # perhaps stored before this actor began, and not reported
            self._to["delay_offsets"].tell(TimersBegin())
        timers.add_found(message.timers, self._offset)
        self._wake_for_timers()
        self.on_scan_more(_ScanMore(self.address, message.run))

    @handles(CancelTimer)
    def on_cancel(self, message: CancelTimer) -> None:
        """Count a timer as done, unless it is delivered or on its way."""
        offset, due = message.queue_offset, self._under_way
        is_busy = due is not None and (
            offset in (own.queue_offset for own in due.messages) or offset < due.next_offset
        )
        if not self._is_started or is_busy or offset < self._offset or offset in self._timers.ahead:
            message.reply_to.tell(TimerCancelled(message.token, False))
            return
        self._timers.recalled(offset)
        self._to["delay_offsets"].tell(
            Delivered(
                self._level,
                self._offset,
                0,
                ahead=(offset,),
                is_urgent=True,
                then=lambda failure: message.reply_to.tell(
                    TimerCancelled(message.token, not failure)
                ),
            )
        )

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
        if message.is_early:
            self._timers_stored(due, message)
            return
        begin, end, failed = 0, 0, -1
        now_ms = self.system.clock.now_ms()
        for own, result in zip(due.messages, message.results, strict=True):
            if result.is_stored:
                self._timers.turned(own, result.topic_name, now_ms)
                begin = begin or result.physical_offset
                end = result.physical_offset + result.record_bytes
            elif result.code == ResponseCode.MESSAGE_ILLEGAL:
                due.skipped.append((own.queue_offset, "it does not fit into the log"))
            else:
                failed = own.queue_offset
                break
        is_urgent = any(own.due_ms for own in due.messages)
        next_offset = due.next_offset if failed < 0 else failed
        self._done(due, next_offset, end, begin=begin, is_urgent=is_urgent)
        if failed < 0:
            self._sleep(max(due.wait_ms, STEP_MS) if due.wait_ms else due.wait_ms)
        else:
            self._sleep(RETRY_MS)
        self._note_failing(message.remark, is_failing=failed >= 0)

    def _done(
        self, due: Due, next_offset: int, end: int, *, begin: int = 0, is_urgent: bool = False
    ) -> None:
        """Record that everything below `next_offset` is delivered or skipped."""
        skipped = [each for each in due.skipped if each[0] < next_offset]
        if skipped:
            self._log_skipped(skipped)
        first, self._turn = self._turn, next_offset
        waiting = {number: due_ms for due_ms, number in due.postponed if number < next_offset}
        if first == self._offset and not waiting:
            self._move_to(next_offset, begin, end, is_urgent=is_urgent)
            return
        for number, due_ms in waiting.items():
            self._timers.index.add(due_ms, number)
        ahead = [number for number in range(first, next_offset) if number not in waiting]
        for number in ahead:
            self._timers.ahead.add(number)
        if ahead:
            self._report(self._offset, begin, end, ahead, is_urgent=is_urgent)

    def _move_to(self, offset: int, begin: int, end: int, *, is_urgent: bool = False) -> None:
        """Note that all messages below `offset` are done."""
        if offset != self._offset:
            self._offset, self._turn = offset, max(self._turn, offset)
            self._timers.ahead.forget_below(offset)
            self._report(offset, begin, end, is_urgent=is_urgent)

    def _log_skipped(self, skipped: Sequence[tuple[int, str]]) -> None:
        first, reason = skipped[0]
        log.error(
            "delayed messages skipped",
            level=self._level,
            count=len(skipped),
            first=first,
            reason=reason,
        )

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


def schedule_name(level: int) -> str:
    """Return the address of a delay level."""
    return f"schedule_{level}"


def schedule_children(
    store: MessageStore,
    recent_bytes: int,
    rules: TimerRules,
    figures: TimerFigures,
    address: Callable[[str], ActorAddress],
) -> list[ChildSpec]:
    """Return one child for each configured delay level, and for each other level with messages."""
    names = ("put_message", "delay_offsets", "cold_read", "scrubber", "reput", "timer_scan")
    to = {name: address(name) for name in names}

    def new(level: int, delay_ms: int, _: System) -> Schedule:
        probe = PageProbe(store.commit_log, recent_bytes)
        return Schedule(store, level, delay_ms, probe, rules=rules, figures=figures, addresses=to)

    delays_ms = delay_levels_ms(store.config.message_delay_level)
    levels = dict(enumerate(delays_ms, 1))
    for queue in store.consume_queues:
        if queue.topic == SCHEDULE_TOPIC and not queue.is_empty:
            levels.setdefault(queue.queue_id + 1, 0)
    return [
        ChildSpec("timer_scan", lambda _: TimerScan(store.commit_log)),
        *(
            ChildSpec(schedule_name(level), partial(new, level, delay_ms))
            for level, delay_ms in sorted(levels.items())
        ),
    ]
