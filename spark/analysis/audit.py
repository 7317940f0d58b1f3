"""Consistency check of a whole store in parts: log files and index files; the audit job's work.

storage/checking/store_check.py and storage/scrub/ define the comparisons. A part is one file of the
log with the units of all records that begin in it. Units lie in the order of their records,
so a binary search finds where the units of two parts meet. A damaged unit may shift such a
boundary. Still, every unit is in exactly one part, and its record is found wherever it is.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from spark.parts import run_parts
from storage.checking.index_check import checks_of
from storage.checking.store_check import StoreCheck
from storage.checking.store_layout import index_names
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from storage.dispatching.followers import DispatchReader
from storage.files.disk import Disk, RealDisk
from storage.files.read_only_disk import ReadOnlyDisk
from storage.index.index_file import IndexFile
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import NamedLogReader
from storage.queues.consume_queue import FILLER_BYTES
from storage.scrub.round import Scrub
from storage.scrub.unit_reader import UnitReader
from storage.scrub.units import Findings, QueueKey, ScrubCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Bounds = dict[QueueKey, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file of the log, with the units that belong to it."""

    config: StoreConfig
    first: int
    log_end: int
    queue_ends: Mapping[QueueKey, int]
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class IndexPart:
    """One index file, by its position among all."""

    config: StoreConfig
    place: int
    log_end: int
    damaged: Sequence[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class Named:
    """A damaged message: its unit points into a damaged range of the log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


def check_log_part(part: LogPart) -> tuple[Findings, ScrubCounts]:
    """Check one part of the log; runs in a task."""
    scrub = Scrub(
        ReadOnlyDisk(RealDisk()),
        part.config,
        Damage(),
        log_end=part.log_end,
        queue_ends=part.queue_ends,
    )
    try:
        for _ in scrub.part(part.first, part.bounds):
            pass
        return scrub.pop_findings(), scrub.counts
    finally:
        scrub.close()


def check_index_part(part: IndexPart) -> list[str]:
    """Check an index file, in a task; return at most one sentence."""
    disk, config = ReadOnlyDisk(RealDisk()), part.config
    names = index_names(disk, config)
    files = []
    for name in names[max(0, part.place - 1) : part.place + 1]:
        path = f"{config.index_dir}/{name}"
        file = IndexFile(disk, path, config.max_hash_slots, config.max_index_entries)
        if fault := file.load():
            return [f"{path}: {fault}"] if name == names[part.place] else []
        files.append(file)
    damage = Damage()
    for each in part.damaged:
        damage.add(*each)
    log = CommitLog(config, disk)
    log.load()
    log.end_offset = log.flushed_offset = part.log_end
    reader = DispatchReader(log, delay_levels_ms(config.message_delay_level))
    wrong = []
    try:
        for check in checks_of(config, disk, log, damage, reader, tuple(files)):
            try:
                if check.path == files[-1].path:
                    while not check.step():
                        pass
            finally:
                check.close()
            if check.reason:
                wrong.append(f"{check.path}: {check.reason}")
    finally:
        log.close()
    return wrong


class Audit(StoreCheck):
    """Store check that splits its long parts; afterwards `named` has the damaged messages."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        spark: "SparkSession | None",
        published_offset: int | None = None,
    ) -> None:
        super().__init__(disk, config)
        self.named: list[Named] = []
        self._spark = spark
        self._published_offset = published_offset

    def _compare(self, queue_ends: Mapping[QueueKey, int]) -> ScrubCounts:
        report, config = self.report, self._config
        if self._published_offset is not None:
            report.log_end = min(report.log_end, self._published_offset)
        firsts = NamedLogReader(self._disk, config, report.log_end).firsts()
        units = UnitReader(self._disk, config)
        places = {key: places_of(units, key, end, firsts) for key, end in queue_ends.items()}
        parts = [
            LogPart(
                config,
                first,
                report.log_end,
                queue_ends,
                {key: (edges[number], edges[number + 1]) for key, edges in places.items()},
            )
            for number, first in enumerate(firsts)
        ]
        total = ScrubCounts()
        for found, counts in run_parts(
            self._spark, check_log_part, parts, "comparing log and queues"
        ):
            self._take(found)
            _add(total, counts)
            for start, end, why in found.damaged:
                self._damage.add(start, end, why)
        for start, end, _ in self._damage.ranges:
            self.named += named_in(units, queue_ends, start, end)
        units.close()
        if self._published_offset is not None and total.newer_count:
            text = f"{total.newer_count} records are too new to have units in the files"
            report.note("consume queues", text)
            total.newer_count = 0
        return total

    def _index(self, log: CommitLog) -> None:
        names = index_names(self._disk, self._config)
        self.report.index_file_count = len(names)
        ranges = list(self._damage.ranges)
        parts = [
            IndexPart(self._config, place, self.report.log_end, ranges)
            for place in range(len(names))
        ]
        for wrong in run_parts(self._spark, check_index_part, parts, "comparing the index"):
            self.report.wrong("index", wrong)


def places_of(units: UnitReader, key: QueueKey, end: int, firsts: Sequence[int]) -> list[int]:
    """Return the first unit of each log file, then the queue's end, in ascending order."""
    positions = _Positions(units, key)
    places: list[int] = []
    for first in firsts:
        low = places[-1] if places else 0
        places.append(bisect_left(positions, first, low, end) if low < end else low)
    return [*places, end]


class _Positions(Sequence[int]):
    """Physical offsets in the units of a queue; -1 for expired units."""

    def __init__(self, units: UnitReader, key: QueueKey) -> None:
        self._units = units
        self._key = key

    def __len__(self) -> int:
        raise NotImplementedError  # callers pass the end

    def __getitem__(self, queue_offset: int) -> int:  # type: ignore[override]
        unit = self._units.unit(*self._key, queue_offset)
        gone = unit is None or unit[1] in (0, FILLER_BYTES)
        return -1 if unit is None or gone else unit[0]


def named_in(
    units: UnitReader, queue_ends: Mapping[QueueKey, int], start: int, end: int
) -> Iterator[Named]:
    """Yield the messages with units that point into [start, end) of the log."""
    for key, queue_end in queue_ends.items():
        positions = _Positions(units, key)
        first = bisect_left(positions, start, 0, queue_end)
        # The first record may begin before the range.
        for queue_offset in range(max(0, first - 1), queue_end):
            unit = units.unit(*key, queue_offset)
            if unit is None or unit[1] in (0, FILLER_BYTES):
                continue
            if unit[0] >= end:
                break
            if unit[0] + unit[1] > start:
                topic = key[0].decode("utf-8", "backslashreplace")
                yield Named(topic, key[1], queue_offset, unit[0])


def _add(total: ScrubCounts, counts: ScrubCounts) -> None:
    for each in fields(counts):
        setattr(total, each.name, getattr(total, each.name) + getattr(counts, each.name))
