"""Consistency check of a store in use: the log, and each queue unit with its record.

One round goes through the log from its newest file to its oldest. A range without a whole record is
damaged. Each record that has a unit is compared with it; a wrong unit is to be repaired from the
record. A record unknown to its queue is of an older life of its topic, and is skipped. Units that
no record confirmed are verified one by one (units).

It only reads: damaged ranges go to the given `Damage`. Repairs, and how far each queue has been
verified, are for the owner of the queues. The work is cut into steps of a millisecond or less.

No checksum covers flags, properties and times, so damage in them goes unnoticed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from protocol.codes import has_queue_unit
from protocol.message import RecordHead
from storage.config import StoreConfig
from storage.dispatching.unreadable_numbers import unreadable_number
from storage.files.disk import Disk
from storage.log.damage import Damage
from storage.log.reader import Gap, walk
from storage.scrub.units import STEP_RECORDS, Findings, QueueKey, ScrubCounts, UnitScrub


@dataclass(slots=True)
class _Run:
    """Confirmed queue offsets of one queue in one file."""

    first: int
    next: int


class Scrub:
    """One round, or single units. One owner, the only writer of `damage`."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        damage: Damage,
        *,
        log_end: int,
        queue_ends: Mapping[QueueKey, int],
        is_patient: bool = False,
    ) -> None:
        """Create a round like a UnitScrub."""
        self._check = UnitScrub(
            disk, config, damage, log_end=log_end, queue_ends=queue_ends, is_patient=is_patient
        )
        self._low = dict(self._check.ends)

    @property
    def counts(self) -> ScrubCounts:
        return self._check.counts

    def pop_findings(self) -> Findings:
        taken, self._check.findings = self._check.findings, Findings()
        return taken

    def close(self) -> None:
        self._check.close()

    def verify_unit(self, topic: bytes, queue_id: int, queue_offset: int) -> Iterator[None]:
        """Decide about one unit, in steps; then it is right, or points at a damaged range."""
        key = topic, queue_id
        self._check.forget()
        if 0 <= queue_offset < self._check.ends.get(key, 0):
            yield from self._check.verify_unit(key, queue_offset, walked=False)

    def steps(self) -> Iterator[None]:
        for first in reversed(self._check.log.firsts()):
            yield from self._file(first)
        for key in list(self._low):
            yield from self._below(key)

    def part(self, first: int, bounds: Mapping[QueueKey, tuple[int, int]]) -> Iterator[None]:
        """Check one file of the log, and the units [start, end) of each queue.

        The units are those of records that begin in the file; others among them are verified, too.
        """
        self._low.update((key, end) for key, (_, end) in bounds.items())
        yield from self._file(first)
        for key, (start, _) in bounds.items():
            for queue_offset in range(self._low[key] - 1, start - 1, -1):
                yield from self._check.verify_unit(key, queue_offset, walked=False)
                yield

    def _file(self, first: int) -> Iterator[None]:
        check, low = self._check, self._low
        runs: dict[QueueKey, _Run] = {}
        doubts: list[tuple[QueueKey, int, int]] = []
        limit = min(first + check.log.file_bytes, check.log.end_offset)
        check.begin_file()
        for number, item in enumerate(walk(check.log, first, limit)):
            if isinstance(item, Gap):
                check.add_damage(item)
            elif item is not None:
                self._record(item, runs, doubts)
            if number % STEP_RECORDS == 0:
                yield
        check.find_log_min()
        if first < check.log_min:
            return  # deleted meanwhile
        check.counts.log_bytes += limit - first
        doubts += [(key, run.next, low[key]) for key, run in runs.items()]
        for key, start, end in doubts:
            for queue_offset in range(start, end):
                yield from check.verify_unit(key, queue_offset, walked=True)
                yield
        for key, run in runs.items():
            if run.first < low[key]:
                low[key] = check.findings.verified[key] = run.first

    def _record(
        self,
        head: RecordHead,
        runs: dict[QueueKey, _Run],
        doubts: list[tuple[QueueKey, int, int]],
    ) -> None:
        counts = self._check.counts
        counts.record_count += 1
        found = unreadable_number(head)
        if found is not None:
            self._check.findings.unreadable.append(found)
        if not has_queue_unit(head.sys_flag):
            return
        key = head.topic, head.queue_id
        end = self._check.ends.get(key)
        if end is None:
            counts.unknown_queues[key] += 1
            return
        queue_offset = head.queue_offset
        is_newer = queue_offset >= end
        if is_newer and not self._check.is_before_last_unit(key, head.physical_offset):
            counts.newer_count += 1
            return
        if is_newer or queue_offset < 0 or not self._check.agrees(key, head):
            counts.stray_count += 1
            return
        counts.unit_count += 1
        run = runs.get(key)
        if run is None:
            runs[key] = _Run(queue_offset, queue_offset + 1)
            return
        if queue_offset > run.next:
            doubts.append((key, run.next, queue_offset))
        run.next = max(run.next, queue_offset + 1)

    def _below(self, key: QueueKey) -> Iterator[None]:
        """Verify the unconfirmed units, down to those of deleted records."""
        check = self._check
        check.find_log_min()
        for queue_offset in range(self._low[key] - 1, -1, -1):
            if check.is_filler(key, queue_offset):
                break  # the queue begins behind it
            if check.is_expired(key, queue_offset) and check.is_expired(key, queue_offset - 1):
                break
            yield from check.verify_unit(key, queue_offset, walked=True)
            yield
        self._low[key] = check.findings.verified[key] = 0
