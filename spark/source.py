"""The PySpark data source over a store directory: one row a message, as in spark/decode.py.

    spark.dataSource.register(StoreSource)
    spark.read.format(StoreSource.name()).load("/path/of/store")

    option              meaning                                             default
    path                storePathRootDir                                    given to load()
    commit_log          storePathCommitLog                                  <path>/commitlog
    published_offset    physical offset where a live broker's log ends      all that is there
    range_bytes         record bytes of one partition                       67108864
    ranges              JSON of [topic, queue id, first, end, bytes] that   every queue, planned
                        was planned elsewhere                               when the job starts

    column                                                       type
    topic, born_host, store_host, keys, tags, uniq_key           string
    queue_id, record_bytes, flag, sys_flag, body_crc,            int
    reconsume_times
    queue_offset, physical_offset, tags_code, born_timestamp,    bigint
    store_timestamp, prepared_transaction_offset
    body, properties                                             binary
    day                                                          date

`.schema("topic string, queue_id int")` before load() computes these columns only (Spark prunes no
columns of a Python source by itself). Comparisons of topic, queue_id and queue_offset with literals
are used to leave out queues and ranges; that needs spark.sql.python.filterPushdown.enabled.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark.decode import COLUMNS, decode
from spark.plan import RANGE_BYTES, QueueRange, Selection, pack, plan
from spark.records import Queue
from spark.store_files import Store
from storage.errors import StoreError

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    pa.date32(): "date",
}
SCHEMA = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in COLUMNS.items())


class StoreSource(DataSource):
    """Messages of a store directory."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> "StoreReader":
        unknown = [name for name in schema.fieldNames() if name not in COLUMNS]
        if unknown:
            raise StoreError(f"a message has no column {unknown[0]}; it has {', '.join(COLUMNS)}")
        return StoreReader(dict(self.options), schema.fieldNames())


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class StoreReader(DataSourceReader):
    """Plans on the driver; reads in the tasks, which need the same path."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        self._columns = columns
        self._root = options["path"]
        self._commit_log = options.get("commit_log")
        published = options.get("published_offset")
        self._published_offset = None if published is None else int(published)
        self._range_bytes = int(options.get("range_bytes", RANGE_BYTES))
        self._ranges = options.get("ranges")
        self._selection = Selection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps the filters that choose queues and ranges; returns the others to Spark."""
        for wanted in filters:
            narrowed = narrow(self._selection, wanted)
            if narrowed is None:
                yield wanted
            else:
                self._selection = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        """Raises StoreError if the path is no store."""
        if self._ranges is not None:
            ranges = _chosen(ranges_from_json(self._ranges), self._selection)
        else:
            store = Store(self._root, self._commit_log)
            plans = plan(
                store,
                self._selection,
                published_offset=self._published_offset,
                range_bytes=self._range_bytes,
            )
            ranges = [part for queue in plans for part in queue.ranges]
        return [RangesPartition(together) for together in pack(ranges, self._range_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches. Raises StoreError if a range does not hold what was planned."""
        if not isinstance(partition, RangesPartition):
            return  # Spark's own placeholder: there is nothing to read
        store = Store(self._root, self._commit_log)
        for part in partition.ranges:
            queue = Queue(store, part.topic, part.queue_id, self._published_offset)
            end = part.first
            for records in queue.records(part.first, part.end):
                end += len(records)
                yield decode(records, self._columns)
            if end < part.end:
                raise StoreError(
                    f"queue {part.queue_id} of {part.topic} ended at {end} while it was read, but "
                    f"at {part.end} when the job started: run the job again"
                )


def narrow(selection: Selection, wanted: Filter) -> Selection | None:
    """`selection` with a filter applied exactly; None if it says nothing about queues or ranges."""
    if not isinstance(
        wanted, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return None
    column, value = wanted.attribute, wanted.value
    if value is None or (isinstance(value, tuple) and None in value):
        return None  # null is not equal to anything, which is Spark's to say
    values = set(value) if isinstance(value, tuple) else {value}
    match column, wanted:
        case ("topic",), EqualTo() | In():
            topics = values if selection.topics is None else values & set(selection.topics)
            return replace(selection, topics=topics)
        case ("queue_id",), EqualTo() | In():
            ids = values if selection.queue_ids is None else values & set(selection.queue_ids)
            return replace(selection, queue_ids=ids)
        case ("queue_offset",), EqualTo():
            return _between(selection, value, value + 1)
        case ("queue_offset",), GreaterThan():
            return _between(selection, value + 1, None)
        case ("queue_offset",), GreaterThanOrEqual():
            return _between(selection, value, None)
        case ("queue_offset",), LessThan():
            return _between(selection, 0, value)
        case ("queue_offset",), LessThanOrEqual():
            return _between(selection, 0, value + 1)
    return None


def ranges_to_json(ranges: Iterable[QueueRange]) -> str:
    """For the option `ranges`."""
    return json.dumps(
        [[part.topic, part.queue_id, part.first, part.end, part.record_bytes] for part in ranges]
    )


def ranges_from_json(text: str) -> list[QueueRange]:
    return [QueueRange(*fields) for fields in json.loads(text)]


def _between(selection: Selection, first: int, end: int | None) -> Selection:
    ends = [limit for limit in (selection.end, end) if limit is not None]
    return replace(selection, first=max(selection.first, first), end=min(ends) if ends else None)


def _chosen(ranges: Iterable[QueueRange], selection: Selection) -> list[QueueRange]:
    chosen = []
    for part in ranges:
        first = max(part.first, selection.first)
        end = part.end if selection.end is None else min(part.end, selection.end)
        if selection.wants(part.topic, part.queue_id) and first < end:
            chosen.append(replace(part, first=first, end=end))
    return chosen
