"""Periodic sync of commit log, queues and index, and the checkpoint that records it.

Owns: the flush intervals; the checkpoint file, the transaction table's redo log, the sinks' file.
Receives: its own ticks; QueuesWritten from Reput; LowerIndexTime and IndexSynced from CatchUp;
SyncSoon from CleanFiles.
Sends: WriteOutQueues and QueuesSynced to Reput; IndexTimeLowered to CatchUp.

Under ASYNC_FLUSH it syncs the commit log every flushIntervalCommitLog if flushCommitLogLeastPages
are dirty. Every flushCommitLogThoroughInterval it syncs whatever is dirty. Consume queues have
their own interval. On the thorough interval, and when an index file is full, the checkpoint is
written, after everything that it vouches for.

Source: CommitLog.FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService.

Flusher syncs the commit log on request. No other actor waits for its fdatasync.

Owns: nothing.
Receives: Sync from GroupCommit, DelayOffsets, Transactions and HaSlave.
Sends: Synced to the requester.

A failed sync is final for this log: the kernel may have dropped the dirty data. Offsets that were
not synced never count as synced later, and every later sync fails. After one of queues, index or
tables the checkpoint stays, so that the next start rebuilds them.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.dispatching.messages import (
    IndexSynced,
    IndexTimeLowered,
    LowerIndexTime,
    QueuesSynced,
    QueuesWritten,
    WriteOutQueues,
)
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from actors.engine.server_log import get_logger
from actors.retention.messages import SyncSoon
from actors.sending.messages import Sync, Synced
from storage.errors import StoreError, SyncFailed
from storage.log.commit_log import CommitLog
from storage.message_store import MessageStore
from storage.queues.unsynced import sync_files

log = get_logger(__name__)
PAGE_BYTES = 4096


@dataclass(slots=True)
class _LogTick:
    """Timer tick: check whether the commit log needs a sync."""


@dataclass(slots=True)
class _QueueTick:
    """Timer tick: check whether the consume queues need a sync."""


class FlushRealTime(Actor):
    """Actor on a thread, because it waits for the disk."""

    where: ClassVar[Where] = "thread"

    def __init__(self, store: MessageStore, reput: ActorAddress, took: ClassCounts) -> None:
        """`took` collects the duration of each sync of the commit log, ms."""
        super().__init__()
        self._took = took
        self._store = store
        self._config = store.config
        self._reput = reput
        self._log_flushed_ms = 0.0
        self._queues_flushed_ms = 0.0
        self._queues_asked = self._syncs_again = False
        self._failed = self._queues_failing = False

    def on_start(self) -> None:
        self._log_flushed_ms = self._queues_flushed_ms = self.system.clock.monotonic_ms()
        if self._config.flush_disk_type == "ASYNC_FLUSH":
            self.every(self._config.flush_interval_ms, _LogTick())
        self.every(self._config.flush_queue_interval_ms, _QueueTick())

    @handles(_LogTick)
    def on_log_tick(self, _: _LogTick) -> None:
        """Sync the commit log if enough is dirty, or if it has been dirty for long."""
        now_ms = self.system.clock.monotonic_ms()
        commit_log = self._store.commit_log
        dirty_bytes = commit_log.end_offset - commit_log.flushed_offset
        thorough = now_ms - self._log_flushed_ms >= self._config.flush_thorough_interval_ms
        if dirty_bytes and (thorough or dirty_bytes >= self._config.flush_least_pages * PAGE_BYTES):
            self._sync_log()

    def _sync_log(self) -> None:
        if self._failed:
            return
        now_ms = self.system.clock.monotonic_ms()
        try:
            self._store.commit_log.sync(self._store.commit_log.end_offset)
            after_ms = self.system.clock.monotonic_ms()
            self._took.note(after_ms - now_ms)
            self._log_flushed_ms = after_ms
        except (OSError, StoreError) as error:
            # ASYNC_FLUSH promises no durability; only alert the operator.
            self._failed = True
            log.error("sync of the commit log failed", reason=str(error))

    @handles(_QueueTick)
    def on_queue_tick(self, _: _QueueTick) -> None:
        if self._queues_asked:
            return
        now_ms = self.system.clock.monotonic_ms()
        thorough = now_ms - self._queues_flushed_ms >= self._config.flush_queue_thorough_interval_ms
        self._queues_asked, self._syncs_again = True, False
        least_pages = 0 if thorough else max(1, self._config.flush_queue_least_pages)
        self._reput.tell(WriteOutQueues(least_pages, self.address))

    @handles(QueuesWritten)
    def on_queues_written(self, message: QueuesWritten) -> None:
        """Sync the files; after a thorough round save the checkpoint."""
        self._queues_asked = False
        if self._store.sync_failure:
            return
        unsynced = message.unsynced
        try:
            sync_files(self.system.disk, unsynced.files)
            full_index = message.full_index
            if full_index is not None:
                sync_files(self.system.disk, full_index.files)
                self._store.checkpoint.advance(index_ms=full_index.end_timestamp)
            if message.table is not None:
                sync_files(self.system.disk, message.table.files)
                self._store.transaction_table.save(message.table)
            if message.sinks is not None:
                self._store.sink_table.save(message.sinks)
            self._reput.tell(QueuesSynced(unsynced, full_index, message.table, message.sinks))
            if unsynced.store_timestamp is not None:
                if not self._syncs_again:
                    self._queues_flushed_ms = self.system.clock.monotonic_ms()
                self._store.queue_list.save(unsynced.names)
                if self._store.commit_log.flushed_offset < unsynced.covered_offset:
                    self._sync_log()  # else a start reads records of queues that were removed
                self._store.checkpoint.advance(
                    logics_ms=unsynced.store_timestamp,
                    durable_offset=min(
                        unsynced.covered_offset, self._store.commit_log.flushed_offset
                    ),
                )
            if unsynced.store_timestamp is not None or full_index is not None:
                self._save_checkpoint()
        except (OSError, StoreError) as error:
            if isinstance(error, SyncFailed):
                self._store.sync_failure = str(error)
            if not self._queues_failing:
                log.error("sync of the consume queues failed", reason=str(error))
            self._queues_failing = True
        else:
            if self._queues_failing:
                log.info("consume queues synced again")
            self._queues_failing = False

    @handles(SyncSoon)
    def on_sync_soon(self, _: SyncSoon) -> None:
        """Make the next tick a thorough one, which saves the list of queues: some were removed."""
        self._queues_flushed_ms, self._syncs_again = float("-inf"), True

    @handles(LowerIndexTime)
    def on_lower_index_time(self, message: LowerIndexTime) -> None:
        """Lower the index time of the checkpoint, so that it does not vouch for new index files.

        Index files were dropped.
        """
        self._store.checkpoint.lower_index(message.index_ms)
        try:
            self._save_checkpoint()
        except (OSError, StoreError) as error:
            log.error("checkpoint not written", reason=str(error))
            message.reply_to.tell(IndexTimeLowered(False))
        else:
            message.reply_to.tell(IndexTimeLowered(True))

    @handles(IndexSynced)
    def on_index_synced(self, message: IndexSynced) -> None:
        """Advance the checkpoint: CatchUp has filled and synced index files."""
        self._store.checkpoint.advance(index_ms=message.index_ms)

    def _save_checkpoint(self) -> None:
        checkpoint = self._store.checkpoint
        checkpoint.advance(physic_ms=self._store.commit_log.flushed_store_timestamp)
        checkpoint.save()


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
