"""Headers of requests of clients about themselves and routes, and of brokers to clients.

Source: common/protocol/header/UnregisterClientRequestHeader.java,
GetConsumerListByGroupRequestHeader.java, ConsumerSendMsgBackRequestHeader.java and others.
"""

from protocol.headers.fields import Header, wire, wire_long
from protocol.values import value


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
