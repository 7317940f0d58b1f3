"""The only actor that appends: it replaces 4.9.7's append lock.

Owns: the tail of the commit log, the next offset of every queue, the counters of puts.
Receives: Sends (all sends of one read) from connections; InternalAppend and InternalAppendGroup
from Schedule, SendBack, PullMessage, Transactions, ReplyMessage and Sink; FilePrepared and
FileFailed from AllocateFile; TopicReady from the topic table; WritesForbidden from GroupCommit,
Reput and CleanFiles; DropFiles and QueuesGone from CleanFiles.
Sends: answers to the connections at the end of the batch; CommitUpTo to GroupCommit under
SYNC_FLUSH or SYNC_MASTER; LogGrew to HaMaster; Appended to Reput, with the entries to dispatch, so
that nothing is parsed twice; PrepareFile to AllocateFile; CreateTopicOnSend and CreateSystemTopic
to the topic table, while the sends are parked in order.

A batch is everything in the inbox: checked one by one, written with one call, and answered with one
message per connection. The path of a send:

    protocol/send_wire.py      cuts a frame into a `Send`; all of one read form a `Sends`
    put_message.py             keeps admitted sends for the end of the batch (`on_sends`)
    admission.py               turns a send into a `SendPut` with records, refuses it, or parks it
                               until its topic is made
        send_rules.py              4.9.7's checks, codes and texts
        property_rewriter.py       stored properties and tags code
    appender.py                gives queue offsets, appends, returns the entries to dispatch
        storage/log/               one write; the rest waits for the next file (LogTail)
    put_answers.py             answers at once, or after group_commit.py

Internal appends (internal_append.py) take the same path from appender.py on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from actors.config import BrokerConfig
from actors.dispatching.messages import Appended, WritesForbidden
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.messages import Sends
from actors.retention.messages import DropFiles, FilesDropped, QueuesGone
from actors.sending.admission import BUSY, Admission
from actors.sending.appender import Appender, Put
from actors.sending.half_message_cache import HalfMessageCache
from actors.sending.internal_append import COMMIT_RECORDS, InternalAppends
from actors.sending.messages import (
    CommitUpTo,
    FileFailed,
    FilePrepared,
    InternalAppend,
    InternalAppendGroup,
    PrepareFile,
    TimersStored,
    answer_appends,
)
from actors.sending.put_answers import PutAnswers, SendPut
from actors.sending.replication_progress import SlaveNotifier
from actors.sending.send_rules import RefusedError
from actors.statistics.counts import PUT_BOUNDS_MS, PutStats
from actors.tables.messages import TopicReady
from protocol.bodies_tables import TopicConfig
from protocol.codes import ResponseCode
from storage.config import StoreConfig
from storage.dispatching.dispatch import INDEXED_WORDS_MAX
from storage.errors import StoreError
from storage.files.disk import Disk
from storage.log.commit_log import CommitLog
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import Dispatched
from storage.retention.cleaning import disk_use

log = get_logger(__name__)

COMMIT_BYTES = 1 << 20
"""Bytes of bodies that trigger a write before the end of the batch."""

SLOW_PUT_MS = 500.0
TICK_MS = 100
REFUSED_AT_ONCE = 4_000
"""Late sends that are refused in a round of the loop: 20 ms."""

CREATE_FAILED = "create mapped file failed, server is busy or broken."
_STOPPED = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full [%s], messages are put to the slave, "
    "message store has been shut down, etc."
)


@dataclass(slots=True)
class _Tick:
    """Timer tick: refuse sends that waited too long for a file."""


@dataclass(slots=True)
class _GoOn:
    """Continue with a long batch."""


class LogTail:
    """Tail of the commit log for its writer: next file, write permission, dispatch.

    PutMessage owns it, or PutReplica on a slave.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        config: StoreConfig,
        disk: Disk,
        *,
        addresses: Mapping[str, ActorAddress],
        owner: ActorAddress,
    ) -> None:
        """`owner` receives the files."""
        self._log = commit_log
        self._config, self._disk = config, disk
        self._allocate_file, self._reput = addresses["allocate_file"], addresses["reput"]
        self._owner = owner
        self._file_wanted = -1
        self._forbidden: dict[str, WritesForbidden] = {}
        self.is_forbidden = False
        """Whether any source forbids writes."""
        self.waits_for_file = False
        """Whether records wait for the next file; set by the owner."""

    # --- room

    def want_file(self) -> None:
        offset = self._log.next_file_offset_to_prepare()
        if offset is not None and offset != self._file_wanted:
            self._file_wanted = offset
            self._allocate_file.tell(PrepareFile(offset, self._owner))

    def adopt(self, message: FilePrepared) -> bool:
        """Adopt the file and return True.

        Return False if the log already has it, from an earlier instance of the owner.
        """
        if message.offset != self._log.queue.capacity_end:
            return False
        self._log.adopt(message.file)
        self.waits_for_file = False
        return True

    def give_up_file(self) -> bool:
        """Allow another request for the failed file; return whether records waited for it."""
        self._file_wanted = -1
        waited, self.waits_for_file = self.waits_for_file, False
        return waited

    def drop_files(self, message: DropFiles) -> None:
        """Drop the files before an offset, but never the last one."""
        message.reply_to.tell(FilesDropped(self._log.drop_before(message.offset)))

    # --- write permission

    def forbid(self, message: WritesForbidden) -> None:
        """Apply a ban of its source, or its end."""
        before = self._forbidden.get(message.source)
        if before is not None and before.final:
            return
        if message.reason is not None:
            self._forbidden[message.source] = message
            if before is None:
                log.error("writes disabled", reason=message.reason)
        elif self._forbidden.pop(message.source, None) is not None and not self._forbidden:
            log.info("writes enabled")
        self.is_forbidden = bool(self._forbidden)

    def is_forbidden_but_by(self, source: str) -> bool:
        """Return whether another source than `source` forbids writes."""
        return any(each != source for each in self._forbidden)

    def not_available(self) -> RefusedError:
        """Return the refusal of a message while writes are disabled."""
        used = disk_use(self._config, self._disk)
        return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPPED % used)

    # --- dispatch

    def dispatch(self, entries: list[Dispatched]) -> None:
        """Send Reput these records, up to the end of the log."""
        self._reput.tell(Appended(self._log.end_offset, entries))


