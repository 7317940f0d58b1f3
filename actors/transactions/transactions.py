"""Ends transactions, and asks producers about those that nobody has ended.

Owns: which half messages are being ended or checked at the moment.
Receives: from connections (`Request`), PutMessage (`InternalAppended`, `AppendResults`), ColdRead,
Reput (`ColdReadOfHalf`), ColdRead (`_ColdReadForStep`), the flusher (`Synced`), its timer.
Tells: PutMessage (`InternalAppend`, of the ends of a batch an `InternalAppendGroup`), ColdRead
(`ReadCold`), Reput (`AwaitDispatch`), producers (CHECK_TRANSACTION_STATE), the topic table
(`CreateSystemTopic`), consumer_offsets (`CommitOffset`, how far CID_RMQ_SYS_TRANS has come), the
flusher (`Sync`, before that).

What is being put about a half message bars it: who comes meanwhile waits, and then sees what became
of it.  So neither a second commit nor a check beside a commit delivers a message twice.

Source: EndTransactionProcessor.java, TransactionalMessageCheckService.java,
AdminBrokerProcessor.resumeCheckHalfMessage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from structlog import get_logger

from actors.config import BrokerConfig
from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.request import Peer, Request, Responder, serves
from actors.pulling.cold_read import ReadCold
from actors.sending.flusher import Sync, Synced
from actors.sending.half_message_cache import HalfMessageCache
from actors.sending.internal_append import (
    AppendResults,
    InternalAppend,
    InternalAppended,
    InternalAppendGroup,
    InternalRecord,
)
from actors.statistics.transaction_stats import TransactionStats
from actors.tables.consumer_views import Producing
from actors.tables.messages import CommitOffset, CreateSystemTopic
from actors.transactions.check_back_planner import Batch, Check, CheckBackPlanner, Finish, Round
from actors.transactions.half_messages import HalfMessage
from actors.transactions.half_reader import ColdReadOfHalf, HalfReader
from actors.transactions.half_state import Standings
from actors.transactions.transaction_finisher import NOT_SET, End, EndPut, TransactionFinisher
from actors.transactions.transaction_progress import TransactionProgress, progress_of
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.transaction import (
    EndTransactionHeader,
    ResumeCheckHalfMessageHeader,
)
from protocol.message import MessageRecord
from protocol.message_id import parse_message_id
from protocol.sysflag import TRANSACTION_NONE
from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.tables.groups import TRANSACTION_GROUP
from storage.transactions.units import COMMITTED, DISCARDED

log = get_logger(__name__)

RETRY_MS = 1000.0
"""When the transaction table is not there yet."""
_RESUME_FAILED = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
_RESUME_EXCEPTION = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."

_INTERRUPTED = "the end of the transaction was interrupted"


@dataclass(frozen=True, slots=True)
class _NextRound:
    """Check what is pending."""


@dataclass(frozen=True, slots=True)
class _NextStep:
    """Go on with the round."""


@dataclass(slots=True)
class _ColdReadForStep:
    """What the next step reads is in memory now."""

    transactions: ActorAddress
    is_read: bool = True

    def refuse(self, _remark: str) -> None:
        """The disk could not be read; ColdRead has logged that."""
        self.transactions.tell(_ColdReadForStep(self.transactions, False))


@dataclass(slots=True)
class _Resume:
    """An administrator wants a half message to be checked again."""

    request: Request

    def refuse(self, _remark: str) -> None:
        self.request.answer(ResponseCode.SYSTEM_ERROR, remark=_RESUME_EXCEPTION)


class Transactions(Responder):
    """Lives on the loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        probe: PageProbe,
        *,
        producers: SnapshotRef[Mapping[str, Sequence[Producing]]],
        recent_halves: HalfMessageCache,
        stats: TransactionStats,
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
            now_ms=lambda: self.system.clock.now_ms(),
            stats=stats,
            warn=lambda *event, **about: self.system.rarely.warn(*event, **about),
        )
        self._checks = CheckBackPlanner(store, config, probe, self._standings)
        self._puts: list[InternalAppend] = []
        self._round: Round | None = None
        self._turn = self._resuming = 0
        self._told: tuple[int, int] = (0, 0)
        self._unsafe: TransactionProgress | None = None
        self._is_last_saved = False

    def on_start(self) -> None:
        self._outcomes = AppendResults(self.address)
        if not self._config.is_slave:
            self.after(self._config.transaction_check_interval_ms, _NextRound())

    # --- verdicts, and what administrators want

    @serves(RequestCode.END_TRANSACTION)
    def end(self, request: Request) -> RemotingCommand | None:
        """Commits or rolls back; one who does not know gets no answer at all."""
        header = EndTransactionHeader.decode(request.command.fields)
        if self._config.is_slave:
            return request.command.answer(ResponseCode.SLAVE_NOT_AVAILABLE, remark=NOT_SET)
        self.begin_change()
        if header.commit_or_rollback != TRANSACTION_NONE:
            self._look_up(header.commit_log_offset, End(request, header))
        return None

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, request: Request) -> RemotingCommand | None:
        """Puts what was given up among the half messages again."""
        header = ResumeCheckHalfMessageHeader.decode(request.command.fields)
        try:
            _, offset = parse_message_id(header.msg_id or "")
        except ValueError:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=_RESUME_EXCEPTION)
        self.begin_change()
        self._look_up(offset, _Resume(request))
        return None

    @handles(ColdReadOfHalf)
    def on_warmed(self, message: ColdReadOfHalf) -> None:
        """What had to be read from the disk is in memory."""
        assert isinstance(message.asker, End | _Resume)
        self._look_up(message.offset, message.asker, message.reads)

    def _look_up(self, offset: int, asker: End | _Resume, reads: int = 0) -> None:
        half = self._reader.recent(offset)
        if half is not None and isinstance(asker, End):
            put = self._ends.records_for_recent(asker, half)
            if put is not None:
                self._reader.drop_recent(offset)
                put.reply_to = self._outcomes
                self._puts.append(put)
                return
        is_known, record = self._reader.read(offset, asker, self.address, reads)
        if not is_known:
            return
        if isinstance(asker, End):
            put = self._ends.records_for(asker, record)
            if put is not None:
                put.reply_to = self._outcomes
                self._puts.append(put)
        else:
            self._resume_found(asker, record)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Has stored what carries out the verdicts of this batch."""
        if self._puts:
            puts, self._puts = self._puts, []
            self._to["put_message"].tell(InternalAppendGroup(puts))

    def _resume_found(self, resume: _Resume, record: MessageRecord | None) -> None:
        if record is None:
            resume.refuse("")
            return
        self._resuming += 1
        own = HalfMessage(record).resumed()
        self._to["put_message"].tell(InternalAppend([own], self.address, resume))

    # --- what was put

    @handles(AppendResults)
    def on_outcomes(self, message: AppendResults) -> None:
        """What became of the ends of a batch."""
        message.hand_out(self.on_internal_appended)

    @handles(InternalAppended)
    def on_internal_appended(self, message: InternalAppended) -> None:
        """The records are stored, or refused."""
        token = message.token
        if isinstance(token, EndPut):
            self._go_on(self._ends.stored(token, message))
        elif isinstance(token, _Resume):
            self._resuming -= 1
            is_stored = message.results[0].is_stored
            token.request.answer(
                ResponseCode.SUCCESS if is_stored else ResponseCode.SYSTEM_ERROR,
                remark=None if is_stored else _RESUME_FAILED,
            )
        elif isinstance(token, Batch):
            if token.checks:
                self._checks_put(token, message)
            else:
                self._finishes_put(token, message)

    def _go_on(self, waiting: Sequence[End]) -> None:
        """Those that came while something was put about their half message."""
        for end in waiting:
            self._look_up(end.header.commit_log_offset, end)

    # --- rounds of checks

    @handles(_NextRound)
    def on_next_round(self, _: _NextRound) -> None:
        """Begins one, as soon as the table knows everything."""
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
        """Whoever else had mail has been served."""
        self._step()

    @handles(_ColdReadForStep)
    def on_step_warm(self, message: _ColdReadForStep) -> None:
        """Goes on with what had to be read from the disk."""
        if message.is_read:
            self._step(warm=True)
        else:
            self._end_round()

    def _step(self, *, warm: bool = False) -> None:
        """Looks at the next half messages; one batch of puts is under way at a time."""
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
        """Has the checks stored, or if there are none the rest, or goes on."""
        if not batch.checks and not batch.finishes:
            self.address.tell(_NextStep())
            return
        for check in batch.all():
            self._standings.busy.setdefault(check.pending.physical_offset, [])
        if batch.checks:
            records = [check.own for check in batch.checks]
        else:
            records = [
                self._ends.operation(check.pending.queue_offset, check.pending.queue_id)
                for check in batch.finishes
            ]
        wanted = []
        if any(check.is_given_up for check in batch.checks):
            wanted = [CreateSystemTopic(TRANS_CHECK_MAX_TIME_TOPIC, 1)]
        self._to["put_message"].tell(InternalAppend(records, self.address, batch, topics=wanted))

    def _checks_put(self, batch: Batch, message: InternalAppended) -> None:
        """Asks about those that are stored; what lies before others that wait is settled too."""
        again: list[Check] = []
        finishes = batch.finishes
        is_failing = False
        for check, result in zip(batch.checks, message.results, strict=True):
            if result.is_stored:
                self._note_check(check, result)
                if not check.is_passed:
                    finishes.append(Finish(check.pending, is_committed=False))
            elif result.code != ResponseCode.MESSAGE_ILLEGAL:
                is_failing = True
            elif not check.is_given_up:  # it has no room for its count
                own = check.half.given_up()
                again.append(replace(check, own=own, is_given_up=True))
            else:
                self._checks.unreadable.add(check.pending.physical_offset)
        rest = Batch(again, finishes)
        kept = {each.pending.physical_offset for each in rest.all()}
        self._release([each for each in batch.checks if each.pending.physical_offset not in kept])
        if is_failing:
            self._release(rest.all())
            log.error("half messages cannot be checked", reason=message.remark)
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
        """One of the group's producers that may send to its topic, in turn; none: it is checked
        again next time."""
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
            if each.may_send(topic)  # the question has the whole message
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

    def _finishes_put(self, batch: Batch, message: InternalAppended) -> None:
        for check, result in zip(batch.finishes, message.results, strict=True):
            if result.is_stored and check.is_committed:
                offset = check.pending.physical_offset
                self._standings.note(offset, COMMITTED, result.physical_offset + 1)
        self._release(batch.finishes)
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
        for group, count in checks.no_producer.items():
            log.warning("no producer to ask for its transactions", group=group, count=count)
        self._save_progress()
        self.after(self._config.transaction_check_interval_ms, _NextRound())

    # --- how far the group has come

    def _save_progress(self) -> None:
        table = self._standings.whole_table()
        if table is None or self._unsafe is not None:
            return
        progress = progress_of(self._store, table, self._checks.unreadable, self._told[1])
        if progress is None or progress[:2] == self._told:
            return
        if progress.log_end <= self._store.commit_log.flushed_offset:
            self._tell_progress(progress)
        else:
            self._unsafe = progress
            self._to["flusher"].tell(Sync(progress.log_end, self.address))

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """What the offsets pass is on the disk."""
        progress, self._unsafe = self._unsafe, None
        if progress is not None and message.flushed_offset >= progress.log_end:
            self._tell_progress(progress)

    def _tell_progress(self, progress: TransactionProgress) -> None:
        self._told = progress.half_offset, progress.op_offset
        for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), self._told, strict=True):
            self._to["consumer_offsets"].tell(CommitOffset(TRANSACTION_GROUP, topic, 0, offset))

    def can_stop(self) -> bool:
        """Once it is known what became of everything that was put."""
        if self._standings.busy or self._resuming > 0:
            return False
        if not self._is_last_saved and not self._config.is_slave:
            self._is_last_saved = True
            self._save_progress()
        return self._unsafe is None

    def on_failure(self, *_: object) -> None:
        """Nobody who waits is left silent."""
        for waiting in self._standings.busy.values():
            for end in waiting:
                end.refuse(_INTERRUPTED)
        for put in self._puts:
            put.refuse(_INTERRUPTED)
