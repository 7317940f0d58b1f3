"""Selected messages of a store in parts, as Arrow batches, for jobs that read them once.

Damaged messages are skipped; the audit job names them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from protocol.topic_names import is_system_topic
from spark.arguments import time_ms
from spark.decoding.columns import TIMESTAMP
from spark.decoding.store_files import Store
from spark.source.plan import QueueRange, Selection, pack, plan
from spark.source.reading import RangeReader
from spark.source.row_filter import RowFilter

TIME = "storeTimestamp"


class WantedScan(Protocol):
    """Arguments of every job that reads messages once."""

    @property
    def store(self) -> str: ...
    @property
    def commit_log(self) -> str | None: ...
    @property
    def published_offset(self) -> int | None: ...
    @property
    def topics(self) -> tuple[str, ...] | None: ...
    @property
    def system_topics(self) -> bool: ...
    @property
    def since(self) -> Any: ...
    @property
    def until(self) -> Any: ...
    @property
    def range_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Input of one task; picklable."""

    reader: RangeReader
    ranges: Sequence[QueueRange]
    since_ms: int | None
    until_ms: int | None

    @property
    def rows(self) -> int:
        """Number of messages read, including damaged ones and those of other times."""
        return sum(part.end - part.first for part in self.ranges)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield non-empty batches, each of one topic."""
        for batch in self.reader.read(self.ranges):
            if self.since_ms is not None or self.until_ms is not None:
                batch = batch.filter(_within(batch[TIME], self.since_ms, self.until_ms))
            if batch.num_rows:
                yield batch


def chosen_topics(store: Store, wanted: WantedScan) -> tuple[str, ...] | None:
    """Return the topics that a job's arguments select; None for all."""
    if wanted.topics is not None or wanted.system_topics:
        return wanted.topics
    return tuple({topic for topic, _ in store.queue_names() if not is_system_topic(topic)})


def scan_parts(wanted: WantedScan, columns: Sequence[str]) -> list[ScanPart]:
    """Return the parts that a job's arguments select; time limits need the column `storeTimestamp`.

    Raises StoreError if a file is deleted meanwhile.
    """
    since_ms, until_ms = time_ms("since", wanted.since), time_ms("until", wanted.until)
    if (since_ms is not None or until_ms is not None) and TIME not in columns:
        columns = [*columns, TIME]
    store = Store(wanted.store, wanted.commit_log)
    plans = plan(
        store,
        Selection(topics=chosen_topics(store, wanted)),
        published_offset=wanted.published_offset,
        range_bytes=wanted.range_bytes,
    )
    reader = RangeReader(
        store=wanted.store,
        commit_log=wanted.commit_log,
        published_offset=wanted.published_offset,
        broker_name=None,
        columns=tuple(columns),
        wanted=RowFilter(),
        fail_on_data_loss=False,
    )
    ranges = [part for queue in plans for part in queue.ranges]
    return [
        ScanPart(reader, together, since_ms, until_ms)
        for together in pack(ranges, wanted.range_bytes)
    ]


def _within(times: pa.Array, since_ms: int | None, until_ms: int | None) -> pa.Array:
    kept = compute.is_valid(times)
    if since_ms is not None:
        kept = compute.and_(kept, compute.greater_equal(times, _moment(since_ms)))
    if until_ms is not None:
        kept = compute.and_(kept, compute.less(times, _moment(until_ms)))
    return kept


def _moment(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1000, pa.int64()).cast(TIMESTAMP)
