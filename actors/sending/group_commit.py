"""Group commit: answers sends that wait for the disk or a slave, with one sync for many.

Owns: the queue of sends and internal appends that wait.
Receives: CommitUpTo from PutMessage; Synced from the flusher; Acked from HaMaster; AskFigures from
MetricsPort; its own tick for deadlines.
Sends: Sync to the flusher, one at a time; LogGrew to HaMaster when flushed bytes may be
transferred; answers to the connections; WritesForbidden to PutMessage when the disk failed.

While one sync runs, the next group gathers. If a sync fails, or does not return within
syncFlushTimeout, its sends are answered FLUSH_DISK_TIMEOUT, never OK. Their records stay in the
log.

A SYNC_MASTER waits for a slave at the same time. It answers FLUSH_SLAVE_TIMEOUT when no slave has
the message within slaveTimeout. It answers SLAVE_NOT_AVAILABLE at once when no slave is connected
or near enough. When both disk and slave fail, the answer is the slave's status.

Source: CommitLog.java (GroupCommitService, submitReplicaRequest), HAService.GroupTransferService.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.sending.messages import (
    Acked,
    CommitFigures,
    CommitUpTo,
    InternalAppend,
    Sync,
    Synced,
    answer_flushed,
)
from actors.sending.put_answers import PutAnswers, SendPut
from actors.sending.replication_progress import ReplicaWait, SlaveNotifier
from protocol.codes import ResponseCode
from storage.log.commit_log import CommitLog

DEADLINE_TICK_MS = 100
_OK = ResponseCode.SUCCESS


@dataclass(slots=True)
class _Tick:
    """Timer tick: answer sends past their deadline."""


@dataclass(slots=True)
class _Waiting:
    """One batch; a code is None while that result is pending."""

    offset: int
    stored: Sequence[SendPut]
    own: Sequence[InternalAppend]
    flush_deadline_ms: float
    replica_deadline_ms: float
    flush_code: ResponseCode | None = None
    replica_code: ResponseCode | None = None

    @property
    def first_offset(self) -> int:
        """Physical offset of the first record."""
        return (self.stored or self.own)[0].first_offset


class GroupCommit(Actor):
    """Actor on the event loop; the flusher and the slaves do the waiting."""

    def __init__(
        self,
        commit_log: CommitLog,
        answers: PutAnswers,
        *,
        is_sync_flush: bool,
        flush_timeout_ms: int,
        slaves: SlaveNotifier,
        replica_wait: ReplicaWait | None,
        flusher: ActorAddress,
        put_message: ActorAddress,
    ) -> None:
        """Initialize the actor. Without a `replica_wait`, sends do not wait for slaves."""
        super().__init__()
        self._log = commit_log
        self._answers = answers
        self._is_sync_flush = is_sync_flush
        self._flush_timeout_ms = flush_timeout_ms
        self._slaves, self._replicas = slaves, slaves.replicas
        self._replica_wait = replica_wait
        self._flusher = flusher
        self._put_message = put_message
        self._unflushed: deque[_Waiting] = deque()
        self._unreplicated: deque[_Waiting] = deque()
        self._wanted = 0
        self._syncing = False
        self._failed = False

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(CommitFigures(len(self._unflushed) + len(self._unreplicated)))

    def on_start(self) -> None:
        self.every(DEADLINE_TICK_MS, _Tick())

    @handles(CommitUpTo)
    def on_commit(self, message: CommitUpTo) -> None:
        """Queue the sends and start a sync unless one is running."""
        # An earlier sync may already have included the bytes of this message.
        flushed = not self._is_sync_flush or message.offset <= self._log.flushed_offset
        if message.stored or message.own:
            self._take(message, _OK if flushed else None, self._replica_code(message.offset))
        if flushed:
            self._slaves.log_flushed()
        else:
            self._wanted = max(self._wanted, message.offset)
            self._sync()

    def _replica_code(self, offset: int) -> ResponseCode | None:
        """Return the status of the slaves when a message arrives.

        Return None if a slave can be awaited.
        """
        wait, replicas = self._replica_wait, self._replicas
        if wait is None:
            return _OK
        if not replicas.can_follow(offset, wait.fall_behind_max_bytes):
            return ResponseCode.SLAVE_NOT_AVAILABLE
        return None

    def _take(
        self,
        message: CommitUpTo,
        flush_code: ResponseCode | None,
        replica_code: ResponseCode | None,
    ) -> None:
        now_ms = self.system.clock.monotonic_ms()
        wait = self._replica_wait
        waiting = _Waiting(
            message.offset,
            message.stored,
            message.own,
            now_ms + self._flush_timeout_ms,
            now_ms + (wait.timeout_ms if wait is not None else 0),
            flush_code,
            replica_code,
        )
        if flush_code is None:
            self._unflushed.append(waiting)
        if replica_code is None:
            self._unreplicated.append(waiting)
        if replica_code is None and message.offset <= self._replicas.acked_offset:
            self.on_acked(Acked())  # the slave was faster than this message
        elif flush_code is not None and replica_code is not None:
            self._answer([waiting])

    def _sync(self) -> None:
        if not self._syncing and self._wanted > self._log.flushed_offset and not self._failed:
            self._syncing = True
            self._flusher.tell(Sync(self._wanted, self.address))
        elif self._failed:
            self._end_flush_waits()

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Answer what is synced now, and start the sync of the next group."""
        self._syncing = False
        done: list[_Waiting] = []
        while self._unflushed and self._unflushed[0].offset <= message.flushed_offset:
            done.append(self._unflushed.popleft())
            done[-1].flush_code = _OK
        self._answer(done)
        if message.failure is not None:
            self._failed = True
            self._put_message.tell(WritesForbidden(message.failure, "group commit", final=True))
            self._end_flush_waits()
        else:
            self._slaves.log_flushed()
        self._sync()

    @handles(Acked)
    def on_acked(self, _: Acked) -> None:
        """Answer what a slave has acknowledged or skipped."""
        done: list[_Waiting] = []
        replicas = self._replicas
        while self._unreplicated and self._unreplicated[0].offset <= replicas.acked_offset:
            waiting = self._unreplicated.popleft()
            skipped = waiting.first_offset < replicas.skipped_below
            waiting.replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT if skipped else _OK
            done.append(waiting)
        self._answer(done)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Answer the sends that have waited past the deadline of their sync or slave."""
        now_ms = self.system.clock.monotonic_ms()
        late: list[_Waiting] = []
        while self._unreplicated and self._unreplicated[0].replica_deadline_ms <= now_ms:
            late.append(self._unreplicated.popleft())
            late[-1].replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self._answer(late)
        late = []
        while self._unflushed and self._unflushed[0].flush_deadline_ms <= now_ms:
            late.append(self._unflushed.popleft())
            late[-1].flush_code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._answer(late)

    def _answer(self, touched: Sequence[_Waiting]) -> None:
        """Answer the batches with both results, one message per connection."""
        by_code: dict[ResponseCode, list[SendPut]] = {}
        for waiting in touched:
            if waiting.flush_code is None or waiting.replica_code is None:
                continue
            code = waiting.flush_code if waiting.replica_code is _OK else waiting.replica_code
            by_code.setdefault(code, []).extend(waiting.stored)
            if waiting.own:
                answer_flushed(waiting.own, code)
        for code, stored in by_code.items():
            self._answers.stored(stored, code)

    def _end_flush_waits(self) -> None:
        late = list(self._unflushed)
        self._unflushed.clear()
        for waiting in late:
            waiting.flush_code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._answer(late)

    def _end_all_waits(self) -> None:
        late = list(self._unreplicated)
        self._unreplicated.clear()
        for waiting in late:
            waiting.replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self._answer(late)
        self._end_flush_waits()

    def on_failure(self, *_: object) -> None:
        """Answer everything that waits: it is stored, but its durability is unknown."""
        self._end_all_waits()

    def can_stop(self) -> bool:
        """Return whether everything is answered; the flusher and HaMaster stop after this actor."""
        return not self._unflushed and not self._unreplicated

    def on_stop(self) -> None:
        """Answer the sends that have waited longer than a stop may take."""
        self._end_all_waits()
