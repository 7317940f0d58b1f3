"""SYNC_FLUSH: one sync for everybody who waits, and nobody told OK before it.

Owns: the queue of sends that wait for the disk, and of other actors' messages that do.
Told by: PutMessage (`CommitUpTo`), the flusher (`Synced`), its own tick (deadlines).
Tells: the flusher (`Sync`, one at a time), the connections (answers), PutMessage
(`WritesForbidden`, when the disk failed).

While one sync runs, the next group gathers.  A send whose sync fails, or does not return within
syncFlushTimeout, is answered FLUSH_DISK_TIMEOUT, never OK; what was written is kept.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.actor import Actor, handles
from actors.address import Address
from actors.flusher import Sync, Synced
from actors.put_answers import PutAnswers, Stored
from actors.reput import WritesForbidden
from protocol.codes import ResponseCode
from storage.commit_log import CommitLog

if TYPE_CHECKING:
    from actors.own_put import PutOwn

DEADLINE_TICK_MS = 100


@dataclass(slots=True)
class CommitUpTo:
    """Answer `stored` when the log is on the disk up to `offset`; none: only wake the flusher."""

    offset: int
    stored: Sequence[Stored]
    own: "Sequence[PutOwn]" = ()

    def refuse(self, remark: str) -> None:
        """What is ours is told that nobody knows how safe it is; sends are answered elsewhere."""
        for put in self.own:
            put.flushed(ResponseCode.FLUSH_DISK_TIMEOUT)


@dataclass(slots=True)
class _Tick:
    """Look for sends that waited too long."""


@dataclass(slots=True)
class _Waiting:
    offset: int
    deadline_ms: float
    stored: Sequence[Stored]
    own: "Sequence[PutOwn]"


class GroupCommit(Actor):
    """Lives on the loop; the waiting itself is the flusher's."""

    def __init__(
        self,
        commit_log: CommitLog,
        answers: PutAnswers,
        *,
        timeout_ms: int,
        flushed_code: ResponseCode = ResponseCode.SUCCESS,
        flusher: Address,
        put_message: Address,
    ) -> None:
        super().__init__()
        self._log = commit_log
        self._answers = answers
        self._timeout_ms = timeout_ms
        self._flushed_code = flushed_code
        self._flusher = flusher
        self._put_message = put_message
        self._waiting: deque[_Waiting] = deque()
        self._wanted = 0
        self._syncing = False
        self._failed = False

    def on_start(self) -> None:
        self.every(DEADLINE_TICK_MS, _Tick())

    @handles(CommitUpTo)
    def on_commit(self, message: CommitUpTo) -> None:
        """Queues the sends and starts a sync unless one is running."""
        if message.offset <= self._log.flushed_offset:
            # The sync before this message was asked for has taken its bytes along.
            self._answers.stored(message.stored, self._flushed_code)
            self._answer_own(message.own, self._flushed_code)
            return
        if message.stored or message.own:
            deadline_ms = self.system.clock.monotonic_ms() + self._timeout_ms
            waiting = _Waiting(message.offset, deadline_ms, message.stored, message.own)
            self._waiting.append(waiting)
        self._wanted = max(self._wanted, message.offset)
        self._sync()

    def _sync(self) -> None:
        if not self._syncing and self._wanted > self._log.flushed_offset and not self._failed:
            self._syncing = True
            self._flusher.tell(Sync(self._wanted, self.address))
        elif self._failed:
            self._answer_all(ResponseCode.FLUSH_DISK_TIMEOUT)

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Answers what is on the disk now, and goes on with what gathered meanwhile."""
        self._syncing = False
        done: list[Stored] = []
        while self._waiting and self._waiting[0].offset <= message.flushed_offset:
            waiting = self._waiting.popleft()
            done.extend(waiting.stored)
            self._answer_own(waiting.own, self._flushed_code)
        self._answers.stored(done, self._flushed_code)
        if message.failure is not None:
            self._failed = True
            self._put_message.tell(WritesForbidden(message.failure, "group commit", final=True))
            self._answer_all(ResponseCode.FLUSH_DISK_TIMEOUT)
        self._sync()

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Answers the sends whose sync did not return in time."""
        now_ms = self.system.clock.monotonic_ms()
        late: list[Stored] = []
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            waiting = self._waiting.popleft()
            late.extend(waiting.stored)
            self._answer_own(waiting.own, ResponseCode.FLUSH_DISK_TIMEOUT)
        self._answers.stored(late, ResponseCode.FLUSH_DISK_TIMEOUT)

    def _answer_all(self, code: int) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            self._answers.stored(waiting.stored, code)
            self._answer_own(waiting.own, code)

    @staticmethod
    def _answer_own(puts: "Sequence[PutOwn]", code: int) -> None:
        for put in puts:
            put.flushed(code)

    def on_failure(self, *_: object) -> None:
        """Nothing that waited is left silent; it is stored, but not known to be on the disk."""
        self._answer_all(ResponseCode.FLUSH_DISK_TIMEOUT)

    def can_stop(self) -> bool:
        """Once the rest is flushed and answered: the flusher is stopped behind this actor."""
        return not self._waiting

    def on_stop(self) -> None:
        """Who is still here has waited longer than a stop may take."""
        self._answer_all(ResponseCode.FLUSH_DISK_TIMEOUT)
