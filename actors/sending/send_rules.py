"""Checks of a send before its append, and the rules of timers.

The checks are those of 4.9.7, in its order and with its texts. Admission, ReplyMessage and Sink
call them. The checks that depend on the topic's configuration are done once per topic table and
kept in a `TopicState`.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor, TopicValidator,
DefaultMessageStore.checkMessage, CommitLog.MessageExtEncoder.

A timer waits as a delayed message, in the shortest delay level that lasts until it is due. If none
does, it waits in the longest level, and is stored again when that is over (actors/delays/). So
4.9.7 delivers each timer, late or early by at most a level's delay, and no file is kept for it.

The properties and their precedence are those of RocketMQ 5.x (HookUtils.java): TIMER_DELAY_SEC,
then TIMER_DELAY_MS, then TIMER_DELIVER_MS. A message with DELAY is no timer and loses these
properties. A message that is due already is delivered at once. 5.x rounds due times down to whole
seconds; this broker never delivers early.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Protocol

from actors.config import BrokerConfig
from actors.statistics.counts import TopicCounts
from protocol.bodies import PERM_WRITE
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import MULTI_TAGS, ResponseCode
from protocol.java_numbers import NumberFormatError, long_in
from protocol.message import HEAD_V6
from protocol.send_values import Send
from protocol.timers import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_NAMES,
    TIMER_OUT_MS,
)
from protocol.topic_names import (
    DLQ_TOPIC_PREFIX,
    REFUSED_TOPICS,
    RETRY_TOPIC_PREFIX,
    group_name_fault,
    topic_name_fault,
)
from storage.config import StoreConfig
from storage.retention.trimming import KEPT_TOPICS

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
MAX_RECONSUME_FROM_VERSION = 121
"""From this client version (3.4.9) on, the request's own retry limit counts."""

PROPERTIES_BYTES_MAX = 32_767
OVERHEAD_BYTES = HEAD_V6.size + 1 + 127 + 2
"""Maximum bytes of a record beside body and properties: head, topic, and their lengths."""

OPEN_TRANSACTIONS_MAX = 500_000
"""Limit of open transactions, which take half a KiB of memory each."""
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

    def too_many_transactions(self) -> RefusedError:
        """Return the refusal of a half message beyond OPEN_TRANSACTIONS_MAX."""
        return RefusedError(
            ResponseCode.SYSTEM_BUSY,
            f"limit of {OPEN_TRANSACTIONS_MAX} open transactions reached: end some, send it later",
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


_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or"
    " if set del msg, the delay time should be bigger than the current time"
)
_NOT_ENABLED = "accurate timer message is not enabled, timerWheelEnable is {is_enabled}"


class TimerRules:
    """Rules of one broker."""

    def __init__(
        self, config: StoreConfig, delays_ms: Sequence[int], now_ms: Callable[[], int]
    ) -> None:
        """`delays_ms` are the delays of the levels, level 1 first.

        A level that lasts as long as files of the log are kept is no place for timers.
        """
        self._config, self._now_ms = config, now_ms
        kept_ms = config.file_reserved_hours * 3_600_000
        by_delay = sorted((delay_ms, level) for level, delay_ms in enumerate(delays_ms, 1))
        by_delay = [each for each in by_delay if each[0] < kept_ms] or by_delay
        self._delays_ms = [delay_ms for delay_ms, _ in by_delay]
        self._levels = [level for _, level in by_delay]

    @staticmethod
    def is_asked(pairs: Mapping[bytes, bytes]) -> bool:
        """Return whether a message without a delay level asks to be a timer."""
        return not TIMER_NAMES.isdisjoint(pairs) and TIMER_OUT_MS not in pairs

    def due_ms(self, pairs: Mapping[bytes, bytes]) -> int:
        """Return the due time of a message that asks to be a timer; 0 if it is due already.

        Raises RefusedError.
        """
        config = self._config
        if not config.timer_wheel_enable or not self._delays_ms:
            text = str(config.timer_wheel_enable).lower()
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_ENABLED.format(is_enabled=text))
        now_ms, max_ms = self._now_ms(), config.timer_max_delay_sec * 1000
        due_ms = _due_ms(pairs, now_ms)
        if due_ms is None or due_ms - now_ms > max_ms:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _ILLEGAL.format(max_ms=max_ms))
        return due_ms if due_ms > now_ms else 0

    def due_at_commit_ms(self, pairs: Mapping[bytes, bytes]) -> int:
        """Return the due time of a committed message; 0 if it is due already.

        Its half message was checked. A changed limit must not keep a transaction open.
        """
        now_ms = self._now_ms()
        due_ms = _due_ms(pairs, now_ms) if self._delays_ms else None
        return due_ms if due_ms is not None and due_ms > now_ms else 0

    def due_in_ms(self, delay_ms: int) -> int:
        """Return the due time after a delay, which is cut to the limit; 0 without a delay."""
        config = self._config
        if delay_ms <= 0 or not config.timer_wheel_enable or not self._delays_ms:
            return 0
        return self._now_ms() + min(delay_ms, config.timer_max_delay_sec * 1000)

    def covers(self, delay_ms: int) -> bool:
        """Return whether a delay is within the limit, so that it is not cut."""
        return delay_ms <= self._config.timer_max_delay_sec * 1000

    def level(self, due_ms: int) -> tuple[int, int]:
        """Return the level in which a timer waits now, and that level's delay, ms."""
        at = bisect_left(self._delays_ms, due_ms - self._now_ms())
        at = min(at, len(self._delays_ms) - 1)
        return self._levels[at], self._delays_ms[at]


def _due_ms(pairs: Mapping[bytes, bytes], now_ms: int) -> int | None:
    """Return the due time that the properties name; None for an impossible one."""
    try:
        if TIMER_DELAY_SEC in pairs:
            return now_ms + long_in(pairs[TIMER_DELAY_SEC]) * 1000
        if TIMER_DELAY_MS in pairs:
            return now_ms + long_in(pairs[TIMER_DELAY_MS])
        return long_in(pairs[TIMER_DELIVER_MS])
    except (NumberFormatError, KeyError):
        return None
