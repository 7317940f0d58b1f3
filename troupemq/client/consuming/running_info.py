"""The state of a consumer for administrators, with the Java client's setting names.

Source: DefaultMQPushConsumerImpl.java (consumerRunningInfo), MQClientInstance.java, common/UtilAll
.java (jstack).
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from threading import enumerate as all_threads
from traceback import StackSummary
from types import FrameType
from typing import ClassVar, Protocol

from protocol.bodies import MessageQueue as QueueKey
from protocol.bodies_client import ConsumerRunningInfo, MessageInHand, PopQueueInfo
from troupemq.client.connection.client import ClientCore
from troupemq.client.consuming.consumer_offsets import QueueEnds, timestamp_text
from troupemq.client.consuming.consumer_statistics import ConsumerStatistics
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import MIB, ConsumerSettings

VERSION_TEXT = "V4_9_7"
MINUTE_MS = 60_000
IN_HAND_MAX = 100
"""Messages that a consumer reports for each queue, the oldest."""


class Describable(Protocol):
    group: str
    settings: ConsumerSettings
    message_model: str
    orderly: bool
    started_at_ms: int
    consume_type: ClassVar[str]

    @property
    def concurrency(self) -> int: ...


class Held(Protocol):
    """A received message that is not settled."""

    message: MessageView
    received_ms: int


def running_info(
    consumer: Describable,
    client: ClientCore,
    subscriptions: Iterable[TopicSubscription],
    own: Mapping[MessageQueue, ProcessQueue],
    statistics: ConsumerStatistics,
    ends: QueueEnds,
    *,
    stacks: bool = False,
) -> ConsumerRunningInfo:
    """Return the state, without requests: it does not block."""
    listed = [each.data() for each in subscriptions]
    return ConsumerRunningInfo(
        properties=_properties(consumer, client, ends),
        subscription_set=sorted(listed, key=lambda each: each.topic),
        mq_table={
            QueueKey(queue.topic, queue.broker_name, queue.queue_id): held.info()
            for queue, held in sorted(own.items())
        },
        status_table={each.topic: statistics.status(each.topic) for each in listed},
        jstack=stacks_text() if stacks else None,
    )


def receiver_info(
    group: str,
    client: ClientCore,
    subscriptions: Iterable[TopicSubscription],
    held: Iterable[Held],
    started_at_ms: int,
    *,
    stacks: bool = False,
) -> ConsumerRunningInfo:
    """Return the state of a consumer that settles each message by itself.

    Old tools know no CONSUME_POP, so it is one that acts by itself.
    """
    queues: dict[QueueKey, list[Held]] = {}
    for each in held:
        queue = each.message.queue
        key = QueueKey(queue.topic, queue.broker_name, queue.queue_id)
        queues.setdefault(key, []).append(each)
    values = {
        "consumerGroup": group,
        "messageModel": "CLUSTERING",
        "namesrvAddr": ";".join(sorted(client.namesrvs)),
        "clientIP": client.ip,
        "instanceName": client.id.partition("@")[2],
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in sorted(client.namesrvs)),
        "PROP_CONSUMEORDERLY": "false",
        "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
        "PROP_CLIENT_VERSION": VERSION_TEXT,
        "PROP_THREADPOOL_CORE_SIZE": "0",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_at_ms),
    }
    return ConsumerRunningInfo(
        properties=values,
        subscription_set=sorted(
            (each.data() for each in subscriptions), key=lambda each: each.topic
        ),
        mq_pop_table={key: _in_flight(queues[key]) for key in sorted(queues, key=str)},
        jstack=stacks_text() if stacks else None,
    )


def _in_flight(held: list[Held]) -> PopQueueInfo:
    views = sorted(held, key=lambda each: each.message.queue_offset)
    return PopQueueInfo(
        wait_ack_count=len(held),
        last_pop_timestamp=max(each.received_ms for each in held),
        in_hand=[
            MessageInHand(
                each.message.message_id,
                each.message.queue_offset,
                each.received_ms,
                each.message.reconsume_times,
            )
            for each in views[:IN_HAND_MAX]
        ],
    )


def _properties(consumer: Describable, client: ClientCore, ends: QueueEnds) -> dict[str, str]:
    settings = consumer.settings
    values: dict[str, object] = {
        "consumerGroup": consumer.group,
        "messageModel": consumer.message_model,
        "consumeFromWhere": ends.begin.value,
        "consumeTimestamp": timestamp_text(ends.begin_ms),
        "consumeThreadMin": consumer.concurrency,
        "consumeThreadMax": consumer.concurrency,
        "consumeMessageBatchMaxSize": settings.consume_batch_size,
        "consumeConcurrentlyMaxSpan": settings.queue_span_max,
        "consumeTimeout": settings.consume_timeout_ms // MINUTE_MS,
        "pullBatchSize": settings.pull_batch_size,
        "pullThresholdForQueue": settings.queue_count_max,
        "pullThresholdSizeForQueue": settings.queue_bytes_max // MIB,
        "pullInterval": 0,
        "maxReconsumeTimes": settings.max_reconsume_times,
        "suspendCurrentQueueTimeMillis": settings.suspend_queue_ms,
        "namesrvAddr": ";".join(sorted(client.namesrvs)),
        "clientIP": client.ip,
        "instanceName": client.id.partition("@")[2],
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in sorted(client.namesrvs)),
        "PROP_CONSUMEORDERLY": str(consumer.orderly).lower(),
        "PROP_CONSUME_TYPE": consumer.consume_type,
        "PROP_CLIENT_VERSION": VERSION_TEXT,
        "PROP_THREADPOOL_CORE_SIZE": consumer.concurrency,
        "PROP_CONSUMER_START_TIMESTAMP": consumer.started_at_ms,
    }
    return {name: str(value) for name, value in values.items()}


def _calls(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the calls of a thread. PyPy cannot read all those of one that runs (SystemError)."""
    with suppress(SystemError):
        while frame is not None:
            yield frame, frame.f_lineno
            frame = frame.f_back


def stacks_text() -> str:
    """Return the stacks of all threads of this process, innermost call first."""
    frames = sys._current_frames()
    lines: list[str] = []
    for thread in all_threads():
        frame = frames.get(thread.ident or 0)
        if frame is None:
            continue
        lines.append(f"{thread.name:<40} TID: {thread.ident} STATE: RUNNABLE")
        lines += [
            f"{thread.name:<40} {call.name}({call.filename}:{call.lineno})"
            for call in StackSummary.extract(_calls(frame), lookup_lines=False)
        ]
        lines.append("")
    return "\n".join(lines)
