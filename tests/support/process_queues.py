"""The queues of a simulated consumer, and how a group divides them.

Source: client/impl/consumer/ProcessQueue.java,
client/consumer/rebalance/AllocateMessageQueueAveragely.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.bodies import ConsumerData, HeartbeatData, MessageQueue, SubscriptionData
from protocol.codes import RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import (
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.message import MessageRecord


@dataclass(slots=True, eq=False)
class ProcessQueue:
    """A queue that the consumer has been given, and what of it is not processed yet."""

    queue: MessageQueue
    next_offset: int
    records: dict[int, MessageRecord] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    """Offsets that are being processed."""
    consumed: int = -1
    """Everything below is processed; -1: nothing new."""
    locked_ms: float = 0.0
    is_dropped: bool = False
    is_pulling: bool = False
    sending: set[int] = field(default_factory=set)
    """Busy messages that are on their way back to the broker."""

    def remove(self, offset: int) -> None:
        """One message is done with."""
        self.records.pop(offset, None)
        lowest = min(self.records, default=self.next_offset)
        self.consumed = max(self.consumed, lowest)

    def pull_header(
        self, group: str, subscription: SubscriptionData, sys_flag: int, hold_ms: int
    ) -> PullMessageHeader:
        """The next pull; its expression is known from heartbeats."""
        return PullMessageHeader(
            consumer_group=group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.next_offset,
            max_msg_nums=32,
            sys_flag=sys_flag,
            commit_offset=max(self.consumed, 0),
            suspend_timeout_ms=hold_ms,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
        )

    def commit_command(self, group: str) -> RemotingCommand:
        """Says how far it is, one-way."""
        queue = self.queue
        header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, self.consumed)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        return RemotingCommand(code, header.encode(), flag=ONEWAY_FLAG)


def averagely(
    queues: Sequence[MessageQueue], members: Sequence[str], own: str
) -> Sequence[MessageQueue]:
    """The part of one member: neighbours, the first members get one more."""
    if own not in members:
        return []
    index, (size, more) = members.index(own), divmod(len(queues), len(members))
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]


def heartbeat_command(
    client_id: str, group: str, model: str, subscriptions: list[SubscriptionData]
) -> RemotingCommand:
    """Return the heartbeat of a member of a group."""
    data = ConsumerData(
        group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_FIRST_OFFSET", subscriptions
    )
    body = HeartbeatData(client_id, consumer_data_set=[data]).encode()
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)


def offset_command(group: str, queue: MessageQueue) -> RemotingCommand:
    """Return the request for the offset at which the group begins."""
    header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id)
    return RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
