"""Concurrent listener calls, with a few messages each.

A failed message returns to the broker, which delivers it later through the group's retry topic.
If the broker does not accept it, the client keeps it and retries. A broadcasting consumer has no
retries: it drops a failed message with a warning.

The listener calls are flows (connection/calls.py). They yield a `Handle` for the call itself. A
runner drives them: a pool of threads (consumer.py), or the tasks of an event loop.

Source: client/impl/consumer/ConsumeMessageConcurrentlyService.java.

If the broker rejects CONSUMER_SEND_MSG_BACK, the message is sent as a new message to the group's
retry topic. Orderly consumers always send their dead letters this way.

Source: DefaultMQPushConsumerImpl.java and ConsumeMessageOrderlyService.java (sendMessageBack),
DefaultMQProducerImpl.java (sendKernelImpl).
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import choice
from typing import Any, NamedTuple, Protocol, TypeAlias

from protocol import properties as names
from protocol.codes import COMPRESSED, COMPRESSION_TYPE_MASK, RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.send import SendMessageHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.connection.calls import Call, Flow, FlowTasks, LookUpRoute, Value, Wanted
from troupemq.client.connection.client import ClientCore, now_ms
from troupemq.client.connection.route import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT
from troupemq.client.consuming.consumer_statistics import ConsumerStatistics
from troupemq.client.consuming.listener import RISING_DELAY, Outcome, RetryLater
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.errors import BrokerError, ClientError, ResultUnknown
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.producing.queue_choice import away_from
from troupemq.client.producing.sending import STATUS_OF_CODE
from troupemq.client.settings import UNLIMITED, ConsumerSettings

SEND_BACK_TIMEOUT_MS = 5000
TRIES = 3
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
FIRST_RETRY_LEVEL = 3
RETRIES_MAX = 16
DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()  # noqa: SIM905
"""Default delay levels of brokers (messageDelayLevel)."""
_MINUTES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)
DELAYS_S = (1, 5, 10, 30, *(60 * minutes for minutes in _MINUTES))
assert len(DELAYS_S) == len(DELAYS)

ROOM_OF_BROKERS = 1024
"""Bytes of properties reserved for those that brokers add."""

ORDERLY_RETRIES_MAX = (1 << 31) - 1


def level_of(seconds: float) -> int:
    """Return the delay level that lasts for `seconds`: the next longer one, or the longest."""
    return min(bisect_left(DELAYS_S, seconds) + 1, len(DELAYS_S))


class SendingBack:
    """Returns messages of one group; for any thread. `give_back` and `send_again` are flows."""

    def __init__(
        self, client: ClientCore, group: str, max_reconsume_times: int, orderly: bool
    ) -> None:
        self._client = client
        self._group = group
        self._retry_topic = RETRY_TOPIC_PREFIX + group
        unset = ORDERLY_RETRIES_MAX if orderly else RETRIES_MAX
        self.retries_max = unset if max_reconsume_times == UNLIMITED else max_reconsume_times

    def give_back(
        self,
        view: MessageView,
        delay_level: int = RISING_DELAY,
        reason: str = "",
        seconds: float | None = None,
    ) -> Flow[bool]:
        """Return a message to its broker, with a `reason`; return False if no broker took it.

        Brokers without timers take a delay level for `seconds`.
        """
        header = ConsumerSendMsgBackHeader(
            offset=view.physical_offset,
            group=self._group,
            delay_level=delay_level if seconds is None else level_of(seconds),
            origin_msg_id=view.message_id,
            origin_topic=view.topic,
            max_reconsume_times=self.retries_max,
            broker_name=view.queue.broker_name,
            failure=reason or None,
            delay_ms=None if seconds is None else round(seconds * 1000),
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        try:
            address = self._client.routes.master(view.queue.broker_name)
            yield Call(address, command, SEND_BACK_TIMEOUT_MS)
        except ClientError as error:
            log.warning("message return failed", id=view.message_id, error=str(error))
            return (yield from self.send_again(view, view.reconsume_times + 1, reason))
        return True

    def next_try(self, view: MessageView, delay_level: int, seconds: float | None = None) -> str:
        """Return a description of a returned message's next try, for the log."""
        if delay_level < 0 or view.reconsume_times >= self.retries_max:
            return f"none, dead letter in {DLQ_TOPIC_PREFIX}{self._group}"
        if seconds is not None:
            return f"in {seconds:g} s, or in {DELAYS[level_of(seconds) - 1]} without timers"
        level = delay_level or FIRST_RETRY_LEVEL + view.reconsume_times
        level = max(1, min(level, len(DELAYS)))  # a producer may send any number of retries
        return f"in {DELAYS[level - 1]} (delay level {level})"

    def send_again(self, view: MessageView, reconsume_times: int, reason: str = "") -> Flow[bool]:
        """Send a message to the retry topic; return False if no broker took it.

        At the retry limit the broker makes it a dead letter.
        """
        tried: set[str] = set()
        try:
            route = yield LookUpRoute(self._retry_topic, publish=True)
        except ClientError as error:
            log.warning("message retry postponed", id=view.message_id, error=str(error))
            return False
        for _ in range(TRIES):
            queue = choice(away_from(tried, route.publish_queues))
            tried.add(queue.broker_name)
            header = self._header(view, reconsume_times, queue, reason)
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, header.encode_v2(), view.stored_body
            )
            try:
                address = self._client.routes.master(queue.broker_name)
                yield Call(address, command, SEND_BACK_TIMEOUT_MS)
            except ClientError as error:
                if isinstance(error, BrokerError) and error.code in STATUS_OF_CODE:
                    return True  # stored, with a reservation
                log.warning("retry send failed", id=view.message_id, error=str(error))
            else:
                return True
        return False

    def _header(
        self, view: MessageView, reconsume_times: int, queue: MessageQueue, reason: str
    ) -> SendMessageHeader:
        properties = dict(view.properties)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.TROUPE_FAILURE, None)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, view.message_id)
        properties[names.RETRY_TOPIC] = view.topic
        properties[names.RECONSUME_TIME] = str(reconsume_times)
        properties[names.MAX_RECONSUME_TIMES] = str(self.retries_max)
        properties[names.DELAY] = str(FIRST_RETRY_LEVEL + view.reconsume_times)
        room = names.PROPERTIES_BYTES_MAX - len(names.format(properties)) - ROOM_OF_BROKERS
        if failure := names.failure_bytes(reason, room).decode():
            properties[names.TROUPE_FAILURE] = failure
        return SendMessageHeader(
            producer_group=INNER_PRODUCER_GROUP,
            topic=self._retry_topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=view.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
            born_timestamp=now_ms(),
            flag=view.flag,
            properties=names.format(properties).decode(),
            reconsume_times=reconsume_times,
            batch=False,
            max_reconsume_times=self.retries_max,
            broker_name=queue.broker_name,
        )


