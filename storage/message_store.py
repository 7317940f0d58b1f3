"""The store of one broker as a whole: opened and recovered, written and read, flushed, closed.

    open   lock, load, mark as in use (`abort`), recover
    …      append to the log, dispatch, read, flush, save the checkpoint
    close  flush everything, save the checkpoint, remove `abort`, unlock

Source: store/DefaultMessageStore.java.
"""

from storage.clock import Clock
from storage.config import StoreConfig
from storage.dispatching.dispatch import Dispatcher, Follower, delay_levels_ms, entry_of
from storage.dispatching.followers import DispatchReader, Lagging
from storage.dispatching.sink_table import NO_SINK_FILE, SinkTable
from storage.errors import Finding, SyncFailed, store_error
from storage.files.disk import Disk
from storage.files.lock_file import StoreLock, create_abort, remove_abort, was_stopped_cleanly
from storage.index.index import Index
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from storage.queues.queue_files import QueueList
from storage.recovery.checkpoint import Checkpoint
from storage.recovery.clean_stop import (
    OWN_FILES,
    CleanStop,
    index_headers,
    read_clean_stop,
    remove_clean_stop,
    write_clean_stop,
)
from storage.recovery.log_chunks import OpenParts, PartsHere
from storage.recovery.recovery import Recovery, RecoveryReport
from storage.recovery.start_findings import (
    REBUILD_ORDERED,
    checkpoint_findings,
    file_findings,
    index_doubts,
    index_findings,
    lost_end,
    made_anew,
    record_findings,
)
from storage.recovery.store_format import require_finished_copy, require_known_format, write_format
from storage.recovery.store_rebuild import rebuild_is_done, rebuild_is_ordered, remove_derived
from storage.tables.table_counts import count_entries
from storage.transactions.redo_log import NO_REDO_LOG
from storage.transactions.table import TransactionTable

_CATCH_UP_RECORDS = 2048
"""Records that `catch_up` dispatches at a time."""


STOP_CATCH_UP_MS = 2000
"""Time in which a clean stop brings lagging followers up to date.

RocketMQ would never add index entries that are missing afterwards; TroupeMQ adds them at its next
start.
"""


