"""The PySpark data source `troupemq`: the messages of a store or of a cluster, one row each.

    spark.dataSource.register(TroupeMQ)
    spark.read.format("troupemq").option("store", "/path/of/store").load()
    spark.read.format("troupemq").option("nameServer", "host:9876").option("topic", "T").load()
    rows.write.format("troupemq").mode("append").option("nameServer", "host:9876").save()

Columns: spark/decoding/columns.py; options: spark/source/options.py; both as tables for people:
docs/pipeline.md.
`.schema("topic string, queueId int")` before load() computes these columns only (Spark prunes no
columns of a Python source by itself).
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark.decoding.columns import MESSAGE_COLUMNS, check_columns, sql_schema
from spark.sink.options import parse_sink_options
from spark.sink.writer import BatchSink, StreamSink, check_sink
from spark.source.leases import planned_read
from spark.source.offsets import Bounds, check_named, open_store, resolve, within
from spark.source.options import EARLIEST, LATEST, Options, QueueName, parse_options
from spark.source.origin import Origin, opened, partitions
from spark.source.plan import QueueRange, pack
from spark.source.reading import RangesPartition
from spark.source.row_filter import Pushed, narrow
from spark.source.stream import StoreStreamReader
from spark.source.tasks import read_partition
from storage.errors import StoreError

_CLOCK_SLACK_MS = 60_000
"""Step back of a broker's clock that a filter on time tolerates."""

_PLANNING = "pyspark.sql.worker."
"""So begin the modules of the processes in which Spark calls a data source before its tasks."""

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Variable that spark.sql.execution.pyspark.udf.hideTraceback.enabled sets in Spark's workers."""

Value = TypeVar("Value")


def _in_one_line(method: Callable[..., Value]) -> Callable[..., Value]:
    """Let Spark show a StoreError of `method` without the traceback of its planning process."""

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Value:
        try:
            return method(*arguments, **named)
        except StoreError:
            if any(name.startswith(_PLANNING) for name in _names_of_process()):
                os.environ[_HIDE_TRACEBACK] = "1"
            raise

    return called


class TroupeMQ(DataSource):
    """Messages of a store directory, or over the network."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Keep the options unread: Spark creates the object for reads and for writes."""
        super().__init__(dict(options))
        self._given = dict(options)

    @cached_property
    def _options(self) -> Options:
        """Return the options of a reader.

        Raises StoreError for invalid ones, and for a path without a store.
        """
        options = parse_options(self._given)
        if not options.name_servers:
            open_store(options)
        return options

    @classmethod
    def name(cls) -> str:
        return "troupemq"

    @_in_one_line
    def schema(self) -> str:
        names = [
            name
            for name in MESSAGE_COLUMNS
            if name != "properties" or self._options.include_properties
        ]
        return sql_schema(names)

    @_in_one_line
    def reader(self, schema: StructType) -> "StoreReader":
        self._options.check_batch()
        reader = FilteringReader if _filters_are_pushed() else StoreReader
        return reader(self._options, column_names(schema, self._options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            self._options.check_stream()
            return StoreStreamReader(self._options, column_names(schema, self._options))
        except StoreError as error:
            return RefusedStream(error)

    @_in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        options = parse_sink_options(self._given)
        check_sink(schema, overwrite, options)
        return BatchSink(options)

    @_in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        options = parse_sink_options(self._given)
        check_sink(schema, overwrite, options)
        return StreamSink(options)


def column_names(schema: StructType, options: Options) -> tuple[str, ...]:
    """Return the columns of a schema. Raises StoreError for unknown ones."""
    names = schema.fieldNames()
    check_columns(names, [field.dataType.simpleString() for field in schema.fields])
    if "properties" in names and not options.include_properties:
        raise StoreError("includeProperties is false, but the schema has properties: drop one")
    return tuple(names)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream with options that cannot be: its methods raise the error.

    What `streamReader` raises is lost: Spark 4.2 then fails on stopping the reader that is not
    there, and shows that failure.
    """

    def __init__(self, error: StoreError) -> None:
        self._error = error

    @_in_one_line
    def _refuse(self, *_: object) -> Any:
        raise self._error

    initialOffset = getDefaultReadLimit = latestOffset = _refuse
    prepareForTriggerAvailableNow = partitions = read = _refuse


class StoreReader(DataSourceReader):
    """Plans on the driver; reads in the tasks, which need the same path or reach the brokers."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._pushed = Pushed()

    @_in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises StoreError if the store lacks what the options ask for."""
        options = self._options
        if options.ranges is not None:
            ranges = self._pushed.chosen(ranges_from_json(options.ranges))
            return [
                RangesPartition(together)
                for together in pack(ranges, options.max_bytes_per_partition)
            ]
        with planned_read(options) as lease, opened(options) as origin:
            found = wanted(origin, options, self._pushed)
            planned = partitions(origin, found)
            lease.hand_over(origin, found)
            return planned

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield record batches. Raises StoreError if a range does not hold what was planned."""
        if not isinstance(partition, RangesPartition):
            return iter(())  # Spark's own placeholder: there is nothing to read
        return read_partition(partition, self._options, self._columns, self._pushed.tags)


class FilteringReader(StoreReader):
    """Reader for Spark with filter pushdown, which refuses this method elsewhere."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that are applied here; return the others to Spark."""
        for each in filters:
            self._pushed, is_exact = narrow(self._pushed, each)
            if not is_exact:
                yield each


def _filters_are_pushed() -> bool:
    """Return whether this process is the one in which Spark pushes filters down.

    With spark.sql.python.filterPushdown.enabled it plans in a module of its own. Should that be
    called otherwise one day, Spark applies all filters itself.
    """
    return any(name.endswith(".data_source_pushdown_filters") for name in _names_of_process())


def _names_of_process() -> list[str]:
    """Return the modules of this process, its program included."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return [*sys.modules, "" if main is None else main.name]


def wanted(origin: Origin, options: Options, pushed: Pushed) -> dict[QueueName, Bounds]:
    """Return what a batch read asks of each queue, limited to what exists."""
    queues = origin.queues()
    origin.check_topics(queues)
    check_named(options.starting, queues)
    check_named(options.ending, queues)
    found: dict[QueueName, Bounds] = {}
    for name in queues:
        if not pushed.wants(name[0], name[1]):
            continue
        there = origin.bounds(name)
        stored_at = partial(origin.first_stored_at, name, there)
        asked = Bounds(
            resolve(options.starting, EARLIEST, name, there, stored_at),
            resolve(options.ending, LATEST, name, there, stored_at),
        )
        part = within(name, asked, there, fail_on_data_loss=options.fail_on_data_loss)
        first, end = pushed.between(part.first, part.end)
        if pushed.since_ms is not None and first < end:
            since = stored_at(pushed.since_ms - _CLOCK_SLACK_MS)
            first = max(first, since)
        if pushed.until_ms is not None and first < end:
            until = stored_at(pushed.until_ms + _CLOCK_SLACK_MS + 1)
            end = min(end, until)
        found[name] = Bounds(first, max(first, end))
    return found


def ranges_from_json(text: str) -> list[QueueRange]:
    return [QueueRange(*fields) for fields in json.loads(text)]
