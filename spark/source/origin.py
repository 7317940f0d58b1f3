"""Origins of messages for a plan: queues, their ends, and tasks to read them.

`StoreOrigin` is a store directory; `Cluster` (cluster.py) queries the brokers of a name server.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from spark.source.offsets import (
    Bounds,
    bounds,
    check_topics,
    chosen_queues,
    first_stored_at,
    open_queue,
    open_store,
    queue_end,
)
from spark.source.options import Options, QueueName
from spark.source.plan import QueueRange
from spark.source.reading import RangesPartition
from spark.source.splits import Units, offset_at_bytes, queue_bytes, store_units, tasks


class Origin(Protocol):
    """All raise StoreError."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return the addresses of the queues' brokers."""
        ...

    @property
    def bulk(self) -> Collection[str]:
        """Return the brokers that support bulk reads."""
        ...

    def queues(self) -> list[QueueName]:
        """Return the queues of the topics in the options."""
        ...

    def check_topics(self, queues: Iterable[QueueName]) -> None:
        """Raise StoreError if a topic of the options is missing."""
        ...

    def bounds(self, name: QueueName) -> Bounds:
        """Return the min and max offset of a queue."""
        ...

    def end(self, name: QueueName, known: int) -> int:
        """Return the end of a queue; `known` is an earlier end."""
        ...

    def first_stored_at(self, name: QueueName, there: Bounds, timestamp_ms: int) -> int:
        """Return the first message stored at that time or later, or the end."""
        ...

    def tasks(self, wanted: Mapping[QueueName, Bounds]) -> list[list[QueueRange]]:
        """Return ranges, grouped into one list a task."""
        ...

    def record_bytes(self, name: QueueName, part: Bounds) -> int:
        """Return the total bytes of the records of a part."""
        ...

    def offset_at_bytes(self, name: QueueName, part: Bounds, bytes_max: int) -> int:
        """Return the offset that so many record bytes reach from the start of a part."""
        ...


@contextmanager
def opened(options: Options) -> Iterator[Origin]:
    """Yield the origin of the options; its connections are closed afterwards."""
    if not options.name_servers:
        yield StoreOrigin(options)
        return
    # Only here: readers of files need no connections.
    from spark.source.cluster import Cluster

    cluster = Cluster(options)
    try:
        yield cluster
    finally:
        cluster.close()


def partitions(origin: Origin, wanted: Mapping[QueueName, Bounds]) -> list[InputPartition]:
    """Return the tasks in Spark's form."""
    together = origin.tasks(wanted)
    return [RangesPartition(ranges, origin.addresses, origin.bulk) for ranges in together]


class StoreOrigin:
    """Messages read from the files of a store."""

    addresses: Mapping[str, str] = {}
    bulk: Collection[str] = ()

    def __init__(self, options: Options) -> None:
        """Open the store. Raises StoreError without one."""
        self._options = options
        self._store = open_store(options)

    def queues(self) -> list[QueueName]:
        return chosen_queues(self._store, self._options)

    def check_topics(self, queues: Iterable[QueueName]) -> None:
        check_topics(queues, self._store, self._options)

    def bounds(self, name: QueueName) -> Bounds:
        return bounds(open_queue(self._store, name, self._options))

    def end(self, name: QueueName, known: int) -> int:
        return queue_end(open_queue(self._store, name, self._options), known)

    def first_stored_at(self, name: QueueName, there: Bounds, timestamp_ms: int) -> int:
        return first_stored_at(open_queue(self._store, name, self._options), there, timestamp_ms)

    def tasks(self, wanted: Mapping[QueueName, Bounds]) -> list[list[QueueRange]]:
        return tasks(self._units, wanted, self._options)

    def record_bytes(self, name: QueueName, part: Bounds) -> int:
        return queue_bytes(self._units(name, part))

    def offset_at_bytes(self, name: QueueName, part: Bounds, bytes_max: int) -> int:
        return offset_at_bytes(self._units(name, part), part, bytes_max)

    def _units(self, name: QueueName, part: Bounds) -> Units:
        return store_units(open_queue(self._store, name, self._options), part)
