"""Start-up: where the log ends, and what of the derived files has to follow it.

After a clean stop the last three log files are read, and whatever is not dispatched yet follows.
After a crash the log is read from the newest file that the checkpoint vouches for; queue units of
records from there on are dropped and made again, and so are the index files that the checkpoint
does not vouch for. What is missing altogether is made from the whole log.

Source: store/DefaultMessageStore.java (recover), CommitLog.java, index/IndexService.java.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from protocol.message import RecordHead
from protocol.sysflag import has_queue_unit
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.consume_queues import ConsumeQueues
from storage.dispatch import delay_levels_ms, entry_of
from storage.index import Index
from storage.log_scan import LogScan, start_after_clean_stop, start_after_crash

_BATCH_RECORDS = 2048
"""Dispatched at a time: large enough to be cheap, small enough to be little memory."""


@dataclass(slots=True)
class RecoveryReport:
    """What start-up found and did; for one log line."""

    clean: bool = True
    """Whether the last owner stopped cleanly."""
    scanned_from: int = 0
    record_count: int = 0
    """Records read and found whole."""
    end_offset: int = 0
    """Where the log ends."""
    end_reason: str = ""
    """Why what lies there is no record."""
    zeroed_bytes: int = 0
    """Bytes behind the end that were not zeros."""
    removed_files: list[str] = field(default_factory=list)
    dispatched_from: int = 0
    dispatched_count: int = 0
    """Records from which queue units or index entries were made again."""
    rebuilt: list[str] = field(default_factory=list)
    """What was made anew from the log, and why, in words."""


class Recovery:
    """One start-up; the log, queues and index have been loaded."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        report: RecoveryReport,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._report = report
        self._delay_levels = delay_levels_ms(config.message_delay_level)
        self._queues_from = 0
        self._index_from = 0

    def run(self, trusted_until_ms: int) -> RecoveryReport:
        """Brings everything to the end of the log. Raises StoreError.

        `trusted_until_ms` is the checkpoint's word on what a crash cannot have touched.
        """
        files = self._log.queue
        if self._report.clean:
            start = start_after_clean_stop(files)
        else:
            start = start_after_crash(files, trusted_until_ms)
        scan = LogScan(
            files,
            start,
            check_crc=self._config.check_crc_on_recover,
            after_crash=not self._report.clean,
        )
        if self._report.clean:
            self._after_clean_stop(scan)
        else:
            self._after_crash(scan)
        self._queues.correct_min_offsets(self._log.min_offset())
        self._report.scanned_from = start
        self._report.record_count = scan.record_count
        self._report.end_reason = scan.end_reason
        return self._report

    # -- the two ways ---------------------------------------------------------------------------

    def _after_clean_stop(self, scan: LogScan) -> None:
        """Finds the end first; then what is behind it goes, and what is not dispatched follows."""
        resume = max(self._queues.max_physical_offset(), self._log.min_offset())
        newest: dict[tuple[bytes, int], int] = {}
        for head in scan:
            if has_queue_unit(head.sys_flag) and head.physical_offset < resume:
                newest[head.topic, head.queue_id] = head.queue_offset
        self._set_end(scan)
        self._queues.truncate_behind(scan.end_offset)
        self._truncate_index(scan.end_offset)
        lost = {
            key
            for key, offset in newest.items()
            if (queue := self._get(key)) is None or queue.max_offset <= offset
        }
        self._choose_ranges(min(resume, scan.end_offset), min(resume, scan.end_offset))
        self._dispatch(self._log.walk(min(self._queues_from, self._index_from)))
        self._rebuild(lost)

    def _after_crash(self, scan: LogScan) -> None:
        """Dispatches while it reads, from records that were found whole."""
        self._queues.truncate_behind(scan.start_offset)
        self._choose_ranges(scan.start_offset, self._index_end())
        lost: set[tuple[bytes, int]] = set()
        seen: set[tuple[bytes, int]] = set()

        def watched() -> Iterator[RecordHead]:
            for head in scan:
                key = head.topic, head.queue_id
                if key not in seen and has_queue_unit(head.sys_flag):
                    seen.add(key)
                    queue = self._get(key)
                    if head.queue_offset > (queue.max_offset if queue is not None else 0):
                        lost.add(key)
                yield head

        earlier = min(self._queues_from, self._index_from)
        self._dispatch(chain(self._trusted(earlier, scan.start_offset), watched()))
        self._set_end(scan)
        self._truncate_index(scan.end_offset)
        if self._queues_from > self._log.min_offset():
            self._rebuild(lost)

    def _set_end(self, scan: LogScan) -> None:
        report = self._report
        zeroed, removed = self._log.start_at(scan.end_offset, scan.last_store_timestamp)
        report.end_offset = scan.end_offset
        report.zeroed_bytes = zeroed
        report.removed_files += removed

    # -- the derived files ----------------------------------------------------------------------

    def _choose_ranges(self, queues_from: int, index_from: int) -> None:
        """From where queues and index need the records; from the first if all is missing."""
        first = self._log.min_offset()
        self._queues_from, self._index_from = max(queues_from, first), max(index_from, first)
        if not len(self._queues) and self._queues_from > first:
            self._report.rebuilt.append("the consume queues: there were none")
            self._queues_from = first
        if self._index is None:
            self._index_from = self._queues_from
        elif not self._index.files and self._index_from > first:
            self._report.rebuilt.append("the index: there was none")
            self._index_from = first
        self._report.dispatched_from = min(self._queues_from, self._index_from)

    def _index_end(self) -> int:
        """Up to where the index files that were kept know the log."""
        files = self._index.files if self._index is not None else []
        return files[-1].end_physical_offset if files else 0

    def _truncate_index(self, end_offset: int) -> None:
        if self._index is not None:
            self._index.truncate_behind(end_offset)

    def _trusted(self, start: int, end: int) -> Iterator[RecordHead]:
        """Records below the crash's reach. Where they are damaged, the rest of the file is left."""
        while start < end:
            file = self._log.queue.find(start)
            if file is None:
                return
            scan = LogScan(self._log.queue, start, check_crc=False)
            for head in scan:
                if head.physical_offset >= end:
                    return
                yield head
            self._report.rebuilt.append(f"not from {scan.end_offset}: {scan.end_reason}")
            damaged = self._log.queue.find(scan.end_offset)
            start = damaged.end_offset if damaged is not None else end

    def _dispatch(self, heads: Iterator[RecordHead]) -> None:
        """Makes units and index entries of these records, each from where it needs them."""
        queues_from, index_from = self._queues_from, self._index_from
        both_from = max(queues_from, index_from)
        while heads_now := list(islice(heads, _BATCH_RECORDS)):
            entries = [entry_of(head, self._delay_levels) for head in heads_now]
            self._report.dispatched_count += len(entries)
            for_queues = for_index = entries
            if heads_now[0].physical_offset < both_from:
                for_queues = [entry for entry in entries if entry[3] >= queues_from]
                for_index = [entry for entry in entries if entry[3] >= index_from]
            self._queues.append(for_queues)
            if self._index is not None:
                self._index.put_many(for_index)

    def _rebuild(self, lost: set[tuple[bytes, int]]) -> None:
        """Makes queues anew from the whole log: units that their records ask for are missing."""
        if not lost:
            return
        for key in sorted(lost):
            queue = self._get(key)
            if queue is not None:
                queue.truncate_behind(0)
            self._report.rebuilt.append(f"queue {key[1]} of {key[0]!r}: units were missing")
        heads = (
            head
            for head in self._log.walk(self._log.min_offset())
            if (head.topic, head.queue_id) in lost
        )
        while batch := list(islice(heads, _BATCH_RECORDS)):
            self._queues.append([entry_of(head, self._delay_levels) for head in batch])
            self._report.dispatched_count += len(batch)

    def _get(self, key: tuple[bytes, int]) -> ConsumeQueue | None:
        return self._queues.get(key[0].decode("utf-8", "surrogateescape"), key[1])
