"""The JSON bodies of requests to a consumer, which a broker passes on for administrators.

Source: common/protocol/body/ConsumerRunningInfo.java, ProcessQueueInfo.java, ConsumeStatus.java;
of 5.x PopProcessQueueInfo.java.
"""

from dataclasses import field
from typing import ClassVar

from protocol.bodies import MessageQueue, SubscriptionData
from protocol.fastjson_limits import SHORT_NODES_MAX
from protocol.json_body import Body, named, value


@value
class MessageInHand(Body):
    """Message in a listener call (TroupeMQ extension)."""

    msg_id: str = ""
    queue_offset: int = -1
    since: int = 0
    """Begin of the call, ms since 1970."""
    tries: int = 0
    """Earlier deliveries that failed."""


@value
class ProcessQueueInfo(Body):
    """State of one queue at its consumer. Times in ms; "transaction" means being consumed."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mi_b: int = field(default=0, metadata=named("cachedMsgSizeInMiB"))
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0
    """Time of the last finished message, else of the assignment."""
    last_consumed_msg_id: str | None = None
    """Last finished message (TroupeMQ extension); None before the first."""
    last_consumed_offset: int = -1
    in_hand: list[MessageInHand] = field(default_factory=list)
    """Messages in listener calls, lowest queue offset first (TroupeMQ extension)."""


@value
class PopQueueInfo(Body):
    """State of one queue at a consumer that settles messages one by one (RocketMQ 5)."""

    wait_ack_count: int = 0
    """Messages that it holds."""
    droped: bool = False
    last_pop_timestamp: int = 0
    """Receive of the latest message that it holds, ms since 1970."""
    in_hand: list[MessageInHand] = field(default_factory=list)
    """Messages that it holds, lowest queue offset first (TroupeMQ extension)."""


@value
class ConsumeStatus(Body):
    """Consumption of one topic: milliseconds, and messages per second."""

    pull_rt: float = field(default=0.0, metadata=named("pullRT"))
    pull_tps: float = field(default=0.0, metadata=named("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=named("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=named("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=named("consumeFailedTPS"))
    consume_failed_msgs: int = 0


@value
class ConsumerRunningInfo(Body):
    """Internal state of one consumer: GET_CONSUMER_RUNNING_INFO."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopQueueInfo] | None = None
    """Queues of received messages, at consumers that settle each by itself (RocketMQ 5)."""
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


@value
class ResetOffsetBody(Body):
    """New consumer offsets of a group: 220, 222."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@value
class QueueOffset(Body):
    """New consumer offset in one queue, for clients that cannot read object keys."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@value
class ResetOffsetList(Body):
    """ResetOffsetBody for C++ clients: 220."""

    offset_table: list[QueueOffset] = field(default_factory=list)


@value
class ConsumerStatusBody(Body):
    """Consumer offsets of a group's members: 221, 223."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@value
class ConsumeMessageDirectlyResult(Body):
    """Result of consuming one message: CONSUME_MESSAGE_DIRECTLY."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