class PutMessage(Actor):
    """Actor on the event loop that appends all messages."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        appender: Appender,
        admission: Admission,
        internal_appends: InternalAppends,
        log_end: LogTail,
        answers: PutAnswers,
        recent_halves: HalfMessageCache,
        stats: PutStats,
        slaves: SlaveNotifier,
        group_commit: ActorAddress,
        schedule: Callable[[int], ActorAddress],
    ) -> None:
        """`schedule` returns the address of a delay level."""
        super().__init__()
        self._store, self._config = store, config
        self._topics = topics
        self._appender, self._admission, self._own = appender, admission, internal_appends
        self._end = log_end
        self._answers, self._recent_halves = answers, recent_halves
        self._stats, self._slaves = stats, slaves
        self._group_commit, self._schedule = group_commit, schedule
        self._waits = store.config.is_sync_flush or config.is_sync_master
        self._pending: list[SendPut] = []
        self._pending_bytes = 0
        self._batch_started_ms = 0.0
        self._goes_on = self._is_failing = False

    def on_start(self) -> None:
        self._appender.start_at(self._store.consume_queues.next_offsets())
        self._end.want_file()
        self.every(TICK_MS, _Tick())

    # --- requests

    @handles(Sends)
    def on_sends(self, message: Sends) -> None:
        """Check every send; keep accepted ones for the end of the batch."""
        if self._end.is_forbidden:
            self._admission.refuse(message, self._end.not_available())
            return
        arrived_ms = self.system.clock.monotonic_ms()
        if not self._pending:
            self._batch_started_ms = arrived_ms
        self._pending_bytes += self._admission.admit(message, self._pending, arrived_ms)
        if self._pending_bytes > COMMIT_BYTES and not self._end.waits_for_file:
            self._commit()

    @handles(TopicReady)
    def on_topic_ready(self, message: TopicReady) -> None:
        """Continue with everything parked for the topic, in order."""
        self._own.topic_ready(message, self._topics.value)
        error = self._end.not_available() if self._end.is_forbidden else None
        arrived_ms = self.system.clock.monotonic_ms()
        self._pending_bytes += self._admission.topic_ready(
            message, self._pending, arrived_ms, error
        )

    @handles(InternalAppend)
    def on_internal_append(self, message: InternalAppend) -> None:
        self._own.keep(message, self._topics.value)
        if self._own.pending_count >= COMMIT_RECORDS and not self._end.waits_for_file:
            self._commit_own()

    @handles(InternalAppendGroup)
    def on_internal_append_group(self, message: InternalAppendGroup) -> None:
        for append in message.appends:
            append.group_result = message.group_result
            self.on_internal_append(append)

    # --- the end of a batch

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        if self._admission.topics_with_cut_keys:
            self._warn_of_cut_keys()
        self._admission.end_turn()
        if self._admission.long_batches.waiting and not self._end.waits_for_file:
            self._continue_long_batch()
        if self._pending and not self._end.waits_for_file:
            self._commit()
        if self._own.pending and not self._end.waits_for_file:
            self._commit_own()

    def _continue_long_batch(self) -> None:
        """Add the next piece of a long batch to the pending sends, and go on in the next round."""
        batches = self._admission.long_batches
        if self._end.is_forbidden:
            batches.refuse_all(self._end.not_available())
            return
        arrived_ms = self.system.clock.monotonic_ms()
        if not self._pending:
            self._batch_started_ms = arrived_ms
        piece = batches.next_piece(arrived_ms)
        if piece is not None:
            self._pending.append(piece)
        if batches.waiting and not self._goes_on:
            self._goes_on = True
            self.system.loop.tell_in_next_round(self.address, _GoOn())

    @handles(_GoOn)
    def on_go_on(self, _: _GoOn) -> None:
        """Do nothing more: the batch end that follows continues the long batch."""
        self._goes_on = False

    def _warn_of_cut_keys(self) -> None:
        topics = self._admission.topics_with_cut_keys
        self.system.rarely.warn(
            "message keys left out of the index",
            names=sorted(topics),
            indexed_words_max=INDEXED_WORDS_MAX,
            hint="send fewer words in KEYS",
        )
        topics.clear()

    def _commit(self) -> None:
        """Write all pending sends and answer them; those without room wait for the next file."""
        appended = self._append(self._pending)
        if appended is None:
            self._refuse_pending(self._end.not_available())
            return
        count, entries = appended
        stored, self._pending = self._pending, []
        if count < len(stored):
            stored, self._pending = stored[:count], stored[count:]
        self._pending_bytes = 0
        if entries:
            if self._recent_halves.expected:
                self._recent_halves.stored()
            if self._waits:
                stored = self._answer_later(stored)
            if stored:
                self._answers.stored(stored, ResponseCode.SUCCESS)
            self._end.dispatch(entries)
        self._count_duration(self.system.clock.monotonic_ms() - self._batch_started_ms, count)

    def _count_duration(self, took_ms: float, sends: int) -> None:
        stats = self._stats
        stats.durations[bisect_left(PUT_BOUNDS_MS, took_ms)] += sends
        stats.total_ms += took_ms * sends
        if took_ms > stats.longest_put_ms:
            stats.longest_put_ms = took_ms
        if took_ms > SLOW_PUT_MS:
            log.warning("slow put", ms=round(took_ms), sends=sends)

    def _answer_later(self, stored: Sequence[SendPut]) -> list[SendPut]:
        """Send GroupCommit the sends that wait; return those with WAIT=false."""
        later = [put for put in stored if put.waits]
        self._group_commit.tell(CommitUpTo(self._store.commit_log.end_offset, later))
        return [put for put in stored if not put.waits] if len(later) < len(stored) else []

    def _commit_own(self) -> None:
        """Write and answer the pending internal appends until all are tried or wait for a file."""
        if self._end.is_forbidden:
            self._own.refuse(self._end.not_available())
            return
        while self._own.pending and not self._end.waits_for_file:
            puts = self._own.puts()
            appended = self._append(puts)
            if appended is None:
                self._own.refuse(self._end.not_available())
                return
            count, entries = appended
            self._answer_own(self._own.stored(puts[:count]))
            if entries:
                self._end.dispatch(entries)

    def _answer_own(self, done: Sequence[InternalAppend]) -> None:
        if self._waits:
            later = [each for each in done if each.waits]
            self._group_commit.tell(CommitUpTo(self._store.commit_log.end_offset, (), later))
            done = [each for each in done if not each.waits]
        answer_appends(done, ResponseCode.SUCCESS)

    def _append(self, puts: Sequence[Put]) -> tuple[int, list[Dispatched]] | None:
        """Return how many of `puts` are stored, and the entries to dispatch.

        Return None if the disk failed; then all must be refused.
        """
        try:
            now_ms = self.system.clock.now_ms()
            count, entries = self._appender.append(puts, now_ms) if puts else (0, [])
        except (OSError, StoreError) as error:
            if not self._is_failing:
                log.error("append failed", reason=str(error), puts=len(puts))
            self._is_failing = True
            return None
        if self._is_failing and puts:
            log.info("append succeeded again")
            self._is_failing = False
        self._end.waits_for_file = count < len(puts)
        self._end.want_file()
        if entries and self._slaves.replicas.link_count:
            self._slaves.log_grew()  # before all else, so that the slave works meanwhile
        if self._appender.timers:
            self._tell_of_timers()
        return count, entries

    def _tell_of_timers(self) -> None:
        by_level: dict[int, list[tuple[int, int]]] = {}
        for record in self._appender.timers:
            timer = record.due_ms, record.queue_offset
            by_level.setdefault(record.queue_id + 1, []).append(timer)
        self._appender.timers.clear()
        for level, timers in by_level.items():
            self._schedule(level).tell(TimersStored(timers))

    # --- files

    @handles(FilePrepared)
    def on_file_prepared(self, message: FilePrepared) -> None:
        """Adopt the file and write what waits for it."""
        if self._end.adopt(message):
            self.on_batch_end(BatchEnd())

    @handles(FileFailed)
    def on_file_failed(self, message: FileFailed) -> None:
        """Refuse everything that waits for the file; the next send requests it again."""
        if self._end.give_up_file():
            error = RefusedError(ResponseCode.SYSTEM_ERROR, CREATE_FAILED)
            self._own.refuse(error)
            self._refuse_pending(error)

    @handles(DropFiles)
    def on_drop_files(self, message: DropFiles) -> None:
        self._end.drop_files(message)

    @handles(QueuesGone)
    def on_queues_gone(self, message: QueuesGone) -> None:
        """Restart the offsets of removed queues, unless a message has arrived meanwhile."""
        self._appender.forget_queues(message.queues, self._store.consume_queues.end_of)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Refuse sends that have waited for a file longer than osPageCacheBusyTimeOutMills."""
        if not self._end.waits_for_file:
            return
        oldest_ms = self.system.clock.monotonic_ms() - self._config.os_page_cache_busy_timeout_ms
        count = bisect_right(self._pending, oldest_ms, key=lambda put: put.arrived_ms)
        if count > REFUSED_AT_ONCE:
            count = REFUSED_AT_ONCE
            self.system.loop.tell_in_next_round(self.address, _Tick())
        if count:
            late, self._pending = self._pending[:count], self._pending[count:]
            self._admission.refuse_puts(late, RefusedError(ResponseCode.SYSTEM_ERROR, BUSY))
            self._recent_halves.expected.clear()

    @handles(WritesForbidden)
    def on_writes_forbidden(self, message: WritesForbidden) -> None:
        """Disable or enable writes as the source of the message asks."""
        self._end.forbid(message)

    # --- stop

    def on_failure(self, *_: object) -> None:
        """Reject every accepted send that is unanswered."""
        self._refuse_waiting(RefusedError(ResponseCode.SYSTEM_ERROR, "put message restarted"))

    def on_stop(self) -> None:
        self.on_batch_end(BatchEnd())
        self._refuse_waiting(self._end.not_available())

    def _refuse_waiting(self, error: RefusedError) -> None:
        # Sends in progress at the failure were already refused together.
        self._pending = [put for put in self._pending if put.sends.owed]
        self._refuse_pending(error)
        self._admission.refuse_parked(error)
        self._admission.long_batches.refuse_all(error)
        self._own.refuse_all(error)

    def _refuse_pending(self, error: RefusedError) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        self._admission.refuse_puts(pending, error)
        self._recent_halves.expected.clear()