log = client_logger(__name__)

OVERDUE_LEVEL = 3
"""Delay level of a message with an overdue listener call."""

OVERDUE_MAX = 16
"""Limit of overdue messages returned per queue and round."""

NAMED_MAX = 5
"""Limit of messages that the log line of a failed call names."""


class Handle(NamedTuple):
    """Call the listener; receive its Outcome, and the ms that it took."""

    views: Sequence[MessageView]


ListenerFlow: TypeAlias = Generator[Wanted | Handle, Any, Value]


class ListenerRunner(Protocol):
    """Runner of flows with listener calls, a limited number of them at once."""

    def run(self, flow: ListenerFlow[None]) -> None:
        """Drive `flow` as soon as one of those before it ends, or at once."""


@dataclass(eq=False)
class Consuming(ABC):
    """Base of concurrent and orderly consuming: the flows of listener calls."""

    group: str
    listening: ListenerRunner
    settings: ConsumerSettings
    statistics: ConsumerStatistics
    on_room: Callable[[ProcessQueue], None]
    """Function that gets a queue that was full and has room again."""
    sending_back: SendingBack | None
    """None for broadcasting."""
    tasks: FlowTasks
    """Runner of other flows."""

    @abstractmethod
    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        """Consume messages that the queue already holds."""

    def directly(self, view: MessageView, then: Callable[[Outcome, float], None]) -> None:
        """Consume one message for an administrator; `then` gets the outcome and the ms it took."""

        def consume() -> ListenerFlow[None]:
            outcome, took_ms = yield Handle((view,))
            self._log_failure((view,), outcome, "none, an administrator asked for this call")
            then(outcome, took_ms)

        self.listening.run(consume())

    def _log_failure(self, views: Sequence[MessageView], outcome: Outcome, next_try: str) -> None:
        if outcome.error is None:
            return
        named = views[:NAMED_MAX]
        more = f" +{len(views) - NAMED_MAX}" if len(views) > NAMED_MAX else ""
        log.error(
            "listener failed",
            group=self.group,
            topic=views[0].topic,
            queue=str(views[0].queue),
            id=",".join(view.message_id for view in named) + more,
            keys=",".join(key for view in named for key in view.keys) or "-",
            attempt=max(view.reconsume_times for view in views) + 1,
            next_try=next_try,
            error=outcome.reason,
            exc_info=None if isinstance(outcome.error, ResultUnknown) else outcome.error,
        )

    def _count(
        self,
        process_queue: ProcessQueue,
        good: Sequence[MessageView],
        bad: Sequence[MessageView],
        took_ms: float,
    ) -> None:
        self.statistics.consumed(process_queue.queue.topic, len(good), len(bad), took_ms)

    def _done(
        self, process_queue: ProcessQueue, views: Sequence[MessageView], *, in_call: bool = False
    ) -> None:
        if process_queue.done(views, self.settings, in_call=in_call):
            self.on_room(process_queue)


