"""Checks of receives, acknowledgements and changes: those of 5.x, in its order, with its texts.

Plain functions over snapshots of the tables.

Source: broker/processor/PopMessageProcessor.java, AckMessageProcessor.java,
ChangeInvisibleTimeProcessor.java, NotificationProcessor.java.
"""

from collections.abc import Callable, Mapping, Sequence

from actors.config import BrokerConfig
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import Peer
from actors.pulling.pull_rules import PullRules
from actors.receipts.held_receives import ReceiveHeader
from actors.sending.send_rules import FAQ
from actors.tables.groups import GroupFinder
from protocol.bodies import PERM_READ
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.headers.pop import AckMessageHeader, ChangeInvisibleTimeHeader, PopMessageHeader
from protocol.receipts import BatchAck, ReceiptError, ReceiptHandle, topic_of
from storage.message_store import MessageStore
from storage.queues.message_filter import MessageFilter

RECEIVED_MAX = 32
"""Messages of one receive."""
SETTLED_MAX = 4_096
"""Messages of one batch of acknowledgements."""


class ReceiveRules:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        now_ms: Callable[[], float],
    ) -> None:
        self._config, self._store = config, store
        self._topics, self._groups = topics, groups
        self._pulls = PullRules(config, now_ms)

    def topic(self, topic: str) -> TopicConfig:
        """Return the settings of a topic. Raises RemoteError if it is missing."""
        found = self._topics.value.get(topic)
        if found is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}"
            )
        return found

    def read_queues(self, topic: str) -> int:
        """Return the number of readable queues of a topic; 0 without it."""
        found = self._topics.value.get(topic)
        return found.read_queue_nums if found is not None and found.perm & PERM_READ else 0

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.find(name)

    def tries_max(self, group: str) -> int:
        """Return the number of retries before the dead-letter queue."""
        found = self.group(group)
        return 0 if found is None else found.retry_max_times

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return where a message lies in the log."""
        queue = self._store.consume_queues.get(topic, queue_id)
        unit = None if queue is None else queue.unit(offset)
        return None if unit is None else unit[0]

    def check_receive(self, header: ReceiveHeader, remote: str) -> None:
        """Raise RemoteError if this receive or notification is refused."""
        takes = isinstance(header, PopMessageHeader)
        if not self._config.broker_permission & PERM_READ or self._config.is_slave:
            what = "pop message" if takes else "peeking message"
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] {what} is forbidden",
            )
        if isinstance(header, PopMessageHeader) and header.max_msg_nums > RECEIVED_MAX:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._config.broker_ip1}] pop message's num is greater than"
                f" {RECEIVED_MAX}",
            )
        topic = self.topic(header.topic)
        if not topic.perm & PERM_READ:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] peeking message is forbidden",
            )
        if header.queue_id >= topic.read_queue_nums:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER, _illegal_queue(header.queue_id, topic, remote)
            )
        self._pulls.check_group(header.consumer_group, self.group(header.consumer_group))

    def wanted(self, header: PopMessageHeader, peer: Peer) -> MessageFilter | None:
        """Return the filter of the wanted messages; None for all.

        Raises RemoteError for an invalid one, NotCompiled for one that is to be compiled first.
        """
        if not header.expression:
            return None
        return self._pulls.of_expression(header.expression_type, header.expression, peer)

    def handle(self, header: AckMessageHeader | ChangeInvisibleTimeHeader) -> ReceiptHandle:
        """Return the handle of a request. Raises RemoteError for an invalid one."""
        try:
            return ReceiptHandle.parse(header.extra_info)
        except ReceiptError as error:
            kind = "NumberFormat" if str(error).startswith("For input") else "IllegalArgument"
            remark = f"java.lang.{kind}Exception: {error}"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark) from None

    def check_place(
        self, topic: str, queue_id: int, offset: int, remote: str, *, is_ack: bool
    ) -> None:
        """Raise RemoteError if the store has no such message.

        What came from a queue that is no longer read can still be settled.
        """
        config = self.topic(topic)
        low, high = self.bounds(topic, queue_id)
        if low <= offset < high:
            return
        if not 0 <= queue_id < config.read_queue_nums:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL, _illegal_queue(queue_id, config, remote)
            )
        remark = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}"
        raise RemoteError(ResponseCode.NO_MESSAGE, remark if is_ack else "")

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the min and max offset of a queue."""
        queue = self._store.consume_queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def _illegal_queue(queue_id: int, topic: TopicConfig, remote: str) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}]"
        f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{remote}]"
    )


def topic_meant(header: AckMessageHeader | ChangeInvisibleTimeHeader, kind: str) -> str:
    """Return the topic of the store that a handle of this kind means."""
    return topic_of(kind, header.topic, header.consumer_group)


def wanted_acks(
    acks: Sequence[BatchAck], require: Callable[[str, str], None]
) -> list[tuple[BatchAck, str, list[int]]]:
    """Return the acknowledgements of a batch with their topics and offsets.

    `require(group, topic)` checks the permission. Raises RemoteError.
    """
    wanted: list[tuple[BatchAck, str, list[int]]] = []
    count = 0
    for ack in acks:
        topic = topic_of(ack.retry, ack.topic, ack.consumer_group)
        require(ack.consumer_group, topic)
        try:
            wanted.append((ack, topic, ack.offsets()))
        except ReceiptError as error:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        count += 1 + len(wanted[-1][2])
        if count > 2 * SETTLED_MAX:
            remark = f"more than {SETTLED_MAX} acknowledgements in one request"
            raise LimitReached(ResponseCode.INVALID_PARAMETER, remark, remark)
    return wanted