class MessageStore:
    """The parts of a store, assembled; callers use the parts directly.

    Each part has one owner at a time. `open` and `close` use all of them.
    """

    def __init__(
        self, config: StoreConfig, disk: Disk, clock: Clock, open_parts: OpenParts = PartsHere
    ) -> None:
        """Create the closed store; `open_parts` reads the commit log where a start must."""
        self._open_parts = open_parts
        self.config = config
        self.disk = disk
        self.clock = clock
        self.checkpoint = Checkpoint(disk, config.checkpoint_path)
        self.queue_list = QueueList(config, disk)
        self.commit_log = CommitLog(config, disk)
        self.consume_queues = ConsumeQueues(config, disk)
        self.index = Index(config, disk, clock) if config.message_index_enable else None
        self.damage = Damage()
        """Damaged ranges of the commit log: written by recovery, then only by the scrubber."""
        self.followers: list[Follower] = [self.index] if self.index is not None else []
        """Derived files other than the consume queues; the index first."""
        log = self.commit_log
        self.transaction_table = TransactionTable(
            config, disk, log.view, lambda: log.flushed_offset
        )
        self.followers.append(self.transaction_table)
        self.sink_table = SinkTable(config, disk, log.view, lambda: log.flushed_offset)
        self.followers.append(self.sink_table)
        self.dispatcher = Dispatcher(self.consume_queues)
        delay_levels = delay_levels_ms(config.message_delay_level)
        reader = DispatchReader(self.commit_log, delay_levels)
        self.lagging = Lagging(self.followers, reader, self.dispatcher)
        self.sync_failure = ""
        """Reason of a failed sync of queues, index or tables: then nothing more vouches for them.

        The kernel may have dropped their data (SyncFailed). The next start rebuilds them.
        """
        self.found_end_offset = 0
        """End of the commit log at the open; this process has written everything behind it."""
        self._lock = StoreLock(config, disk)

    # -- open and close -------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock and load the store, then recover it to the end of its commit log.

        Raise StoreLocked if it is in use, StoreError if it cannot be used. Then nothing stays open
        or locked, and the parts must not be used again.
        """
        self._lock.acquire()
        try:
            return self._open()
        except BaseException:
            self._close_files()
            raise

    def rehearse(self) -> RecoveryReport:
        """Return the report that `open` would, on a disk that keeps nothing (OverlayDisk).

        Take no lock. A rebuild from the whole commit log is only reported. Raise StoreError like
        `open`.
        """
        try:
            return self._open(names_only=True)
        finally:
            self._close_files()

    def _open(self, *, names_only: bool = False) -> RecoveryReport:
        require_known_format(self.config, self.disk)
        require_finished_copy(self.config, self.disk)
        report = RecoveryReport(clean=was_stopped_cleanly(self.config, self.disk))
        is_ordered = rebuild_is_ordered(self.config, self.disk)
        was_ours = self.disk.exists(self.config.queue_list_path)
        self.checkpoint.load()
        try:
            record = read_clean_stop(self.config, self.disk)
            report.findings += file_findings(self.config, self.disk, record)
            report.removed_files += self.commit_log.load()
            if is_ordered:  # the log is whole, so they can be rebuilt
                report.removed_files += remove_derived(self.config, self.disk)
            stop = self._last_stop(report, record)
            lost: list[tuple[str, int]] = []
            if stop is not None:
                lost = self.consume_queues.load_known(stop.queues)
            else:
                self.consume_queues.load(self.commit_log.min_offset())
            report.removed_files += self._load_index(report, stop)
        except OSError as error:
            raise store_error("cannot open the store", error) from error
        # From here on files change: the next start must notice a crash.
        create_abort(self.config, self.disk)
        write_format(self.config, self.disk)
        recovery = Recovery(
            self.config,
            self.commit_log,
            self.consume_queues,
            self.damage,
            self.checkpoint,
            report,
            open_parts=self._open_parts,
            names_only=names_only,
        )
        try:
            if stop is not None:
                recovery.resume(stop, lost)
            else:
                recovery.run(self.queue_list.load())
                if self.index is not None:
                    report.removed_files += self.index.truncate_behind(report.end_offset)
            remove_clean_stop(self.config, self.disk)
            if is_ordered:
                self.consume_queues.sync_all()
                rebuild_is_done(self.config, self.disk)
        except OSError as error:
            raise store_error("cannot recover the store", error) from error
        report.findings += lost_end(record, report.end_offset)
        if self.checkpoint.limit(report.end_offset):
            self.checkpoint.save()
        if self.index is not None:
            report.findings += [Finding("index", doubt) for doubt in self.index.doubts]
        self._load_tables(report, was_ours=was_ours)
        if is_ordered:
            report.findings = [REBUILD_ORDERED]
        self.dispatcher.dispatched_offset = report.end_offset
        self.lagging.start_at(report.end_offset)
        self.found_end_offset = report.end_offset
        return report

    def _load_tables(self, report: RecoveryReport, *, was_ours: bool) -> None:
        """Load the tables that follow the commit log; schedule the rebuild of doubtful ones."""
        min_offset, end_offset = self.commit_log.min_offset(), report.end_offset
        doubt = self.transaction_table.load(min_offset, end_offset)
        # It may be missing in another broker's store, or in a new one that crashed.
        if doubt and (doubt != NO_REDO_LOG or (was_ours and report.clean)):
            report.findings.append(Finding("transaction table", made_anew(doubt)))
        doubt = self.sink_table.load(min_offset, end_offset)
        if doubt and doubt != NO_SINK_FILE:
            report.findings.append(Finding("sink table", made_anew(doubt)))

    def _last_stop(self, report: RecoveryReport, record: CleanStop | None) -> CleanStop | None:
        """Return the record of the last clean stop, if the store is unchanged since."""
        queue, checkpoint = self.commit_log.queue, self.checkpoint
        report.findings += checkpoint_findings(checkpoint, log_is_empty=not queue.files)
        if not report.clean:
            return None
        stop = record if record is not None and record.agrees_with(queue, checkpoint) else None
        is_believed = stop is not None
        report.findings += record_findings(self.config, self.disk, record, is_believed=is_believed)
        return stop

    def _load_index(self, report: RecoveryReport, stop: CleanStop | None) -> list[str]:
        """Load the index; return the files that it removed."""
        if self.index is None:
            return []
        headers = index_headers(self.disk, self.index.directory)
        covered_offset, doubtful = None, {}
        if stop is not None:
            report.findings += index_findings(self.index.directory, stop.index, headers)
            doubtful = index_doubts(stop.index, headers)
            if stop.index == headers:
                covered_offset = stop.index_covered_offset
        elif not headers and self.commit_log.queue.files:
            text = f"no file in {self.index.directory}: it is rebuilt from the commit log"
            report.findings.append(Finding("index", text, is_wrong=False))
        return self.index.load(report.clean, self.checkpoint.index_ms, covered_offset, doubtful)

    def _note_stop(self) -> None:
        """Record the state of the store; everything must be on disk already."""
        index, log = self.index, self.commit_log
        if next(log.walk(self.dispatcher.dispatched_offset), None) is not None:
            return  # Not everything has been dispatched: the next start must read the log.
        stop = CleanStop(
            log.min_offset(),
            log.end_offset,
            log.last_store_timestamp,
            self.checkpoint.timestamps(),
            self.consume_queues.known(),
        )
        if index is not None:
            stop.index = index_headers(self.disk, index.directory)
            stop.index_covered_offset = index.covered_offset
        root = self.config.root
        stop.tables = count_entries(self.config, self.disk)
        stop.files = tuple(name for name in OWN_FILES if self.disk.exists(f"{root}/{name}"))
        write_clean_stop(self.config, self.disk, stop)

    def close(self) -> None:
        """Stop cleanly; the caller has dispatched everything it appended.

        Raise StoreError if something cannot be flushed. Even then everything is closed and
        unlocked, but `abort` stays, so that the next start recovers.
        """
        deadline_ms = self.clock.monotonic_ms() + STOP_CATCH_UP_MS
        try:
            self.lagging.catch_up(
                self.dispatcher.dispatched_offset,
                lambda: self.clock.monotonic_ms() < deadline_ms,
            )
            self.flush()
            self._note_stop()
            remove_abort(self.config, self.disk)
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Close a failed store without flushing; `abort` stays."""
        self._close_files()

    def _close_files(self) -> None:
        self.commit_log.close()
        self.consume_queues.close()
        if self.index is not None:
            self.index.close()
        self.transaction_table.close()
        self.checkpoint.close()
        self._lock.release()

    # -- flushing -------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Save the checkpoint of what is on disk. Blocks; any one thread may call it.

        The component that syncs full index files sets the index timestamp (`checkpoint.advance`).
        """
        self.checkpoint.advance(
            physic_ms=self.commit_log.flushed_store_timestamp,
            logics_ms=self.consume_queues.synced_store_timestamp,
            durable_offset=min(
                self.consume_queues.synced_covered_offset, self.commit_log.flushed_offset
            ),
        )
        self.checkpoint.save()

    def flush(self) -> None:
        """Bring everything appended and dispatched to disk. Raise StoreError."""
        self.dispatcher.feed()
        self.commit_log.sync(self.commit_log.end_offset)
        if self.sync_failure:
            raise SyncFailed(f"{self.sync_failure} The next start rebuilds queues and index.")
        try:
            self.consume_queues.sync_all()
            self.transaction_table.sync()
            self.sink_table.sync()
            if self.index is not None:
                self.index.write_out()
                full = self.index.unsynced()
                self.index.sync()
                if full is not None:
                    self.checkpoint.advance(index_ms=full.end_timestamp)
        except OSError as error:
            raise store_error("cannot flush the queues or the index", error) from error
        self.queue_list.save(self.consume_queues.names())
        self.save_checkpoint()

    # -- dispatching and reading ----------------------------------------------------------------

    def catch_up(self) -> int:
        """Bring queues and followers to the end of the commit log, and return that offset.

        The caller must be the only user of the store: this may read the whole log.
        """
        end_offset = self.dispatch_rest()
        self.lagging.catch_up(end_offset)
        return end_offset

    def dispatch_rest(self) -> int:
        """Dispatch records that were appended but not dispatched; return the end of the log.

        For a restarted dispatching actor that lost the entries in its hands. Followers that lag
        stay so.
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
