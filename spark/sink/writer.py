"""The PySpark writers: each task sends its own messages; the driver has nothing to commit.

Messages that a task stored stay stored, whether the whole batch succeeds or not. A repeated batch
recognizes them. So a commit, a second commit and an abort change nothing.

A task puts its rows, in order, into the lanes of their topics.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from protocol.headers.own import SinkLaneHeader
from spark.sink.brokers import Brokers
from spark.sink.lanes import LaneSender, open_lane
from spark.sink.options import SinkOptions
from spark.sink.plain_send import PlainLane
from spark.sink.rows import check_columns, in_fixed_order, outgoing
from storage.errors import StoreError


@dataclass(frozen=True, slots=True)
class TaskName:
    """Identity of a task: query, batch and partition, the same in every attempt."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Numbers of messages sent by an attempt, and stored before it."""

    sent: int
    found: int


def send_task(name: TaskName, batches: Iterable[pa.RecordBatch], options: SinkOptions) -> TaskDone:
    """Send all messages of a task. Raises StoreError; messages stored until then stay stored."""
    messages = outgoing(batches, options.topic)
    brokers = Brokers(options)
    lanes: dict[str, LaneSender | PlainLane] = {}
    try:
        for message in in_fixed_order(messages) if options.sort_rows else messages:
            lane = lanes.get(message.topic)
            if lane is None:
                header = SinkLaneHeader(name.query, name.partition, message.topic)
                lane = lanes[message.topic] = open_lane(brokers, options, header, name.batch)
            lane.add(message)
        for lane in lanes.values():
            lane.end()
    finally:
        brokers.close()
    return TaskDone(
        sum(lane.sent for lane in lanes.values()), sum(lane.found for lane in lanes.values())
    )


_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class SentByTask(WriterCommitMessage):
    """Report of a task to the driver."""

    sent: int
    found: int


def check_sink(schema: StructType, overwrite: bool, options: SinkOptions) -> None:
    """Check columns and modes. Raises StoreError."""
    if overwrite:
        raise StoreError("a topic cannot be overwritten: use mode append (outputMode append)")
    fields = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_columns(fields, options.topic)


class BatchSink(DataSourceArrowWriter):
    """One write: a query of its own, or by txnAppId and txnVersion one that may be repeated."""

    def __init__(self, options: SinkOptions) -> None:
        """Create a writer. Raises StoreError if the topic is not writable."""
        self._options = options
        self._query = options.application or str(uuid4())
        _check_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows. Raises StoreError."""
        name = TaskName(self._query, self._options.version, _context().partitionId())
        done = send_task(name, iterator, self._options)
        return SentByTask(done.sent, done.found)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the sent messages are stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the sent messages stay."""


class StreamSink(DataSourceStreamArrowWriter):
    """The batches of a stream; the query's id is that of its checkpoint."""

    def __init__(self, options: SinkOptions) -> None:
        """Create a writer. Raises StoreError if the topic is not writable."""
        options.check_stream()
        self._options = options
        _check_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows. Raises StoreError."""
        context = _context()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query is None or batch is None:
            raise StoreError("Spark does not tell the task which query and batch it belongs to")
        name = TaskName(query, int(batch), context.partitionId())
        done = send_task(name, iterator, self._options)
        return SentByTask(done.sent, done.found)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the sent messages are stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the sent messages stay, and a repeat recognizes them."""


def _check_topic(options: SinkOptions) -> None:
    """Check that the topic of the options, if any, is writable. Raises StoreError."""
    if options.topic is not None:
        brokers, topic = Brokers(options), options.topic
        try:
            brokers.patiently(lambda: brokers.targets(topic))
        finally:
            brokers.close()


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise StoreError("a sink writes in tasks of Spark only")
    return context
