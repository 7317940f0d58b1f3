"""Reads the ranges of one task: Arrow batches of the wanted columns, of the wanted messages.

Runs wherever Spark runs tasks, and knows nothing of Spark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from spark.decode import batches
from spark.plan import QueueRange
from spark.records import Queue, Scanned
from spark.row_filter import RowFilter
from spark.store_files import Store
from storage.errors import StoreError


@dataclass(frozen=True, slots=True)
class RangeReader:
    """What every task of a read is told; picklable."""

    store: str
    commit_log: str | None
    published_offset: int | None
    broker_name: str | None
    columns: tuple[str, ...]
    wanted: RowFilter
    fail_on_data_loss: bool

    def read(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Batches of at most 8192 rows and some 8 MiB.

        Raises StoreError where messages are damaged or gone, unless their loss is accepted.
        """
        for part in ranges:
            for scanned in self._scan(part):
                if self.fail_on_data_loss:
                    _check_whole(part, scanned)
                if scanned.records is None:
                    continue
                records = self.wanted.keep(scanned.records)
                if len(records):
                    yield from batches(records, self.columns, self.broker_name)

    def _scan(self, part: QueueRange) -> Iterator[Scanned]:
        """All of a range; where losses are accepted, what a deleted file held is passed over."""
        at = part.first
        while at < part.end:
            before = at
            queue = Queue(
                Store(self.store, self.commit_log),
                part.topic,
                part.queue_id,
                self.published_offset,
            )
            try:
                for scanned in queue.scan(at, part.end):
                    at = scanned.first + scanned.count
                    yield scanned
                if at < part.end and self.fail_on_data_loss:
                    raise StoreError(
                        f"queue {part.queue_id} of {part.topic} ended at {at} while it was read, "
                        f"but at {part.end} when the job started: run the job again"
                    )
                return
            except StoreError:
                if self.fail_on_data_loss:
                    raise
            # What is there now, the store listed anew; a file that cannot be read ends the range.
            at = max(at, queue.first_message(at) or part.end)
            if at == before:
                return


def _check_whole(part: QueueRange, scanned: Scanned) -> None:
    """Raises StoreError if one of the units scanned has no whole record."""
    records = scanned.records
    whole = 0 if records is None else len(records)
    if whole == scanned.count:
        return
    there = [] if records is None else records.heads["queue_offset"].tolist()
    missing = min(set(range(scanned.first, scanned.first + scanned.count)).difference(there))
    raise StoreError(
        f"message {missing} in queue {part.queue_id} of {part.topic} is damaged or gone "
        f"({scanned.count - whole} of {scanned.count} there are): failOnDataLoss=false reads the "
        "others"
    )
