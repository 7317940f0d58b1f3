"""Receiving message by message: POP, acknowledgements, invisible times, notifications.

RocketMQ 5.x's. Numbers that 5.x keeps in primitives are 0 where they are missing; the other
fields are mandatory. The texts inside the fields are those of protocol/receipts.py.

Source: remoting/protocol/header/PopMessageRequestHeader.java, PopMessageResponseHeader.java,
AckMessageRequestHeader.java, ChangeInvisibleTimeRequestHeader.java,
ChangeInvisibleTimeResponseHeader.java, NotificationRequestHeader.java,
NotificationResponseHeader.java (tag rocketmq-all-5.3.3).
"""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire, wire_long

ALL_QUEUES = -1
"""Queue id of a receive that takes from any readable queue of the topic."""

FROM_MIN, FROM_MAX = 0, 1
"""Values of `init_mode`: where a group without a consumer offset begins."""


@dataclass(slots=True, kw_only=True)
class PopMessageHeader(Header):
    """Up to `max_msg_nums` messages that stay invisible to others for a time."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId", default=0)
    """Queue to receive from; negative: all."""
    max_msg_nums: int = wire("maxMsgNums", default=0)
    invisible_time_ms: int = wire_long("invisibleTime", default=0)
    poll_time_ms: int = wire_long("pollTime", default=0)
    """Time for which the broker may hold the request, from `born_time_ms`."""
    born_time_ms: int = wire_long("bornTime", default=0)
    """Time of the request at the client; 0: its arrival."""
    init_mode: int = wire("initMode", default=FROM_MIN)
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    order: bool = wire("order", default=False)
    """Whether a queue gives nothing more before the batch in flight is settled."""
    attempt_id: str | None = wire("attemptId", default=None)
    """With `order`: the same id is given the batch in flight again."""
    hold_with_connection: bool = wire("holdWithConnection", default=False)
    """Whether messages stay invisible while this connection lives and for a second after it,
    instead of for `invisible_time_ms` (TroupeMQ extension)."""
    highest_queue_first: bool = wire("highestQueueFirst", default=False)
    """Whether queues are asked from the highest number down, not in turn (TroupeMQ extension)."""
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class PopMessageResponseHeader(Header):
    """Times and numbers from which a client builds the handles of its messages."""

    pop_time_ms: int = wire_long("popTime")
    invisible_time_ms: int = wire_long("invisibleTime")
    revive_queue_id: int = wire("reviveQid")
    rest_num: int = wire_long("restNum")
    """Messages of the queues asked that are left to be received."""
    start_offset_info: str | None = wire("startOffsetInfo", default=None)
    msg_offset_info: str | None = wire("msgOffsetInfo", default=None)
    order_count_info: str | None = wire("orderCountInfo", default=None)
    hold_with_connection: bool | None = wire("holdWithConnection", default=None)
    """True where the broker honours the request's field; other brokers leave it out."""


@dataclass(slots=True, kw_only=True)
class AckMessageHeader(Header):
    """One message that is consumed; `extra_info` is its handle."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    extra_info: str = wire("extraInfo")
    offset: int = wire_long("offset")
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class ChangeInvisibleTimeHeader(Header):
    """Another invisible time from now, or a retry, for one message."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    extra_info: str = wire("extraInfo")
    offset: int = wire_long("offset")
    invisible_time_ms: int = wire_long("invisibleTime")
    retry_delay_level: int | None = wire("retryDelayLevel", default=None)
    """Retry at once as SEND_BACK does, after this delay level (TroupeMQ extension): 0 chooses it
    by the tries so far, -1 is the dead-letter queue. `invisible_time_ms` is then ignored."""
    failure: str | None = wire("failure", default=None)
    """Reason to store with the retry, at once or when the time is over (TroupeMQ extension)."""
    hold_with_connection: bool | None = wire("holdWithConnection", default=None)
    """Whether the message is held with this connection from now on, under the same handle.
    `invisible_time_ms` is then ignored (TroupeMQ extension)."""
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """Numbers of the new handle, which replaces the former."""

    pop_time_ms: int = wire_long("popTime", default=0)
    invisible_time_ms: int = wire_long("invisibleTime", default=0)
    revive_queue_id: int = wire("reviveQid", default=0)
    hold_with_connection: bool | None = wire("holdWithConnection", default=None)
    """True where the broker honours the request's field; other brokers leave it out."""


@dataclass(slots=True, kw_only=True)
class NotificationHeader(Header):
    """Answer as soon as a receive would find messages, or when the time is over."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId", default=0)
    poll_time_ms: int = wire_long("pollTime", default=0)
    born_time_ms: int = wire_long("bornTime", default=0)
    order: bool = wire("order", default=False)
    attempt_id: str | None = wire("attemptId", default=None)
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class NotificationResponseHeader(Header):
    """Whether there is something to receive."""

    has_msg: bool = wire("hasMsg", default=False)
    polling_full: bool = wire("pollingFull", default=False)
