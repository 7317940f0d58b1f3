"""Headers of consumers' requests and of the requests that brokers send to clients.

Reading messages (pull, query by key, view by offset); offsets of queues and of consumers; routes
and members of groups; messages sent back.

Source: common/protocol/header/PullMessageRequestHeader.java, PullMessageResponseHeader.java,
QueryMessageRequestHeader.java, ViewMessageRequestHeader.java, *ConsumerOffset*.java,
GetMaxOffset*.java, GetMinOffset*.java, GetEarliestMsgStoretime*.java, SearchOffset*.java,
UnregisterClientRequestHeader.java, GetConsumerListByGroupRequestHeader.java,
ConsumerSendMsgBackRequestHeader.java and others.
"""

from dataclasses import dataclass
from typing import ClassVar

from protocol.headers.fields import Header, wire, wire_long
from protocol.json_body import value


@value
class UnregisterClientHeader(Header):
    """A client leaves a producer group or a consumer group."""

    client_id: str | None = wire("clientID", default=None)
    producer_group: str | None = wire("producerGroup", default=None)
    consumer_group: str | None = wire("consumerGroup", default=None)


@value
class GetConsumerListHeader(Header):
    """Query for the members of a consumer group."""

    consumer_group: str = wire("consumerGroup")


@value
class NotifyConsumerIdsChangedHeader(Header):
    """Notice of changed members of a consumer group, which triggers a rebalance."""

    consumer_group: str = wire("consumerGroup")


@value
class ConsumerSendMsgBackHeader(Header):
    """Request to retry the message at `offset`, which a consumer failed to process."""

    offset: int = wire_long("offset")
    group: str = wire("group")
    delay_level: int = wire("delayLevel")
    origin_msg_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = wire("originTopic", default=None)
    unit_mode: bool = wire("unitMode", default=False)
    max_reconsume_times: int | None = wire("maxReconsumeTimes", default=None)
    broker_name: str | None = wire("bname", default=None)
    failure: str | None = wire("failure", default=None)
    """TroupeMQ extension: reason of the listener's failure; 4.9.7 ignores the field."""
    delay_ms: int | None = wire("delayMs", default=None)
    """TroupeMQ extension: delay of the retry, ms, instead of `delay_level`, which 4.9.7 takes."""


@value
class ResetOffsetHeader(Header):
    """Set a group back to a time (ms; -1 = newest). Admin to broker, and broker to consumers."""

    topic: str = wire("topic")
    group: str = wire("group")
    timestamp: int = wire_long("timestamp", default=0)
    is_force: bool = wire("isForce", default=False)


@value
class GetConsumerStatusHeader(Header):
    """Query for consumer offsets of a group's members. Admin to broker, and broker to consumers."""

    topic: str = wire("topic")
    group: str = wire("group")
    client_address: str | None = wire("clientAddr", default=None)


@value
class GetConsumerRunningInfoHeader(Header):
    """Query for the internal state of one consumer; the broker forwards it."""

    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")
    jstack_enable: bool = wire("jstackEnable", default=False)


@value
class ConsumeMessageDirectlyHeader(Header):
    """Request that one consumer consume one message now."""

    consumer_group: str = wire("consumerGroup")
    client_id: str | None = wire("clientId", default=None)
    msg_id: str | None = wire("msgId", default=None)
    broker_name: str | None = wire("brokerName", default=None)


@value
class GetRouteInfoHeader(Header):
    """Query for the route of a topic."""

    topic: str = wire("topic")
    accept_standard_json_only: bool | None = wire("acceptStandardJsonOnly", default=None)


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Ext field of QUERY_MESSAGE: "true" asks for a UNIQ_KEY, and the broker picks its own maximum."""


@dataclass(slots=True, kw_only=True)
class PullMessageHeader(Header):
    """Queue, offset, maximum, and time for which the broker may hold the pull."""

    by_hand: ClassVar[bool] = True

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    max_msg_nums: int = wire("maxMsgNums")
    sys_flag: int = wire("sysFlag")
    commit_offset: int = wire_long("commitOffset")
    suspend_timeout_ms: int = wire_long("suspendTimeoutMillis")
    subscription: str | None = wire("subscription", default=None)
    sub_version: int = wire_long("subVersion")
    expression_type: str | None = wire("expressionType", default=None)
    broker_name: str | None = wire("bname", default=None)


@value
class PullMessageResponseHeader(Header):
    """Next offset; min and max offset of the queue; broker to ask next."""

    by_hand: ClassVar[bool] = True

    suggest_which_broker_id: int = wire_long("suggestWhichBrokerId")
    next_begin_offset: int = wire_long("nextBeginOffset")
    min_offset: int = wire_long("minOffset")
    max_offset: int = wire_long("maxOffset")


@value
class QueryMessageHeader(Header):
    """Messages of a topic by key, stored between two times (ms)."""

    topic: str = wire("topic")
    key: str = wire("key")
    max_num: int = wire("maxNum")
    begin_timestamp: int = wire_long("beginTimestamp")
    end_timestamp: int = wire_long("endTimestamp")


@value
class QueryMessageResponseHeader(Header):
    """End of the index at the query."""

    index_last_update_timestamp: int = wire_long("indexLastUpdateTimestamp")
    index_last_update_physical_offset: int = wire_long("indexLastUpdatePhyoffset")


@value
class ViewMessageHeader(Header):
    """One message by its physical offset."""

    offset: int = wire_long("offset")


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
