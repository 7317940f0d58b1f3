"""Puts the commit log on the disk: the only place where anybody waits for it.

Owns: the rhythm of nothing; it syncs when asked.
Told by: GroupCommit, FlushRealTime, DelayOffsets, Transactions (`Sync`).
Tells: whoever asked (`Synced`).

A failed sync is final for this log: the kernel may have dropped what it could not write, so what
was not on the disk then never counts as being there, and every later sync says so again.
"""

from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from storage.errors import StoreError
from storage.log.commit_log import CommitLog

log = get_logger(__name__)
SLOW_SYNC_MS = 500.0


@dataclass(slots=True)
class Sync:
    """Bring everything below `offset` onto the disk, then tell `reply_to`."""

    offset: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """The flusher died with it: nothing more is on the disk, and the next one may be asked."""
        self.reply_to.tell(Synced(0))


@dataclass(slots=True)
class Synced:
    """Everything below `flushed_offset` is on the disk; `failure` says why not more is."""

    flushed_offset: int
    failure: str | None = None


class Flusher(Actor):
    """Runs on a thread: `fdatasync` lets the interpreter go, but takes its time."""

    where: ClassVar[Where] = "thread"

    def __init__(self, commit_log: CommitLog, took: ClassCounts) -> None:
        """`took` gets how long each sync took, ms."""
        super().__init__()
        self._log, self._took = commit_log, took

    @handles(Sync)
    def on_sync(self, message: Sync) -> None:
        """One sync; both files where the range spans a roll."""
        started_ms = self.system.clock.monotonic_ms()
        failure = None
        try:
            self._log.sync(message.offset)
        except (OSError, StoreError) as error:
            failure = str(error)
            log.error("sync of the commit log failed", offset=message.offset, reason=failure)
        took_ms = self.system.clock.monotonic_ms() - started_ms
        self._took.note(took_ms)
        if took_ms > SLOW_SYNC_MS:
            log.warning("slow sync of the commit log", ms=round(took_ms))
        message.reply_to.tell(Synced(self._log.flushed_offset, failure))
