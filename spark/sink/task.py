"""One task of a sink: its rows, in order, into the lanes of their topics."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.headers.sink import SinkLaneHeader
from spark.sink.brokers import Brokers
from spark.sink.lanes import LaneSender, open_lane
from spark.sink.options import SinkOptions
from spark.sink.plain_send import PlainLane
from spark.sink.rows import in_fixed_order, outgoing


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
