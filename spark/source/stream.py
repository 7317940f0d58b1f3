"""Stream of a store or a cluster: the ranges of each batch.

An offset of the stream is the next queue offset of every queue, {topic: {queue id: offset}}, or
over the network {topic: {broker: {queue id: offset}}}. Spark keeps it in the checkpoint, and a
repeated batch reads the same messages. A queue that the last offset lacks is new and is read from
its start.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.source.leases import StreamLease
from spark.source.offsets import Bounds, check_named, from_json, resolve, to_json, within
from spark.source.options import LATEST, Options, QueueName, queue_text
from spark.source.origin import Origin, opened, partitions
from spark.source.reading import RangesPartition
from spark.source.tasks import read_partition
from storage.errors import StoreError

Name = TypeVar("Name", bound=QueueName)


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a process of its own on the driver; reads in the tasks."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._ends: dict[QueueName, int] = {}
        self._target: dict[QueueName, int] | None = None
        self._lease = StreamLease(options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Raises StoreError if the store lacks it."""
        options = self._options
        found = {}
        with opened(options) as origin:
            queues = origin.queues()
            check_named(options.starting, queues)
            for name in queues:
                there = origin.bounds(name)
                stored_at = partial(origin.first_stored_at, name, there)
                first = resolve(options.starting, LATEST, name, there, stored_at)
                asked = Bounds(first, max(first, there.end))
                loss = options.fail_on_data_loss
                found[name] = within(name, asked, there, fail_on_data_loss=loss).first
        return to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit by maxOffsetsPerTrigger; maxBytesPerTrigger applies besides."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to what exists now."""
        with opened(self._options) as origin:
            self._target = self._find_ends(origin)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch.

        Raises StoreError for a queue that has lost messages.
        """
        begun = from_json(start)
        bytes_max = self._options.max_bytes_per_trigger
        with opened(self._options) as origin:
            ends = self._find_ends(origin) if self._target is None else self._target
            self._lease.begin(origin, begun)
            parts = self._parts(origin, begun, ends)
            if isinstance(limit, ReadMaxRows):
                parts = within_rows(parts, limit.max_rows)
            if bytes_max is not None and not isinstance(limit, ReadAllAvailable):
                parts = _within_bytes(origin, parts, bytes_max)
        return to_json({**begun, **{name: part.end for name, part in parts.items()}})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues, from which `behind` computes the lag.

        None before the first look.
        """
        return to_json(self._ends) if self._ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises StoreError if some of its messages are gone."""
        begun, ends = from_json(start), from_json(end)
        found = {}
        with opened(self._options) as origin:
            self._lease.begin(origin, begun)
            for name, part in self._parts(origin, begun, ends).items():
                loss = self._options.fail_on_data_loss
                found[name] = within(name, part, origin.bounds(name), fail_on_data_loss=loss)
            return partitions(origin, found)

    def commit(self, end: dict[str, Any]) -> None:
        """Release what lies before the end of a completed batch."""
        self._lease.move(from_json(end))

    def stop(self) -> None:
        self._lease.release()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches. Raises StoreError if a range does not hold what was planned."""
        assert isinstance(partition, RangesPartition)
        return read_partition(partition, self._options, self._columns)

    def _find_ends(self, origin: Origin) -> dict[QueueName, int]:
        """Return the end of every queue, searched behind its earlier end."""
        self._ends = {name: origin.end(name, self._ends.get(name, 0)) for name in origin.queues()}
        return dict(self._ends)

    def _parts(
        self, origin: Origin, begun: Mapping[QueueName, int], ends: Mapping[QueueName, int]
    ) -> dict[QueueName, Bounds]:
        """Return the range to read of each queue, before any limit."""
        parts = {}
        for name, end in ends.items():
            is_new = name not in begun
            first = min(origin.bounds(name).first, end) if is_new else begun[name]
            parts[name] = Bounds(first, end)
        for name, first in begun.items():
            end = ends.get(name, 0)
            if first <= end:
                continue
            if self._options.fail_on_data_loss:
                there = f"ends at {end}" if name in ends else "is gone"
                raise StoreError(
                    f"{queue_text(*name)} {there}, but the stream has read up to {first}: "
                    "it is new, or lost messages; failOnDataLoss=false reads what is there"
                )
            if name in ends:
                parts[name] = Bounds(origin.bounds(name).first, end)
        return parts


def _within_bytes(
    origin: Origin, parts: Mapping[QueueName, Bounds], bytes_max: int
) -> dict[QueueName, Bounds]:
    """Shorten ranges to a total of record bytes; keep at least one message."""
    sizes = {name: origin.record_bytes(name, part) for name, part in parts.items()}
    total = sum(sizes.values())
    if total <= bytes_max:
        return dict(parts)
    cut = {
        name: Bounds(
            part.first, origin.offset_at_bytes(name, part, bytes_max * sizes[name] // total)
        )
        for name, part in parts.items()
    }
    return cut if any(part.first < part.end for part in cut.values()) else within_rows(parts, 1)


def within_rows(parts: Mapping[Name, Bounds], rows_max: int) -> dict[Name, Bounds]:
    """Shorten ranges to a total of messages, each queue in proportion to its messages.

    What rounding leaves goes to the queues in order, so that the limit is used up.
    """
    rows = {name: max(0, part.end - part.first) for name, part in parts.items()}
    total = sum(rows.values())
    if total <= rows_max:
        return dict(parts)
    shares = {name: count * rows_max // total for name, count in rows.items()}
    left = rows_max - sum(shares.values())
    for name in sorted(shares):
        if left and shares[name] < rows[name]:
            shares[name] += 1
            left -= 1
    return {name: Bounds(part.first, part.first + shares[name]) for name, part in parts.items()}


def behind(progress: Any) -> dict[str, Any]:
    """Return the lag of each queue in messages, from a progress report of the query.

    `progress` is `query.lastProgress`, or None before the first batch. The result is empty for a
    batch that a restart reads again, since it tells no latest offset. Of a query with several
    sources those of Kafka count, too.
    """
    lag: dict[QueueName, int] = {}
    for source in [] if progress is None else progress["sources"]:
        latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        for queue, offset in latest.items():
            lag[queue] = max(0, offset - end.get(queue, 0))
    return to_json(lag)


def _offsets(found: Any) -> dict[QueueName, int]:
    value = json.loads(found) if isinstance(found, str) else found
    if not isinstance(value, dict) or not all(isinstance(part, dict) for part in value.values()):
        return {}  # of a source of another kind
    return from_json(value)
