"""The rhythm by which what is written reaches the disk, and the checkpoint that says so.

Owns: the rhythm; the checkpoint file, the transaction table's redo log, the sinks' file.
Told by: its own ticks, Reput (`QueuesWritten`), CatchUp (`LowerIndexTime`, `IndexSynced`),
CleanFiles (`SyncSoon`).
Tells: Reput (`WriteOutQueues`, `QueuesSynced`), CatchUp (`IndexTimeLowered`).

Under ASYNC_FLUSH it syncs the commit log every flushIntervalCommitLog when
flushCommitLogLeastPages are dirty, and whatever is dirty every flushCommitLogThoroughInterval.
Consume queues follow their own interval; on the thorough one the checkpoint is written, after
everything that it vouches for; so it is when a file of the index is full.

Source: CommitLog.FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService.
"""

from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.dispatching.hand_over import IndexSynced, IndexTimeLowered, LowerIndexTime
from actors.dispatching.sync_queues import QueuesSynced, QueuesWritten, WriteOutQueues
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from actors.retention.messages import SyncSoon
from storage.errors import StoreError
from storage.message_store import MessageStore
from storage.queues.unsynced import sync_files

log = get_logger(__name__)
PAGE_BYTES = 4096


@dataclass(slots=True)
class _LogTick:
    """Look whether the log wants a sync."""


@dataclass(slots=True)
class _QueueTick:
    """Look whether the queues want one."""


class FlushRealTime(Actor):
    """Runs on a thread: it waits for the disk."""

    where: ClassVar[Where] = "thread"

    def __init__(self, store: MessageStore, reput: ActorAddress, took: ClassCounts) -> None:
        """`took` gets how long each sync of the log took, ms."""
        super().__init__()
        self._took = took
        self._store = store
        self._config = store.config
        self._reput = reput
        self._log_flushed_ms = 0.0
        self._queues_flushed_ms = 0.0
        self._queues_asked = False
        self._failed = False

    def on_start(self) -> None:
        self._log_flushed_ms = self._queues_flushed_ms = self.system.clock.monotonic_ms()
        if self._config.flush_disk_type == "ASYNC_FLUSH":
            self.every(self._config.flush_interval_ms, _LogTick())
        self.every(self._config.flush_queue_interval_ms, _QueueTick())

    @handles(_LogTick)
    def on_log_tick(self, _: _LogTick) -> None:
        """Syncs the log if enough is dirty, or if it has been dirty for long."""
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
            # Under ASYNC_FLUSH nobody was promised the disk; what is asked for is a person.
            self._failed = True
            log.error("sync of the commit log failed", reason=str(error))

    @handles(_QueueTick)
    def on_queue_tick(self, _: _QueueTick) -> None:
        """Asks for what of the queues is to be synced."""
        if self._queues_asked:
            return
        now_ms = self.system.clock.monotonic_ms()
        thorough = now_ms - self._queues_flushed_ms >= self._config.flush_queue_thorough_interval_ms
        self._queues_asked = True
        least_pages = 0 if thorough else max(1, self._config.flush_queue_least_pages)
        self._reput.tell(WriteOutQueues(least_pages, self.address))

    @handles(QueuesWritten)
    def on_queues_written(self, message: QueuesWritten) -> None:
        """Syncs the files; after a thorough round the checkpoint follows."""
        self._queues_asked = False
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
                self._queues_flushed_ms = self.system.clock.monotonic_ms()
                self._store.queue_list.save(unsynced.names)
                self._store.checkpoint.advance(
                    logics_ms=unsynced.store_timestamp,
                    durable_offset=min(
                        unsynced.covered_offset, self._store.commit_log.flushed_offset
                    ),
                )
            if unsynced.store_timestamp is not None or full_index is not None:
                self._save_checkpoint()
        except (OSError, StoreError) as error:
            log.error("sync of the consume queues failed", reason=str(error))

    @handles(SyncSoon)
    def on_sync_soon(self, _: SyncSoon) -> None:
        """Queues were removed: the next tick syncs everything, and says which there are."""
        self._queues_flushed_ms = float("-inf")

    @handles(LowerIndexTime)
    def on_lower_index_time(self, message: LowerIndexTime) -> None:
        """Index files were dropped: the checkpoint may not vouch for what takes their place."""
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
        """CatchUp has filled index files and synced them."""
        self._store.checkpoint.advance(index_ms=message.index_ms)

    def _save_checkpoint(self) -> None:
        checkpoint = self._store.checkpoint
        checkpoint.advance(physic_ms=self._store.commit_log.flushed_store_timestamp)
        checkpoint.save()
