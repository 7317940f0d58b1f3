"""Commits and rollbacks of transactions, and check-backs of the open ones.

Owns: the half messages that are being settled or checked.
Receives: Request from connections; EndsStored, EndStored, ResumeStored, ChecksStored and
FinishesStored from PutMessage; ColdReadOfHalf from ColdRead and Reput; Synced from the flusher; its
own timer.
Sends: InternalAppend and InternalAppendGroup to PutMessage; ReadCold to ColdRead; AwaitDispatch to
Reput; CHECK_TRANSACTION_STATE to producers; CreateSystemTopic to the topic table; CommitOffset for
CID_RMQ_SYS_TRANS to consumer_offsets; before that, Sync to the flusher.

While an append about a half message is in progress, other requests for it wait and then see the
result. So neither a second commit nor a concurrent check delivers a message twice.

Source: EndTransactionProcessor.java, TransactionalMessageCheckService.java,
AdminBrokerProcessor.resumeCheckHalfMessage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from actors.config import BrokerConfig
from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.messages import Message
from actors.engine.server_log import get_logger
from actors.network.messages import Peer, Request
from actors.network.request import Responder, serves
from actors.pulling.messages import ReadCold
from actors.sending.appender import InternalRecord
from actors.sending.half_message_cache import HalfMessageCache
from actors.sending.messages import (
    AppendResult,
    InternalAppend,
    InternalAppendGroup,
    Sync,
    Synced,
)
from actors.sending.send_rules import TimerRules
from actors.statistics.counts import TransactionStats
from actors.tables.consumer_views import Producing
from actors.tables.messages import CommitOffset, CreateSystemTopic
from actors.transactions.check_back_planner import Batch, Check, CheckBackPlanner, Finish, Round
from actors.transactions.half_messages import HalfMessage, HalfReader
from actors.transactions.half_state import Standings
from actors.transactions.messages import (
    RESUME_EXCEPTION,
    ColdReadOfHalf,
    End,
    EndsStored,
    EndStored,
    Resume,
    ResumeStored,
)
from actors.transactions.transaction_finisher import NOT_SET, TransactionFinisher
from protocol.codes import TRANSACTION_NONE, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.transaction import EndTransactionHeader, ResumeCheckHalfMessageHeader
from protocol.message import MessageRecord
from protocol.message_id import parse_message_id
from protocol.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.page_probe import PageProbe
from storage.transactions.table import TransactionTable
from storage.transactions.units import COMMITTED, DISCARDED

log = get_logger(__name__)

RETRY_MS = 1000.0
"""Delay before the next try while the transaction table is not complete."""
_RESUME_FAILED = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."

_QUEUE_ID = 0
"""Queue id of half messages and of operations."""

_INTERRUPTED = "the end of the transaction was interrupted"


@dataclass(frozen=True, slots=True)
class _NextRound:
    """Timer tick: begin a round."""


@dataclass(frozen=True, slots=True)
class _NextStep:
    """Continue the round, after other messages of the inbox."""


@dataclass(slots=True)
class _ColdReadForStep(Message):
    """Report that the cold pages of the next step are read."""

    transactions: ActorAddress
    is_read: bool = True

    def on_undelivered(self, _remark: str) -> None:
        """Report a failed read, which ColdRead has logged, unless Transactions has stopped."""
        if self.is_read:
            self.transactions.tell(_ColdReadForStep(self.transactions, False))


@dataclass(slots=True, eq=False)
class ChecksStored(AppendResult):
    """Result of the append of the checks of a step."""

    batch: Batch


@dataclass(slots=True, eq=False)
class FinishesStored(AppendResult):
    """Result of the append of the finishes of a step."""

    batch: Batch


class _Progress(NamedTuple):
    """Consumer offsets of CID_RMQ_SYS_TRANS, valid once the log is synced up to `log_end`.

    Only a RocketMQ broker that takes over the store reads them: it begins its checks there.
    """

    half_offset: int
    """First pending half message; all before it are settled, replaced or discarded."""
    op_offset: int
    """First operation behind that in the log; earlier ones settle older half messages."""
    log_end: int


class Transactions(Responder):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        probe: PageProbe,
        *,
        producers: SnapshotRef[Mapping[str, Sequence[Producing]]],
        recent_halves: HalfMessageCache,
        stats: TransactionStats,
        timers: TimerRules,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._store, self._config = store, config
        self._producers, self._to = producers, addresses
        self._standings = Standings[End](store)
        cold_read, reput = addresses["cold_read"], addresses["reput"]
        self._reader = HalfReader(
            store, probe, cold_read=cold_read, reput=reput, recent=recent_halves
        )
        self._ends = TransactionFinisher(
            store.commit_log,
            store.config,
            self._standings,
            delays_ms=delay_levels_ms(store.config.message_delay_level),
            timers=timers,
            now_ms=lambda: self.system.clock.now_ms(),
            stats=stats,
            warn=lambda *event, **about: self.system.rarely.warn(*event, **about),
        )
        self._checks = CheckBackPlanner(store, config, probe, self._standings)
        self._puts: list[InternalAppend] = []
        self._round: Round | None = None
        self._turn = self._resuming = 0
        self._told: tuple[int, int] = (0, 0)
        self._unsafe: _Progress | None = None
        self._is_last_saved = False

    def on_start(self) -> None:
        if not self._config.is_slave:
            self.after(self._config.transaction_check_interval_ms, _NextRound())

    # --- requests

    @serves(RequestCode.END_TRANSACTION)
    def end(self, request: Request) -> RemotingCommand | None:
        """Commit or roll back; an unknown outcome is not answered."""
        header = request.header
        if not isinstance(header, EndTransactionHeader):
            header = EndTransactionHeader.decode(request.command.fields)
        if self._config.is_slave:
            return request.command.answer(ResponseCode.SLAVE_NOT_AVAILABLE, remark=NOT_SET)
        self.begin_change()
        if header.commit_or_rollback != TRANSACTION_NONE:
            self._look_up(header.commit_log_offset, End(request, header))
        return None

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, request: Request) -> RemotingCommand | None:
        """Copy a discarded half message to the half topic."""
        header = ResumeCheckHalfMessageHeader.decode(request.command.fields)
        try:
            _, offset = parse_message_id(header.msg_id or "")
        except ValueError:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=RESUME_EXCEPTION)
        self.begin_change()
        self._look_up(offset, Resume(request))
        return None

    @handles(ColdReadOfHalf)
    def on_warmed(self, message: ColdReadOfHalf) -> None:
        """Continue with a request after a cold read or a dispatch."""
        self._look_up(message.offset, message.asker, message.reads)

    def _look_up(self, offset: int, asker: End | Resume, reads: int = 0) -> None:
        half = self._reader.recent(offset)
        if half is not None and isinstance(asker, End):
            put = self._ends.records_for_recent(asker, half)
            if put is not None:
                self._reader.drop_recent(offset)
                put.reply_to = self.address
                self._puts.append(put)
                return
        is_known, record = self._reader.read(offset, asker, self.address, reads)
        if not is_known:
            return
        if isinstance(asker, End):
            put = self._ends.records_for(asker, record)
            if put is not None:
                put.reply_to = self.address
                self._puts.append(put)
        else:
            self._resume_found(asker, record)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        if self._puts:
            puts, self._puts = self._puts, []
            self._to["put_message"].tell(InternalAppendGroup(puts, EndsStored))

    def _resume_found(self, resume: Resume, record: MessageRecord | None) -> None:
        if record is None:
            resume.refuse("")
            return
        self._resuming += 1
        own = HalfMessage(record).resumed()
        self._to["put_message"].tell(InternalAppend([own], self.address, ResumeStored(resume)))

    # --- append results

    @handles(EndsStored)
    def on_ends_stored(self, message: EndsStored) -> None:
        ends = message.ends
        while ends:
            self.on_end_stored(ends[0])
            ends.popleft()

    @handles(EndStored)
    def on_end_stored(self, message: EndStored) -> None:
        self._go_on(self._ends.stored(message))

    @handles(ResumeStored)
    def on_resume_stored(self, message: ResumeStored) -> None:
        self._resuming -= 1
        is_stored = message.results[0].is_stored
        message.resume.request.answer(
            ResponseCode.SUCCESS if is_stored else ResponseCode.SYSTEM_ERROR,
            remark=None if is_stored else _RESUME_FAILED,
        )

    def _go_on(self, waiting: Sequence[End]) -> None:
        """Continue with requests that waited for an append about their half message."""
        for end in waiting:
            self._look_up(end.header.commit_log_offset, end)

    # --- rounds of checks

    @handles(_NextRound)
    def on_next_round(self, _: _NextRound) -> None:
        """Begin a round once the table is complete."""
        table = self._standings.whole_table()
        if table is None:
            self.after(RETRY_MS, _NextRound())
            return
        self._to["topics"].tell(CreateSystemTopic(HALF_TOPIC, 1))
        clock = self.system.clock
        self._round = self._checks.begin(table, clock.monotonic_ms())
        self._step()

    @handles(_NextStep)
    def on_next_step(self, _: _NextStep) -> None:
        self._step()

    @handles(_ColdReadForStep)
    def on_step_warm(self, message: _ColdReadForStep) -> None:
        """Continue the round after a cold read; end it if the read failed."""
        if message.is_read:
            self._step(warm=True)
        else:
            self._end_round()

    def _step(self, *, warm: bool = False) -> None:
        """Check the next half messages; one append is in progress at a time."""
        checks, table = self._round, self._standings.whole_table()
        if checks is None:
            return
        clock = self.system.clock
        is_over = self._checks.is_over(checks, clock.monotonic_ms())
        if table is None or self.stopping or is_over:
            self._end_round()
            return
        if not warm and (parts := self._checks.cold(checks, clock.now_ms())):
            self._to["cold_read"].tell(
                ReadCold(parts, _ColdReadForStep(self.address), self.address)
            )
            return
        self._put(self._checks.step(checks, table, clock.now_ms()))

    def _put(self, batch: Batch) -> None:
        """Append the checks, else the finishes; continue if there are neither."""
        if not batch.checks and not batch.finishes:
            self.address.tell(_NextStep())
            return
        for check in batch.all():
            self._standings.busy.setdefault(check.pending.physical_offset, [])
        result: AppendResult
        if batch.checks:
            result, records = ChecksStored(batch), [check.own for check in batch.checks]
        else:
            result = FinishesStored(batch)
            records = [
                self._ends.operation(check.pending.queue_offset, check.pending.queue_id)
                for check in batch.finishes
            ]
        wanted = []
        if any(check.is_given_up for check in batch.checks):
            wanted = [CreateSystemTopic(TRANS_CHECK_MAX_TIME_TOPIC, 1)]
        self._to["put_message"].tell(InternalAppend(records, self.address, result, topics=wanted))

    @handles(ChecksStored)
    def on_checks_stored(self, message: ChecksStored) -> None:
        """Check back with producers of stored checks, then append the finishes."""
        again: list[Check] = []
        batch, finishes = message.batch, message.batch.finishes
        is_failing = False
        for check, result in zip(batch.checks, message.results, strict=True):
            if result.is_stored:
                self._note_check(check, result)
                if not check.is_passed:
                    finishes.append(Finish(check.pending, is_committed=False))
            elif result.code != ResponseCode.MESSAGE_ILLEGAL:
                is_failing = True
            elif not check.is_given_up:  # no room for the higher count
                own = check.half.given_up()
                again.append(replace(check, own=own, is_given_up=True))
            else:
                self._checks.unreadable.add(check.pending.physical_offset)
        rest = Batch(again, finishes)
        kept = {each.pending.physical_offset for each in rest.all()}
        self._release([each for each in batch.checks if each.pending.physical_offset not in kept])
        if is_failing:
            self._release(rest.all())
            log.error("half message checks failed", reason=message.remark)
            self._end_round()
        else:
            self._put(rest)

    def _note_check(self, check: Check, result: InternalRecord) -> None:
        offset, known_at = check.pending.physical_offset, result.physical_offset + 1
        if check.is_given_up:
            self._standings.note(offset, DISCARDED, known_at)
        else:
            newer = result.physical_offset, result.queue_offset
            self._standings.note_replaced(offset, newer, known_at)
            self._ask(check, result)
        if self._round is not None:
            self._round.checked_count += not check.is_given_up
            self._round.given_up_count += check.is_given_up

    def _ask(self, check: Check, result: InternalRecord) -> None:
        """Check back with one of the group's producers that may send to its topic, in turn.

        Without one, the next round tries again.
        """
        half = check.half
        peer = self._in_turn(half)
        if peer is None:
            if self._round is not None:
                missing = self._round.no_producer
                missing[half.group or ""] = missing.get(half.group or "", 0) + 1
            return
        question = half.question(
            check.own, result.queue_offset, result.physical_offset, self._store_host
        )
        if question is not None:
            if half.owner is not None:
                self._ends.note_asked(result.physical_offset, peer.peer_id)
            peer.send(question)

    def _in_turn(self, half: HalfMessage) -> Peer | None:
        topic = half.text(b"REAL_TOPIC") or ""
        able = [
            each
            for each in self._producers.value.get(half.group or "", ())
            if each.may_send(topic)  # the check-back contains the whole message
        ]
        found = [each.peers for each in able if each.is_of(half.owner)]
        found = found or [each.peers for each in able]
        if not found:
            return None
        self._turn += 1
        place = self._turn % sum(map(len, found))
        for peers in found:
            if place < len(peers):
                return peers[place]
            place -= len(peers)
        raise AssertionError(place)

    @property
    def _store_host(self) -> bytes:
        return self._store.commit_log.store_host

    @handles(FinishesStored)
    def on_finishes_stored(self, message: FinishesStored) -> None:
        finishes = message.batch.finishes
        for check, result in zip(finishes, message.results, strict=True):
            if result.is_stored and check.is_committed:
                offset = check.pending.physical_offset
                self._standings.note(offset, COMMITTED, result.physical_offset + 1)
        self._release(finishes)
        self.address.tell(_NextStep())

    def _release(self, checks: Sequence[Check | Finish]) -> None:
        for check in checks:
            self._go_on(self._standings.busy.pop(check.pending.physical_offset, []))

    def _end_round(self) -> None:
        checks, self._round = self._round, None
        if checks is None:
            return
        if checks.checked_count or checks.given_up_count:
            log.info(
                "transactions checked",
                checked=checks.checked_count,
                given_up=checks.given_up_count,
                left=len(checks.candidates) - checks.next,
            )
        if groups := checks.no_producer:
            halves = sum(groups.values())
            warn = self.system.rarely.warn
            warn("no producer found for check-back", names=[*groups], count=halves)
        self._save_progress()
        self.after(self._config.transaction_check_interval_ms, _NextRound())

    # --- progress

    def _save_progress(self) -> None:
        table = self._standings.whole_table()
        if table is None or self._unsafe is not None:
            return
        progress = _progress_of(self._store, table, self._checks.unreadable, self._told[1])
        if progress is None or progress[:2] == self._told:
            return
        if progress.log_end <= self._store.commit_log.flushed_offset:
            self._tell_progress(progress)
        else:
            self._unsafe = progress
            self._to["flusher"].tell(Sync(progress.log_end, self.address))

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Save the progress: the log is synced that far."""
        progress, self._unsafe = self._unsafe, None
        if progress is not None and message.flushed_offset >= progress.log_end:
            self._tell_progress(progress)

    def _tell_progress(self, progress: _Progress) -> None:
        self._told = progress.half_offset, progress.op_offset
        for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), self._told, strict=True):
            self._to["consumer_offsets"].tell(CommitOffset(TRANSACTION_GROUP, topic, 0, offset))

    def can_stop(self) -> bool:
        """Return whether all appends are decided and the progress is saved."""
        if self._standings.busy or self._resuming > 0:
            return False
        if not self._is_last_saved and not self._config.is_slave:
            self._is_last_saved = True
            self._save_progress()
        return self._unsafe is None

    def on_failure(self, *_: object) -> None:
        for waiting in self._standings.busy.values():
            for end in waiting:
                end.refuse(_INTERRUPTED)
        for put in self._puts:
            put.on_undelivered(_INTERRUPTED)


def _progress_of(
    store: MessageStore, table: TransactionTable, unreadable: set[int], op_offset: int = 0
) -> _Progress | None:
    """Return the progress from table and queues; None if there has never been a half message.

    `op_offset` is the previous result, where the search begins.
    """
    halves = store.consume_queues.get(HALF_TOPIC, _QUEUE_ID)
    if halves is None:
        return None
    ops = store.consume_queues.get(OP_HALF_TOPIC, _QUEUE_ID)
    oldest = table.oldest_half(unreadable)
    log_end = table.covered_offset
    if oldest is None:
        return _Progress(halves.max_offset, 0 if ops is None else ops.max_offset, log_end)
    if ops is None:
        return _Progress(oldest.queue_offset, 0, log_end)
    low = min(max(op_offset, ops.min_offset), ops.max_offset)
    first = _first_behind(ops, low, oldest.physical_offset)
    return _Progress(oldest.queue_offset, first, log_end)


def _first_behind(queue: ConsumeQueue, low: int, physical_offset: int) -> int:
    """Return the first message of a queue, from `low` on, behind a physical offset."""
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None or unit[0] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
