"""Checks of a send before its append: those of 4.9.7, in its order and with its texts.

Admission, ReplyMessage and Sink call them. The checks that depend on the topic's configuration are
done once per topic table and kept in a `TopicState`.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor, TopicValidator,
DefaultMessageStore.checkMessage, CommitLog.MessageExtEncoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Protocol

from actors.config import BrokerConfig
from actors.statistics.counts import TopicCounts
from protocol.bodies import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.send_values import Send
from protocol.sysflag import MULTI_TAGS
from protocol.topic_names import (
    DLQ_TOPIC_PREFIX,
    REFUSED_TOPICS,
    RETRY_TOPIC_PREFIX,
    group_name_fault,
    topic_name_fault,
)
from storage.retention.trimming import KEPT_TOPICS

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
MAX_RECONSUME_FROM_VERSION = 121
"""From this client version (3.4.9) on, the request's own retry limit counts."""

PROPERTIES_BYTES_MAX = 32_767

DLQ_QUEUES = 1


class FindsGroups(Protocol):
    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings; None if it does not exist and may not be made."""


class RefusedError(Exception):
    """Refusal of a send with this response code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(slots=True, eq=False)
class TopicState:
    """State of a topic in PutMessage: configuration, next offsets and counters."""

    topic: bytes
    config: TopicConfig
    queue_id_limit: int
    sys_flag: int
    next_offsets: dict[int, int] = field(default_factory=dict)
    puts: TopicCounts = field(default_factory=TopicCounts)
    is_retry: bool = False

    def configure(self, config: TopicConfig) -> None:
        """Apply a changed configuration."""
        self.config = config
        self.queue_id_limit = max(config.write_queue_nums, config.read_queue_nums)
        self.sys_flag = MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0


def new_state(topic: str, config: TopicConfig, puts: TopicCounts | None = None) -> TopicState:
    """Return the state of a topic without puts since the start."""
    state = TopicState(topic.encode(), config, 0, 0, puts=puts or TopicCounts())
    state.is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
    state.configure(config)
    return state


def read_queue(topic: str, config: TopicConfig | None, queue_id: int) -> int:
    """Return the queue for an internal append: `queue_id` if it is readable, else another one.

    A delayed message can return to a topic that has fewer queues by then. Messages with one key
    stay together. Messages of a deleted topic go to queue 0, which exists if it is made again.
    """
    if topic in KEPT_TOPICS:
        return queue_id
    count = 1 if config is None else config.read_queue_nums
    return queue_id if count <= 0 else queue_id % count


class SendRules:
    """Checks that do not depend on the commit log."""

    def __init__(self, config: BrokerConfig, random: Random) -> None:
        self._config = config
        self._random = random

    def check_accepting(self, now_ms: int) -> None:
        """Refuse everything before startAcceptSendRequestTimeStamp."""
        start_ms = self._config.start_accept_send_request_timestamp_ms
        if now_ms < start_ms:
            moment = datetime.fromtimestamp(start_ms / 1000)
            text = f"{moment:%Y-%m-%d %H:%M:%S},{start_ms % 1000:03d}"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {text}")

    def check_topic(self, topic: str, topics: Mapping[str, TopicConfig]) -> TopicConfig | None:
        """Return the topic's configuration; None if the topic does not exist.

        Raises RefusedError.
        """
        config = topics.get(topic)
        if not self._config.broker_permission & PERM_WRITE and config is not None and config.order:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden",
            )
        if fault := topic_name_fault(topic):
            raise RefusedError(ResponseCode.SYSTEM_ERROR, fault)
        if topic in REFUSED_TOPICS:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        return config

    def check_producers(self, group: str) -> None:
        """Check the name of a producer group; 4.9.7 accepts any.

        An empty name, which some clients send, is accepted. Raises RefusedError.
        """
        if group and (fault := group_name_fault(group)):
            raise RefusedError(ResponseCode.SYSTEM_ERROR, fault)

    def unknown_topic(self, topic: str) -> RefusedError:
        """Return the refusal for a topic that does not exist and may not be made."""
        return RefusedError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}"
        )

    def bad_queue(self, state: TopicState, queue_id: int, remote: str) -> RefusedError:
        """Return the refusal of a queueId that the topic does not have."""
        config = state.config
        text = (
            f"TopicConfig [topicName={config.topic_name},"
            f" readQueueNums={config.read_queue_nums},"
            f" writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)},"
            f" topicFilterType={config.topic_filter_type},"
            f" topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}]"
        )
        return RefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, {text} Producer: {remote}",
        )

    def random_queue(self, state: TopicState) -> int:
        """Return a random queue, both writable and readable, for a send that does not name one."""
        writes, reads = state.config.write_queue_nums, state.config.read_queue_nums
        count = min(writes, reads) if reads > 0 else writes
        return self._random.randrange(99_999_999) % max(1, count)

    def dead_letter_topic(self, send: Send, groups: FindsGroups) -> str | None:
        """Return the dead-letter topic for a send to %RETRY%group; None while retries remain.

        Raises RefusedError if the group is unknown.
        """
        shape, tail = send.shape, send.tail
        group = shape.topic[len(RETRY_TOPIC_PREFIX) :]
        config = groups.find(group)
        if config is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {FAQ}",
            )
        limit = config.retry_max_times
        if shape.version >= MAX_RECONSUME_FROM_VERSION and tail.max_reconsume_times is not None:
            limit = tail.max_reconsume_times
        return DLQ_TOPIC_PREFIX + group if tail.reconsume_times >= limit else None

    def transaction_forbidden(self) -> RefusedError:
        """Return the refusal of a half message while rejectTransactionMessage is set."""
        return RefusedError(
            ResponseCode.NO_PERMISSION,
            f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
        )


def illegal_message(max_message_bytes: int) -> RefusedError:
    """Return the refusal of a body or properties that are too long."""
    return RefusedError(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched."
        f" msg body length limit {max_message_bytes}B, msg properties length limit 32KB.",
    )


def perm_text(perm: int) -> str:
    """Return a permission as 4.9.7 prints it: R, W and X or dashes."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")
