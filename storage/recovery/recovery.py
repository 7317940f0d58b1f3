"""Recovery at start-up: the end of the log, its damage, and the consume queues.

After a clean stop of TroupeMQ, its record replaces all reading (clean_stop). After any other clean
stop, the last three log files are read and compared with the queues. After a crash, the log is read
from the point up to which the checkpoint vouches for it; later queue units are dropped and rebuilt.
Queues with missing units are rebuilt from the whole log.

The other derived files are updated when the store is already serving (dispatching).

Source: store/DefaultMessageStore.java (recover), CommitLog.java.
"""

from collections.abc import Container, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field

from protocol.codes import TRANSACTION_PREPARED
from protocol.message import RecordHead
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from storage.errors import DiskFull, Finding, StoreError
from storage.log.commit_log import CommitLog, blank
from storage.log.damage import Damage
from storage.log.reader import ONE_RECORD_BYTES, Fault, LogReader, next_whole, record_at
from storage.queues.consume_queue import FILLER_BYTES, ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.recovery.checkpoint import Checkpoint
from storage.recovery.clean_stop import CleanStop
from storage.recovery.log_chunks import OpenParts, ReadPart
from storage.recovery.log_scan import LogScan, start_after_clean_stop, start_after_crash
from storage.recovery.queue_numbers import NO_UNITS, QueueKey, QueueNumbers, first_finder
from storage.tables.committed import committed_in_files


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of a start-up, for one log line."""

    clean: bool = True
    """Whether the last owner stopped cleanly."""
    known: bool = False
    """Whether the record of a clean stop was valid, so that nothing was read."""
    scanned_from: int = 0
    record_count: int = 0
    end_offset: int = 0
    end_reason: str = ""
    zeroed_bytes: int = 0
    """Non-zero bytes cleared behind the end."""
    removed_files: list[str] = field(default_factory=list)
    dispatched_from: int = 0
    dispatched_count: int = 0
    """Count of rebuilt queue units."""
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, reason) of skipped damage in the log."""
    queues_made: set[tuple[str, int]] = field(default_factory=set)
    """Queues that were rebuilt individually."""
    all_queues_made: bool = False
    """Whether all queues were missing and rebuilt."""
    findings: list[Finding] = field(default_factory=list)
    """Faults found, with their repair, except for the gaps."""

    def all_findings(self) -> list[Finding]:
        damaged = [
            Finding("commit log", f"damaged from {start} to {end}: {why}")
            for start, end, why in self.gaps
        ]
        stale = []
        if self.clean and self.zeroed_bytes:
            text = f"the bytes behind its end, {self.end_offset}, are not all zeros"
            stale = [Finding("commit log", text, is_wrong=False)]
        return list(dict.fromkeys([*damaged, *stale, *self.findings]))


