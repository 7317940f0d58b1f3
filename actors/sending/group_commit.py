"""GroupCommit: sends that wait for the disk or a slave; one sync for all of them.

Owns: the queue of sends that wait, and of other actors' messages that do.
Told by: PutMessage (`CommitUpTo`), the flusher (`Synced`), HaMaster (`Acked`), its own tick
(deadlines).
Tells: the flusher (`Sync`, one at a time), HaMaster (`LogGrew`: what is flushed may be
transferred), the connections (answers), PutMessage (`WritesForbidden`, when the disk failed).

While one sync runs, the next group gathers.  A send whose sync fails, or does not return within
syncFlushTimeout, is answered FLUSH_DISK_TIMEOUT, never OK; what was written is kept.

Of a SYNC_MASTER the wait for a slave runs beside that: FLUSH_SLAVE_TIMEOUT when none has the
message within slaveTimeout, SLAVE_NOT_AVAILABLE at once when none is there or near enough. When
disk and slave both fail the slave's status is the answer.

Source: CommitLog.java (GroupCommitService, submitReplicaRequest), HAService.GroupTransferService.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.sending.flusher import Sync, Synced
from actors.sending.put_answers import PutAnswers, SendPut
from actors.sending.replication_progress import Acked, ReplicaWait, SlaveNotifier
from protocol.codes import ResponseCode
from storage.log.commit_log import CommitLog

DEADLINE_TICK_MS = 100
_OK = ResponseCode.SUCCESS


class WaitsForFlush(Protocol):
    """A message of the broker's own, whose sender is told how safe it is."""

    @property
    def first_offset(self) -> int:
        """Where the first of its records lies."""

    def flushed(self, code: ResponseCode) -> None:
        """It is as safe as `code` says."""


@dataclass(slots=True)
class CommitUpTo:
    """Answer `stored` when the log is safe up to `offset`; none: only wake the flusher."""

    offset: int
    stored: Sequence[SendPut]
    own: Sequence[WaitsForFlush] = ()

    def refuse(self, remark: str) -> None:
        """What is ours is told that nobody knows how safe it is; sends are answered elsewhere."""
        for put in self.own:
            put.flushed(ResponseCode.FLUSH_DISK_TIMEOUT)


@dataclass(slots=True)
class _Tick:
    """Look for sends that waited too long."""


@dataclass(slots=True)
class _Waiting:
    """One batch; what is None is still to come."""

    offset: int
    stored: Sequence[SendPut]
    own: Sequence[WaitsForFlush]
    flush_deadline_ms: float
    replica_deadline_ms: float
    flush_code: ResponseCode | None = None
    replica_code: ResponseCode | None = None

    @property
    def first_offset(self) -> int:
        """Where the first of its records lies."""
        return (self.stored or self.own)[0].first_offset


class GroupCommit(Actor):
    """Lives on the loop; the waiting itself is the flusher's and the slaves'."""

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
        """Without a `replica_wait` nobody waits for slaves."""
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

    @property
    def waiting_count(self) -> int:
        """Batches that wait for the disk or a slave."""
        return len(self._unflushed) + len(self._unreplicated)

    def on_start(self) -> None:
        self.every(DEADLINE_TICK_MS, _Tick())

    @handles(CommitUpTo)
    def on_commit(self, message: CommitUpTo) -> None:
        """Queues the sends and starts a sync unless one is running."""
        # The sync before this message was asked for may have taken its bytes along.
        flushed = not self._is_sync_flush or message.offset <= self._log.flushed_offset
        if message.stored or message.own:
            self._take(message, _OK if flushed else None, self._replica_code(message.offset))
        if flushed:
            self._slaves.log_flushed()
        else:
            self._wanted = max(self._wanted, message.offset)
            self._sync()

    def _replica_code(self, offset: int) -> ResponseCode | None:
        """What is known of the slaves when a message comes."""
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
        """Answers what is on the disk now, and goes on with what gathered meanwhile."""
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
        """Answers what a slave has now, and what it has skipped."""
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
        """Answers the sends whose sync or slave did not answer in time."""
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
        """Answers those for which both disk and slave are decided, one message per connection."""
        by_code: dict[ResponseCode, list[SendPut]] = {}
        for waiting in touched:
            if waiting.flush_code is None or waiting.replica_code is None:
                continue
            code = waiting.flush_code if waiting.replica_code is _OK else waiting.replica_code
            by_code.setdefault(code, []).extend(waiting.stored)
            for put in waiting.own:
                put.flushed(code)
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
        """Nothing that waited is left silent; it is stored, but nobody knows how safe it is."""
        self._end_all_waits()

    def can_stop(self) -> bool:
        """Once the rest is safe and answered: flusher and HaMaster are stopped behind this one."""
        return not self._unflushed and not self._unreplicated

    def on_stop(self) -> None:
        """Who is still here has waited longer than a stop may take."""
        self._end_all_waits()
