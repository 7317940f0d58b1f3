"""Offsets of queues and of consumers.

Source: common/protocol/header/*ConsumerOffset*.java, GetMaxOffset*.java, GetMinOffset*.java,
GetEarliestMsgStoretime*.java, SearchOffset*.java.
"""

from protocol.headers.fields import Header, wire, wire_long
from protocol.values import value


@value
class QueryConsumerOffsetHeader(Header):
    """Query for a group's consumer offset in a queue."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    broker_name: str | None = wire("bname", default=None)


@value
class UpdateConsumerOffsetHeader(Header):
    """A group's consumer offset in a queue, to store."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    commit_offset: int = wire_long("commitOffset")
    broker_name: str | None = wire("bname", default=None)


@value
class QueueHeader(Header):
    """One queue: GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    broker_name: str | None = wire("bname", default=None)


@value
class SearchOffsetHeader(Header):
    """The queue offset at a store time (ms)."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    timestamp: int = wire_long("timestamp")
    broker_name: str | None = wire("bname", default=None)


@value
class OffsetResponseHeader(Header):
    """Answer to all queries for an offset."""

    offset: int = wire_long("offset")


@value
class EarliestStoreTimeResponseHeader(Header):
    """Store time (ms) of a queue's first message; -1 for an empty queue."""

    timestamp: int = wire_long("timestamp")
