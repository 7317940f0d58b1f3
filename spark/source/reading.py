"""Reads of the ranges of one task: Arrow batches of the selected columns and messages.

They run in Spark's tasks and need only this module and their partition.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from spark.decoding.decode import batches
from spark.decoding.records import Queue, Scanned
from spark.decoding.store_files import Store
from spark.source.options import Options, queue_text
from spark.source.plan import QueueRange
from spark.source.row_filter import RowFilter
from storage.errors import StoreError


class RangesPartition(InputPartition):
    """Ranges of queues that one task reads."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        addresses: Mapping[str, str] | None = None,
        bulk: Collection[str] = (),
    ) -> None:
        """Initialize the partition.

        `addresses` are those of the brokers of the ranges, `bulk` those that serve raw reads.
        """
        super().__init__(None)
        self.ranges = ranges
        self.addresses = addresses or {}
        self.bulk = frozenset(bulk)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Settings of every task of a read; picklable."""

    store: str
    commit_log: str | None
    published_offset: int | None
    broker_name: str | None
    columns: tuple[str, ...]
    wanted: RowFilter
    fail_on_data_loss: bool

    def read(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most 8192 rows and some 8 MiB.

        Raises StoreError where messages are damaged or gone, unless their loss is accepted.
        """
        store = self._open()
        for part in ranges:
            yield from kept(self, part, self._scan(store, part), self.broker_name)

    def _open(self) -> Store:
        return Store(self.store, self.commit_log)

    def _scan(self, store: Store, part: QueueRange) -> Iterator[Scanned]:
        """Yield the records of a range; where losses are accepted, skip those of deleted files."""
        at, failed_at = part.first, -1
        while at < part.end:
            first = store.queue(part.topic, part.queue_id).min_offset
            if at < first and self.fail_on_data_loss:
                raise gone(part, at, min(first, part.end))
            at = max(at, first)
            queue = Queue(store, part.topic, part.queue_id, self.published_offset)
            try:
                for scanned in queue.scan(at, part.end):
                    at = scanned.first + scanned.count
                    yield scanned
                if at < part.end and self.fail_on_data_loss:
                    raise ended(part, at)
                return
            except StoreError:
                if self.fail_on_data_loss or at == failed_at:
                    raise
            # Once more from here, with a new listing of the store, without the deleted file.
            failed_at = at
            store = self._open()


def range_reader(
    options: Options, columns: tuple[str, ...], tags: frozenset[str] | None = None
) -> RangeReader:
    """Return the settings of a read's tasks; `tags` come from Spark's filters."""
    return RangeReader(
        store=options.store,
        commit_log=options.commit_log,
        published_offset=options.published_offset,
        broker_name=options.broker_name,
        columns=columns,
        wanted=RowFilter(options.expression, tags),
        fail_on_data_loss=options.fail_on_data_loss,
    )


class ReadSettings(Protocol):
    """Settings of a read that concern each of its ranges."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def wanted(self) -> RowFilter: ...
    @property
    def fail_on_data_loss(self) -> bool: ...


def kept(
    settings: ReadSettings, part: QueueRange, scans: Iterable[Scanned], broker_name: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the wanted messages. Raises StoreError as `check_whole`."""
    for scanned in scans:
        if settings.fail_on_data_loss:
            check_whole(part, scanned)
        if scanned.records is None:
            continue
        records = settings.wanted.keep(scanned.records)
        if len(records):
            yield from batches(records, settings.columns, broker_name)


def check_whole(part: QueueRange, scanned: Scanned) -> None:
    """Check that each scanned unit has a whole record. Raises StoreError."""
    records = scanned.records
    whole = 0 if records is None else len(records)
    if whole == scanned.count:
        return
    missing = scanned.first
    if records is not None:
        there = records.heads["queue_offset"].tolist()
        missing = min(set(range(missing, missing + scanned.count)).difference(there))
    raise StoreError(
        f"message {missing} in {_text(part)} is damaged or gone "
        f"({scanned.count - whole} of {scanned.count} there are): failOnDataLoss=false reads the "
        "others"
    )


def gone(part: QueueRange, first: int, end: int) -> StoreError:
    """Return the error that messages [first, end) have expired since the plan."""
    return StoreError(
        f"messages {first} to {end - 1} in {_text(part)} are gone: "
        "failOnDataLoss=false reads the others"
    )


def ended(part: QueueRange, at: int) -> StoreError:
    """Return the error that a queue has become shorter since the plan."""
    return StoreError(
        f"{_text(part)} ended at {at} while it was read, "
        f"but at {part.end} when the job started: run the job again"
    )


def _text(part: QueueRange) -> str:
    return queue_text(part.topic, part.queue_id, part.broker)
