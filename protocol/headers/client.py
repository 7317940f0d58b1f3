"""Headers of what clients tell a broker of themselves, and of what a broker asks of them.

Source: common/protocol/header/UnregisterClientRequestHeader.java,
GetConsumerListByGroupRequestHeader.java, ConsumerSendMsgBackRequestHeader.java and others.
"""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire, wire_long


@dataclass(slots=True)
class UnregisterClientHeader(Header):
    """A client leaves a producer group or a consumer group."""

    client_id: str | None = wire("clientID", default=None)
    producer_group: str | None = wire("producerGroup", default=None)
    consumer_group: str | None = wire("consumerGroup", default=None)


@dataclass(slots=True)
class GetConsumerListHeader(Header):
    """Who is in a consumer group."""

    consumer_group: str = wire("consumerGroup")


@dataclass(slots=True)
class NotifyConsumerIdsChangedHeader(Header):
    """A consumer group has other members now: rebalance."""

    consumer_group: str = wire("consumerGroup")


@dataclass(slots=True)
class ConsumerSendMsgBackHeader(Header):
    """A consumer failed at the message at `offset`: bring it again later."""

    offset: int = wire_long("offset")
    group: str = wire("group")
    delay_level: int = wire("delayLevel")
    origin_msg_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = wire("originTopic", default=None)
    unit_mode: bool = wire("unitMode", default=False)
    max_reconsume_times: int | None = wire("maxReconsumeTimes", default=None)
    broker_name: str | None = wire("bname", default=None)
    failure: str | None = wire("failure", default=None)
    """TroupeMQ extension: why the listener failed; 4.9.7 ignores the field."""


@dataclass(slots=True)
class ResetOffsetHeader(Header):
    """Sets a group back to a time (ms; -1 = newest). Admin to broker, and broker to consumers."""

    topic: str = wire("topic")
    group: str = wire("group")
    timestamp: int = wire_long("timestamp", default=0)
    is_force: bool = wire("isForce", default=False)


@dataclass(slots=True)
class GetConsumerStatusHeader(Header):
    """Where the members of a group are. Admin to broker, and broker to consumers."""

    topic: str = wire("topic")
    group: str = wire("group")
    client_address: str | None = wire("clientAddr", default=None)


@dataclass(slots=True)
class GetConsumerRunningInfoHeader(Header):
    """The inner state of one consumer; the broker passes it on."""

    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")
    jstack_enable: bool = wire("jstackEnable", default=False)


@dataclass(slots=True)
class ConsumeMessageDirectlyHeader(Header):
    """One consumer shall consume one message now."""

    consumer_group: str = wire("consumerGroup")
    client_id: str | None = wire("clientId", default=None)
    msg_id: str | None = wire("msgId", default=None)
    broker_name: str | None = wire("brokerName", default=None)
