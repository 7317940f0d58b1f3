"""Sync of the commit log on request: the only actor that waits for its fdatasync.

Owns: nothing.
Receives: Sync from GroupCommit, DelayOffsets, Transactions and HaSlave.
Sends: Synced to the requester.

A failed sync is final for this log: the kernel may have dropped the dirty data. Offsets that were
not synced never count as synced later, and every later sync fails.
"""

from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.histogram import ClassCounts
from actors.engine.server_log import get_logger
from actors.sending.messages import Sync, Synced
from storage.errors import StoreError
from storage.log.commit_log import CommitLog

log = get_logger(__name__)
SLOW_SYNC_MS = 500.0


class Flusher(Actor):
    """Actor on a thread: `fdatasync` releases the interpreter lock but takes long."""

    where: ClassVar[Where] = "thread"

    def __init__(self, commit_log: CommitLog, took: ClassCounts) -> None:
        """`took` collects the duration of each sync, ms."""
        super().__init__()
        self._log, self._took = commit_log, took

    @handles(Sync)
    def on_sync(self, message: Sync) -> None:
        """Sync once; both files where the range spans a roll."""
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