class ConcurrentConsuming(Consuming):
    """Consumes messages of all queues concurrently, in no order."""

    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        size = self.settings.consume_batch_size
        for first in range(0, len(views), size):
            self.listening.run(self._run(process_queue, views[first : first + size]))

    def _run(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> ListenerFlow[None]:
        if not process_queue.begin(views):
            return
        try:
            outcome, took_ms = yield Handle(views)
            if outcome.failed is None:
                self._count(process_queue, views, (), took_ms)
                self._done(process_queue, views)
            else:
                yield from self._failed(process_queue, views, outcome, outcome.failed, took_ms)
        finally:
            process_queue.end()

    def _failed(
        self,
        process_queue: ProcessQueue,
        views: Sequence[MessageView],
        outcome: Outcome,
        failed: RetryLater,
        took_ms: float,
    ) -> Flow[None]:
        good, bad = outcome.split(views)
        self._count(process_queue, good, bad, took_ms)
        self._done(process_queue, good)
        if process_queue.dropped:
            return  # the queue's next owner gets the failed messages again
        kept: list[MessageView] = []
        back, level, seconds = self.sending_back, failed.delay_level, failed.seconds
        if bad:
            next_try = "none, broadcast" if back is None else back.next_try(bad[0], level, seconds)
            self._log_failure(bad, outcome, next_try)
        for view in bad:
            if back is None:
                log.warning("broadcast message dropped", group=self.group, id=view.message_id)
            elif process_queue.holds(view) and not (
                yield from back.give_back(view, level, outcome.reason, seconds)
            ):
                view.reconsume_times += 1
                kept.append(view)
        kept_ids = {id(view) for view in kept}
        self._done(process_queue, [view for view in bad if id(view) not in kept_ids])
        if kept:
            again = partial(self._again, process_queue, kept)
            self.tasks.later(self.settings.again_after_ms, again)

    def _again(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> Flow[None]:
        yield from ()  # a flow, though it waits for nothing
        self.submit(process_queue, views)

    def give_back_overdue(self, process_queues: Iterable[ProcessQueue]) -> Flow[None]:
        """Return messages with calls over `consume_timeout_ms` to the broker."""
        if self.sending_back is None:
            return
        late = f"its listener took longer than {self.settings.consume_timeout_ms} ms"
        refusing: set[str] = set()  # brokers, of which each try may take 20 s of heartbeats
        for process_queue in process_queues:
            broker_name = process_queue.queue.broker_name
            for _ in range(0 if broker_name in refusing else OVERDUE_MAX):
                view = process_queue.overdue(self.settings.consume_timeout_ms)
                if view is None:
                    break
                if not (yield from self.sending_back.give_back(view, OVERDUE_LEVEL, late)):
                    refusing.add(broker_name)
                    break
                log.warning("overdue message returned to broker", id=view.message_id)
                self._done(process_queue, (view,), in_call=True)
