"""The store of one broker: its files behind one door, in the order of a day.

    open   lock, load, mark as in use (`abort`), recover
    …      append to the log, dispatch, read, flush, save the checkpoint
    close  flush everything, save the checkpoint, remove `abort`, unlock

Source: store/DefaultMessageStore.java.
"""

from collections.abc import Sequence

from protocol.message import RecordError, scan_head
from storage.checkpoint import Checkpoint
from storage.clock import Clock
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queues import ConsumeQueues, DispatchEntry
from storage.disk import Disk
from storage.dispatch import Dispatcher, delay_levels_ms, entry_of
from storage.errors import OffsetError, store_error
from storage.index import Index
from storage.lock_file import StoreLock, create_abort, remove_abort, was_stopped_cleanly
from storage.recovery import Recovery, RecoveryReport

_CATCH_UP_RECORDS = 2048
"""Dispatched at a time by `catch_up`."""


class FollowingDispatcher(Dispatcher):
    """A dispatcher that remembers how far it has come."""

    dispatched_offset = 0
    """The end of the last record of which both the queues and the index know."""

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        super().dispatch(entries)
        if entries:
            self.dispatched_offset = entries[-1][3] + entries[-1][4]


class MessageStore:
    """The parts are used directly; this class puts them together and takes them apart.

    Each part has one owner at a time. `open` and `close` use all of them.
    """

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self.config = config
        self.disk = disk
        self.clock = clock
        self.checkpoint = Checkpoint(disk, config.checkpoint_path)
        self.commit_log = CommitLog(config, disk)
        self.consume_queues = ConsumeQueues(config, disk)
        self.index = Index(config, disk, clock) if config.message_index_enable else None
        self.dispatcher = FollowingDispatcher(self.consume_queues, self.index)
        self._lock = StoreLock(config, disk)

    # -- the day's beginning and end ------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Takes the store and brings it to the end of its log.

        Raises StoreLocked when somebody else has it, StoreError when it cannot be used; nothing
        stays open or locked then, and the parts are not to be used again.
        """
        self._lock.acquire()
        try:
            return self._open()
        except BaseException:
            self._close_files()
            raise

    def _open(self) -> RecoveryReport:
        report = RecoveryReport(clean=was_stopped_cleanly(self.config, self.disk))
        self.checkpoint.load()
        try:
            report.removed_files += self.commit_log.load()
            self.consume_queues.load(report.clean)
            if self.index is not None:
                report.removed_files += self.index.load(report.clean, self.checkpoint.index_ms)
        except OSError as error:
            raise store_error("cannot open the store", error) from error
        # From here on files change: a crash now must be found by the next start.
        create_abort(self.config, self.disk)
        trusted_until_ms = self.checkpoint.trusted_until_ms(
            with_index=self.config.message_index_enable and self.config.message_index_safe
        )
        recovery = Recovery(self.config, self.commit_log, self.consume_queues, self.index, report)
        try:
            recovery.run(trusted_until_ms)
        except OSError as error:
            raise store_error("cannot recover the store", error) from error
        self.dispatcher.dispatched_offset = report.end_offset
        return report

    def close(self) -> None:
        """Stops cleanly; the caller has dispatched everything it appended.

        Raises StoreError when something cannot be flushed: everything is closed and unlocked all
        the same, and `abort` stays, so that the next start recovers.
        """
        try:
            self.flush()
            remove_abort(self.config, self.disk)
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Closes everything without flushing; `abort` stays. For a store that has failed."""
        self._close_files()

    def _close_files(self) -> None:
        self.commit_log.close()
        self.consume_queues.close()
        if self.index is not None:
            self.index.close()
        self.checkpoint.close()
        self._lock.release()

    # -- flushing -------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Saves up to where log and queues are on disk. Blocks; any one thread may call it.

        The index timestamp is set by whoever syncs full index files (`checkpoint.advance`).
        """
        self.checkpoint.advance(
            physic_ms=self.commit_log.flushed_store_timestamp,
            logics_ms=self.consume_queues.synced_store_timestamp,
        )
        self.checkpoint.save()

    def flush(self) -> None:
        """Everything appended and dispatched is on disk afterwards. Raises StoreError."""
        self.commit_log.sync(self.commit_log.end_offset)
        try:
            self.consume_queues.sync_all()
            if self.index is not None:
                self.index.write_out()
                full = self.index.unsynced()
                self.index.sync()
                if full is not None:
                    self.checkpoint.advance(index_ms=full.end_timestamp)
        except OSError as error:
            raise store_error("cannot flush the queues or the index", error) from error
        self.save_checkpoint()

    # -- dispatching and reading ----------------------------------------------------------------

    def catch_up(self) -> int:
        """Dispatches, out of the log, what was appended but not dispatched; returns the log's end.

        For a dispatching actor that starts again after it died with entries in its hands.
        """
        log, dispatcher = self.commit_log, self.dispatcher
        delay_levels = delay_levels_ms(self.config.message_delay_level)
        entries: list[DispatchEntry] = []
        for head in log.walk(dispatcher.dispatched_offset):
            entries.append(entry_of(head, delay_levels))
            if len(entries) == _CATCH_UP_RECORDS:
                dispatcher.dispatch(entries)
                entries = []
        dispatcher.dispatch(entries)
        return log.end_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The queue offset stored nearest to a time (ms); 0 for a queue that does not exist."""
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.offset_by_time(timestamp, self.store_time, self.commit_log.min_offset())

    def store_time(self, physical_offset: int, record_bytes: int) -> int:
        """When the record that lies there was stored, ms; -1 if there is none (any more)."""
        try:
            view = self.commit_log.view(physical_offset, record_bytes)
            return scan_head(view, 0).store_timestamp
        except (OffsetError, RecordError):
            return -1