class Recovery:
    """One start-up of a loaded log and its queues."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        damage: Damage,
        checkpoint: Checkpoint,
        report: RecoveryReport,
        *,
        open_parts: OpenParts,
        names_only: bool = False,
    ) -> None:
        """Initialize the recovery; with `names_only`, full rebuilds are reported but not done."""
        self._config = config
        self._log = log
        self._queues = queues
        self._damage = damage
        self._checkpoint = checkpoint
        self._report = report
        self._delay_levels = delay_levels_ms(config.message_delay_level)
        self._names_only = names_only
        self._open_parts = open_parts
        self._committed = committed_in_files(config, log.queue.disk)
        self._all_anew = self._some_anew = False

    def run(self, listed: Iterable[tuple[str, int]] = ()) -> RecoveryReport:
        """Recover log and queues; `listed` are queues that had units.

        Raises StoreError.
        """
        first, checkpoint = self._log.min_offset(), self._checkpoint
        durable_offset = checkpoint.durable_offset
        lost = self._misfits()
        doubtful: dict[QueueKey, str] = {}
        if self._report.clean:
            lost |= self._with_a_wrong_end()
            known_end = self._known_end(lost)
            start = min(start_after_clean_stop(self._log.queue), max(known_end, first))
            scan = self._scan(self._start(start), vouched_offset=known_end)
        else:
            scan, doubtful, lost = self._scan_after_crash(), lost, {}
            if scan.start_offset > first:
                lost = self._gone(listed) | self._with_a_wrong_end()
        lost |= self._follow(scan, durable_offset, doubtful)
        if not self._report.clean and scan.start_offset > first:
            lost |= self._emptied(listed)
        self._note_followed(scan, listed)
        self._set_end(scan, checkpoint.physic_ms if durable_offset else 0)
        self._queues.truncate_behind(scan.end_offset)
        self.rebuild(lost)
        self._finish()
        return self._report

    def resume(self, stop: CleanStop, lost: Iterable[tuple[str, int]]) -> RecoveryReport:
        """Continue after a clean stop of TroupeMQ; rebuild the `lost` queues."""
        lost = list(lost)
        self._report.known = True
        self._log.resume_at(stop.end_offset, stop.store_timestamp)
        self._report.scanned_from = self._report.dispatched_from = stop.end_offset
        self._report.end_offset = stop.end_offset
        self._report.end_reason = "a clean stop"
        if stop.queues and not len(self._queues):
            self._note_all_anew(is_wrong=True)
        not_as_left = {
            (_bytes(topic), number): "its files differ from the last clean stop"
            if self._queues.get(topic, number)
            else "it was missing"
            for topic, number in lost
        }
        ends = {(_bytes(topic), number): stop.queues[topic, number][1] for topic, number in lost}
        self.rebuild(not_as_left | self._misfits(), ends)
        self._finish()
        return self._report

    def _note_followed(self, scan: LogScan, listed: Iterable[tuple[str, int]]) -> None:
        """Report missing units that a crash does not explain."""
        report = self._report
        if self._all_anew:
            if scan.record_count or scan.start_offset > self._log.min_offset():
                self._note_all_anew(is_wrong=report.clean or bool(listed))
        elif report.clean and report.dispatched_count:
            text = f"the last {report.dispatched_count} records of the log had no units"
            report.findings.append(Finding("consume queues", f"{text}: they are rebuilt"))

    def _misfits(self) -> dict[QueueKey, str]:
        """Remove unusable queue files; return the queues that need a rebuild."""
        self._queues.mend()
        return {(_bytes(key[0]), key[1]): why for key, why in self._queues.misfits().items()}

    def _finish(self) -> None:
        if not self._report.known or self._some_anew:
            self._queues.correct_min_offsets(self._log.min_offset())
        self._queues.covered_offset = self._log.end_offset
        self._queues.last_store_timestamp = self._log.last_store_timestamp
        for gap in self._report.gaps:
            self._damage.add(*gap)
        self._damage.forget_from(self._log.end_offset)
        self._report.gaps = list(self._damage.ranges)

    # -- one pass over the log ------------------------------------------------------------------

    def _start(self, start: int) -> int:
        """Return where to start reading: at the log's beginning if there are no queues."""
        first = self._log.min_offset()
        if len(self._queues):
            return start
        self._all_anew = True
        self._checkpoint.distrust_queues()
        return start if self._names_only else first

    def _note_all_anew(self, *, is_wrong: bool) -> None:
        """Report that all queues are missing."""
        self._all_anew = self._report.all_queues_made = True
        text = f"none found in {self._queues.directory}: they are rebuilt from the log"
        self._report.findings.append(Finding("consume queues", text, is_wrong))

    def _known_end(self, wrong: Container[QueueKey]) -> int:
        """Return the end of the last record with a unit; 0 without one."""
        ends = [
            queue.max_physical_offset
            for queue in self._queues
            if (_bytes(queue.topic), queue.queue_id) not in wrong
        ]
        return max(ends, default=0)

    def _scan(self, start: int, *, vouched_offset: int) -> LogScan:
        return LogScan(
            self._log.queue,
            start,
            check_crc=self._config.check_crc_on_recover,
            vouched_offset=vouched_offset,
            delay_levels=self._delay_levels,
            open_parts=self._open_parts,
        )

    def _scan_after_crash(self) -> LogScan:
        """Return a scan from the durable offset, or else from the newest trusted file."""
        config, queue, checkpoint = self._config, self._log.queue, self._checkpoint
        with_index = config.message_index_enable and config.message_index_safe
        trusted_until_ms = checkpoint.trusted_until_ms(with_index=with_index)
        durable_offset = checkpoint.durable_offset
        if not queue.min_offset < durable_offset <= queue.capacity_end:
            durable_offset = 0
        start = durable_offset or start_after_crash(queue, trusted_until_ms)
        self._queues.truncate_behind(start)
        return LogScan(
            queue,
            self._start(start),
            check_crc=config.check_crc_on_recover,
            after_crash=True,
            vouched_offset=durable_offset,
            trusted_until_ms=trusted_until_ms,
            delay_levels=self._delay_levels,
            open_parts=self._open_parts,
        )

    def _follow(
        self, scan: LogScan, durable_offset: int, doubtful: dict[QueueKey, str]
    ) -> dict[QueueKey, str]:
        """Feed the queues with the scanned records; return the queues that need a rebuild.

        These include the `doubtful` queues that no record has continued.
        """
        report = self._report
        report.scanned_from = report.dispatched_from = scan.start_offset
        is_whole_log = scan.start_offset <= self._log.min_offset()
        numbers = QueueNumbers(
            self._queues,
            scan.gaps,
            self._damage,
            is_whole_log=is_whole_log,
            may_begin_late=is_whole_log and scan.start_offset > 0,
            may_lack_units=not is_whole_log and scan.start_offset != durable_offset,
            doubtful=() if is_whole_log else doubtful,
            first_at_end=first_finder(self._log, self._delay_levels),
            committed=self._committed,
        )
        ends = {key: self._end_of(key) for key in doubtful}
        before = self._unit_count()
        self._feed(scan, numbers)
        report.dispatched_count += max(0, self._unit_count() - before)
        report.record_count = scan.record_count
        report.end_reason = scan.end_reason
        report.gaps += scan.gaps
        if not is_whole_log:
            for key, end in ends.items():
                if self._end_of(key) == end:
                    numbers.lost[key] = doubtful[key]
        return numbers.lost

    def _feed(
        self, scan: LogScan, numbers: QueueNumbers, wanted: Container[QueueKey] | None = None
    ) -> int:
        """Feed all queues or the `wanted` ones; return how many units the wanted ones got."""
        count = 0

        def take(part: ReadPart) -> bool:
            nonlocal count
            if wanted is not None:
                runs = [run for run in part.runs if (run.topic, run.queue_id) in wanted]
                part = part._replace(runs=runs)
            with suppress(DiskFull):
                if not numbers.take(part):
                    return False
            count += part.unit_count()
            return True

        scan.take = take
        with closing(scan):
            for batch in scan.batches():
                if wanted is not None:
                    batch = [entry for entry in batch if (entry.topic, entry.queue_id) in wanted]
                    count += sum(not entry.sys_flag & TRANSACTION_PREPARED for entry in batch)
                with suppress(DiskFull):  # The units wait in memory for disk space.
                    numbers.feed(batch)
        with suppress(DiskFull):
            numbers.finish()
        return count

    def _end_of(self, key: QueueKey) -> int:
        queue = self._queues.get(_text(key[0]), key[1])
        return 0 if queue is None else queue.max_offset

    def _unit_count(self) -> int:
        return sum(queue.max_offset for queue in self._queues)

    def _set_end(self, scan: LogScan, store_timestamp: int) -> None:
        """Set the end of the log; `store_timestamp` is that of the last record before the scan."""
        report = self._report
        newest = max(scan.last_store_timestamp, store_timestamp)
        zeroed, removed = self._log.start_at(scan.end_offset, newest)
        report.end_offset = scan.end_offset
        report.zeroed_bytes = zeroed
        report.removed_files += removed
        for offset in scan.damaged_blanks:
            file = self._log.queue.find(offset)
            if file is not None and offset < scan.end_offset:
                file.write(blank(file.end_offset - offset), offset - file.first_offset)
                text = f"the BLANK at {offset} is damaged: it is rewritten"
                report.findings.append(Finding("commit log", text))

    # -- queues that are wrong ------------------------------------------------------------------

    def _gone(self, listed: Iterable[tuple[str, int]]) -> dict[QueueKey, str]:
        """Return the listed queues without a directory."""
        return {
            (_bytes(topic), queue_id): "it was missing"
            for topic, queue_id in listed
            if self._queues.get(topic, queue_id) is None
        }

    def _emptied(self, listed: Iterable[tuple[str, int]]) -> dict[QueueKey, str]:
        """Return the listed queues that lost all their units as invalid."""
        return {
            (_bytes(topic), queue_id): "all its units were invalid"
            for topic, queue_id in listed
            if (queue := self._queues.get(topic, queue_id)) is not None and not queue.max_offset
        }

    def _with_a_wrong_end(self) -> dict[QueueKey, str]:
        """Return the queues with a last unit that matches no record; their rest is unknown."""
        wrong: dict[QueueKey, str] = {}
        for queue in self._queues:
            if queue.is_empty or self._ends_well(queue):
                continue
            wrong[_bytes(queue.topic), queue.queue_id] = "its last unit matches no record"
        return wrong

    def _ends_well(self, queue: ConsumeQueue) -> bool:
        number = queue.max_offset - 1
        unit = queue.unit(number)
        if unit is None:
            return queue.max_offset == 0
        start, record_bytes, _ = unit
        if record_bytes == FILLER_BYTES or start + record_bytes <= self._log.min_offset():
            return start >= 0  # Its record is deleted with the log's first files.
        files = self._log.queue
        reader = LogReader(files.find, files.capacity_end, window_bytes=ONE_RECORD_BYTES)
        found = record_at(reader, start, check_crc=False)
        if isinstance(found, RecordHead) and found.record_bytes == record_bytes:
            own = _bytes(queue.topic), queue.queue_id, number
            if (found.topic, found.queue_id, found.queue_offset) == own:
                return True
        # If the record itself is damaged, the log continues where the unit says that it ends.
        fault = found if isinstance(found, Fault) else Fault("", found)
        return next_whole(reader, start, fault, files.capacity_end) == start + record_bytes

    def rebuild(self, lost: dict[QueueKey, str], ends: Mapping[QueueKey, int] = {}) -> None:
        """Rebuild the queues from the whole log.

        Queues with only deleted messages begin at their end, as far as `ends` or their files give
        it. Consumers may depend on it that do not commit to the broker.
        """
        if not lost:
            return
        known = dict(ends)
        self._some_anew = True
        self._checkpoint.distrust_queues()
        for key, reason in sorted(lost.items()):
            queue = self._queues.get(_text(key[0]), key[1])
            if queue is not None:
                known[key] = max(queue.max_offset, known.get(key, 0))
                queue.remove(self._log.queue.disk)
            if not self._all_anew:
                text = f"queue {key[1]} of {_text(key[0])!r} is rebuilt from the log: {reason}"
                self._report.queues_made.add((_text(key[0]), key[1]))
                is_wrong = reason != NO_UNITS
                self._report.findings.append(Finding("consume queues", text, is_wrong))
        if self._names_only:
            return
        first = self._log.min_offset()
        scan = LogScan(
            self._log.queue,
            first,
            check_crc=False,
            delay_levels=self._delay_levels,
            stop_at=self._log.end_offset,
            open_parts=self._open_parts,
        )
        numbers = QueueNumbers(
            self._queues,
            scan.gaps,
            self._damage,
            is_whole_log=True,
            may_begin_late=first > 0,
            may_lack_units=False,
            committed=self._committed,
        )
        self._report.dispatched_count += self._feed(scan, numbers, lost)
        self._report.gaps += scan.gaps
        for (topic, queue_id), end in known.items():
            if end and first:  # in a log from 0 on, such a message counts as damaged
                with suppress(StoreError):  # no queue can have that name
                    self._queues.begin_at(_text(topic), queue_id, end)
        self._queues.covered_offset = self._log.end_offset
        with suppress(DiskFull):
            self._queues.sync_all()


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")


def _bytes(topic: str) -> bytes:
    return topic.encode("utf-8", "surrogateescape")
