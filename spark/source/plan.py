"""Plans of a read: every queue is checked up to its end, then divided into ranges.

A queue ends with its last unit that points to its own record. Earlier units without a record are
damaged and stay in their ranges. For this, every unit is compared with its record's head (3 M
units/s on one core), so that all later readers agree on the end. Ranges end at unit boundaries,
since bytes of a body may look like the start of a record.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from spark.decoding.records import Queue, Records
from spark.decoding.store_files import Store
from storage.retention.archive_manifest import LastMessage

RANGE_BYTES = 64 * 1024 * 1024
"""Record bytes of one task: about a second of work, so that progress and retries are cheap."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [first, end) of one queue, and how many bytes their records have."""

    topic: str
    queue_id: int
    first: int
    end: int
    record_bytes: int = 0
    broker: str | None = None
    """Broker of the queue, needed over the network."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Range to read of one queue."""

    topic: str
    queue_id: int
    first: int
    missed: int
    """Messages from the wanted first on that had expired."""

    ranges: tuple[QueueRange, ...]
    last: LastMessage | None
    is_damaged: bool = False
    """Whether it ends before a unit without a matching record."""

    @property
    def rows(self) -> int:
        """Messages between its ends, damaged ones among them."""
        return sum(part.end - part.first for part in self.ranges)

    @property
    def record_bytes(self) -> int:
        return sum(part.record_bytes for part in self.ranges)


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter of messages; the default is all of them."""

    topics: Collection[str] | None = None
    queue_ids: Collection[int] | None = None
    first: int = 0
    end: int | None = None
    """Queue offsets [first, end) in every queue."""

    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """First wanted queue offset of single queues; `first` for those that are not named."""

    def wants(self, topic: str, queue_id: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.queue_ids is None or queue_id in self.queue_ids
        )


def plan(
    store: Store,
    selection: Selection,
    *,
    published_offset: int | None = None,
    range_bytes: int = RANGE_BYTES,
) -> list[QueuePlan]:
    """Return all wanted queues with their ranges, including those without a message to read.

    Raises StoreError if a file is deleted meanwhile.
    """
    return [
        plan_queue(Queue(store, topic, queue_id, published_offset), selection, range_bytes)
        for topic, queue_id in store.queue_names()
        if selection.wants(topic, queue_id)
    ]


def plan_queue(queue: Queue, selection: Selection, range_bytes: int = RANGE_BYTES) -> QueuePlan:
    """Return the range of one queue, up to its end or the end of the selection."""
    wanted = selection.starts.get((queue.topic, queue.queue_id), selection.first)
    first = queue.first_message(wanted)
    if first is None or (selection.end is not None and first >= selection.end):
        return QueuePlan(queue.topic, queue.queue_id, wanted, 0, (), None)
    ranges: list[QueueRange] = []
    start, size, end = first, 0, first
    last: Records | None = None
    for scanned in queue.scan(first, selection.end):
        if scanned.records is None:
            continue
        last = scanned.records
        behind = last.heads["queue_offset"].astype(np.int64) + 1
        end = int(behind[-1])
        sums = size + np.cumsum(last.record_bytes)
        while len(sums) and sums[-1] >= range_bytes:
            count = int(np.argmax(sums >= range_bytes)) + 1
            cut = int(behind[count - 1])
            ranges.append(QueueRange(queue.topic, queue.queue_id, start, cut, int(sums[count - 1])))
            start, behind = cut, behind[count:]
            sums = sums[count:] - sums[count - 1]
        size = int(sums[-1]) if len(sums) else 0
    if size:
        ranges.append(QueueRange(queue.topic, queue.queue_id, start, end, size))
    return QueuePlan(
        topic=queue.topic,
        queue_id=queue.queue_id,
        first=first,
        missed=first - wanted,
        ranges=tuple(ranges),
        last=None if last is None else _last_message(last),
        is_damaged=end != selection.end and queue.has_unit(end),
    )


def last_message_at(queue: Queue, queue_offset: int) -> LastMessage | None:
    """Return the message at a queue offset, None if it is missing."""
    for records in queue.records(queue_offset, queue_offset + 1):
        return _last_message(records)
    return None


def pack(
    ranges: Iterable[QueueRange], range_bytes: int = RANGE_BYTES, rows_max: int | None = None
) -> Iterator[list[QueueRange]]:
    """Join small ranges, so that thousands of short queues make few tasks."""
    together: list[QueueRange] = []
    size = rows = 0
    for part in ranges:
        count = part.end - part.first
        is_full = rows_max is not None and rows + count > rows_max
        if together and (is_full or size + part.record_bytes > range_bytes):
            yield together
            together, size, rows = [], 0, 0
        together.append(part)
        size += part.record_bytes
        rows += count
    if together:
        yield together


def _last_message(records: Records) -> LastMessage:
    return LastMessage(
        queue_offset=int(records.heads["queue_offset"][-1]),
        physical_offset=int(records.heads["physical_offset"][-1]),
        store_timestamp=int(records.store_timestamps[-1]),
    )
