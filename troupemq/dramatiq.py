"""Broker for dramatiq: each queue is a topic, and each worker receives its messages one by one.

    dramatiq.set_broker(TroupeMQBroker("10.0.0.1:9876"))

dramatiq                    TroupeMQ
queue `default`             topic and group `dramatiq-default`
message id, actor           KEYS, TAGS of the message
delay, backoff of retries   timer of the broker; there is no delay queue `default.DQ`
ack                         acknowledgement of the message
nack                        dead-letter queue `%DLQ%dramatiq-default`
lost or stopped worker      the message is delivered again
priority of an actor        order within a worker, as with every broker of dramatiq
option `broker_priority`    order of the messages in a queue, with `max_priority`
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Event, RLock
from time import monotonic
from typing import Any
from urllib.parse import quote

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.logging import get_logger
from dramatiq.message import Message as Task
from dramatiq.middleware import Middleware

from protocol.compression import CompressionError
from protocol.signature import Credentials
from protocol.topic_names import DLQ_TOPIC_PREFIX
from remoting.tls_options import Tls
from troupemq.client.admin import Admin
from troupemq.client.arguments import check_integer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import DEAD_LETTER
from troupemq.client.errors import (
    ClientClosed,
    ClientError,
    DeliveryExpired,
    DeliverySettled,
)
from troupemq.client.message import word_of
from troupemq.client.producing.priorities import PriorityMessage, by_priority
from troupemq.client.producing.producer import Producer
from troupemq.client.receiving.delivery import Delivery
from troupemq.client.receiving.flows import is_passing
from troupemq.client.receiving.simple_consumer import RECEIVE_COUNT_MAX, SimpleConsumer

HOP_MS = 2 * 86_400_000
"""Longest timer of one message, below the default of timerMaxDelaySec; longer delays take hops."""
DELAY_LEFT_MS = "troupemq_delay_left_ms"
"""Option of a message: its delay after this hop."""
QUIET_S = 0.5
"""Time without messages after which `join` returns: new ones and due timers show a little later."""
REDELIVERIES_MAX = 16
PRIORITY_MAX = 255
"""Limit of `max_priority`, as in dramatiq's broker for RabbitMQ."""


class TroupeMQBroker(Broker):
    """A dramatiq broker whose workers share the messages of each queue.

    A message is held for its worker as long as the worker's connection lives, so it may take hours.
    Those of a lost worker are delivered to others about a second later. For any thread.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        redeliveries_max: int = REDELIVERIES_MAX,
        max_priority: int | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Do no I/O; the first message or consumer connects.

        * `namesrv`: "host:port;host:port". [default: NAMESRV_ADDR, else 127.0.0.1:9876]
        * `middleware`: as in every broker of dramatiq. [default: dramatiq's]
        * `namespace`: begin of the names of topics and groups.
        * `redeliveries_max`: deliveries of a message after the first one, then it is a dead letter.
          Retries of dramatiq are new messages and do not count.
        * `max_priority`: highest `broker_priority` of a message, 255 at most; messages with a
          higher one are received first, by workers with this argument. [default: no order]
        """
        if max_priority is not None:
            check_integer(max_priority, 1, PRIORITY_MAX, "max_priority")
        super().__init__(middleware=middleware)
        self.max_priority = max_priority
        self.queues: set[str] = set()
        self.namesrv, self.namespace = namesrv, namespace
        self._redeliveries_max = redeliveries_max
        self._access: dict[str, Any] = {"credentials": credentials, "tls": tls}
        self._lock = RLock()
        self._producers: dict[int, Producer] = {}
        """The producer of this process; after a fork those of others, which stay unused."""
        self._admin: Admin | None = None
        self._consumers: set[QueueConsumer] = set()
        self._due_ms: dict[str, int] = {}
        """Latest due time of the delayed messages that were enqueued here, by queue."""

    def topic_of(self, queue_name: str) -> str:
        """Return the name of the topic, and of the group, of a queue."""
        return f"{self.namespace}-{quote(queue_name, safe='').replace('.', '%2E')}"

    def dead_letter_topic_of(self, queue_name: str) -> str:
        """Return the topic with the messages of a queue that were given up."""
        return DLQ_TOPIC_PREFIX + self.topic_of(queue_name)

    def close(self) -> None:
        """Give back what workers have not settled, and close all connections."""
        with self._lock:
            consumers = tuple(self._consumers)
            producer = self._producers.pop(os.getpid(), None)
            admin, self._admin = self._admin, None
        for consumer in consumers:
            consumer.end()
        if producer is not None:
            producer.stop()
        if admin is not None:
            admin.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; the broker creates its topic with the first message."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of all declared queues."""
        return self.queues.copy()

    # --- sending

    def enqueue(self, message: Task[Any], *, delay: int | None = None) -> Task[Any]:
        """Send a message, and return it when the broker has stored it.

        `delay` is in ms. A delayed message returns with its due time as the option `eta`. Raises
        dramatiq's ConnectionClosed if no broker takes it, and other ClientErrors.
        """
        queue_name, given = message.queue_name, message
        self.declare_queue(queue_name)
        if delay is not None:
            due_ms = current_millis() + delay
            message = message.copy(options={"eta": due_ms})
            self._due_ms[queue_name] = max(due_ms, self._due_ms.get(queue_name, 0))
        self.emit_before("enqueue", message, delay)
        if isinstance(given, ReceivedMessage):  # a retry, whose failure dramatiq only logs
            given.unsent = message, delay or 0
        self.send(message, delay or 0)
        if isinstance(given, ReceivedMessage):
            given.unsent = None
        self.emit_after("enqueue", message, delay)
        return message

    def send(self, message: Task[Any], delay_ms: float) -> None:
        """Send a message to its topic, without signals; a long delay for its first hop."""
        hop_ms = min(max(delay_ms, 0), HOP_MS)
        if delay_ms > hop_ms:
            message = message.copy(options={DELAY_LEFT_MS: delay_ms - hop_ms})
        priority = message.options.get("broker_priority")
        sent = PriorityMessage(
            self.topic_of(message.queue_name),
            message.encode(),
            tags=message.actor_name,
            keys=word_of(message.message_id) or (),
            delay=hop_ms / 1000 if hop_ms else None,
            priority=priority if isinstance(priority, int | float) else 0,
        )
        try:
            self._producer().send(sent)
        except ClientError as error:
            if is_passing(error):
                raise ConnectionClosed(error) from error
            raise

    def _producer(self) -> Producer:
        process_id = os.getpid()
        with self._lock:
            producer = self._producers.get(process_id)
            if producer is None:
                choose = None if self.max_priority is None else by_priority(self.max_priority)
                producer = Producer(self.namespace, self.namesrv, choose=choose, **self._access)
                producer.start()
                self._producers[process_id] = producer
            return producer

    # --- receiving

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> "QueueConsumer":
        """Return an iterator over the messages of a queue. `timeout` is in ms.

        Raises QueueNotFound for a queue that is not declared, ConnectionClosed without a server.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            client = self._receiver(queue_name)
        except ClientError as error:
            raise ConnectionClosed(error) from error
        consumer = QueueConsumer(self, client, prefetch, timeout)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def _receiver(self, queue_name: str) -> SimpleConsumer:
        topic = self.topic_of(queue_name)
        client = SimpleConsumer(
            topic,
            self.namesrv,
            auto_extend=True,
            begin=ConsumeFrom.FIRST_OFFSET,
            max_reconsume_times=self._redeliveries_max,
            highest_queue_first=self.max_priority is not None,
            **self._access,
        )
        client.subscribe(topic)
        client.start()
        return client

    def forget(self, consumer: "QueueConsumer") -> None:
        """Drop a consumer that has ended."""
        with self._lock:
            self._consumers.discard(consumer)

    # --- for tests of applications

    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue that no worker has; dead and delayed ones stay."""
        if self._administration().message_count(self.topic_of(queue_name)) == 0:
            return
        client = self._receiver(queue_name)
        try:
            while deliveries := client.receive(wait_ms=0):
                client.ack(deliveries)
        finally:
            client.stop()

    def flush_all(self) -> None:
        """Drop the messages of all declared queues, as `flush`."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until workers have settled all messages of a queue; `interval`, `timeout` in ms.

        Delayed messages count if this broker object has enqueued them. Raises QueueJoinTimeout.
        """
        deadline_s = None if timeout is None else monotonic() + timeout / 1000
        pause, quiet_s = Event(), monotonic()
        while True:
            now_s = monotonic()
            if self._due_ms.get(queue_name, 0) > current_millis() or self._lag(queue_name):
                quiet_s = now_s
            elif now_s >= quiet_s + QUIET_S:
                return
            if deadline_s is not None and now_s >= deadline_s:
                raise QueueJoinTimeout(queue_name)
            pause.wait(interval / 1000)

    def _lag(self, queue_name: str) -> int:
        """Return how many messages of a queue are not settled."""
        topic, admin = self.topic_of(queue_name), self._administration()
        try:
            found = tuple(admin.group_progress(topic))
        except ClientError:  # a group without offsets: none of its messages is settled
            return admin.message_count(topic)
        seen = {each.queue_id for each in found if each.topic == topic}
        lag = sum(each.lag for each in found)
        for queue in admin.queues(topic):
            if queue.queue_id not in seen:
                begin, end = admin.offsets(queue)
                lag += end - begin
        return lag

    def _administration(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(self.namesrv, **self._access)
            return self._admin


class ReceivedMessage(MessageProxy):
    """A message with its delivery, and the consumer that has received it."""

    def __init__(self, message: Task[Any], delivery: Delivery, consumer: "QueueConsumer") -> None:
        super().__init__(message)
        self.delivery, self.consumer = delivery, consumer
        self.unsent: tuple[Task[Any], float] | None = None
        """Retry that no broker has stored, and its delay in ms."""


def _decoded(delivery: Delivery) -> Task[Any] | None:
    try:
        message: Task[Any] = Task.decode(delivery.message.body)
    except (DecodeError, CompressionError):
        return None
    names = (message.queue_name, message.actor_name, message.message_id)
    is_whole = isinstance(message.options, dict) and all(isinstance(each, str) for each in names)
    return message if is_whole else None


class QueueConsumer(Consumer):
    """Iterator over the messages of one queue, with a client of its own.

    A worker that pauses closes its consumer, and settles messages later through the next one.
    So a closed consumer keeps its client until its last message is settled.
    """

    def __init__(
        self, broker: TroupeMQBroker, client: SimpleConsumer, prefetch: int, timeout_ms: int
    ) -> None:
        """Take a started client. At most `prefetch` messages are held at once."""
        self._broker, self._client = broker, client
        self._prefetch, self._timeout_ms = prefetch, timeout_ms
        self._log = get_logger(__name__, type(self))
        self._ready: deque[Delivery] = deque()
        self._given: set[Delivery] = set()
        """Deliveries of messages that the worker has and that are not settled."""
        self._is_closed = False
        self._changed = Condition()

    def __next__(self) -> ReceivedMessage | None:
        """Return the next message, None after the timeout without any.

        Raises ConnectionClosed if brokers refuse.
        """
        if not self._ready and (room := self._room()) > 0:
            try:
                self._ready += self._client.receive(min(room, RECEIVE_COUNT_MAX), self._timeout_ms)
            except ClientError as error:
                raise ConnectionClosed(error) from error
        while self._ready:
            received = self._read(self._ready[0])
            self._ready.popleft()
            if received is not None:
                return received
        return None

    def _room(self) -> int:
        """Return how many messages may be fetched; wait for the timeout while none may."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._given) < self._prefetch, self._timeout_ms / 1000
            )
            return self._prefetch - len(self._given)

    def _read(self, delivery: Delivery) -> ReceivedMessage | None:
        """Return the message; None if it was settled here. Raises ConnectionClosed."""
        message = _decoded(delivery)
        if message is None:
            self._log.error("Failed to decode message %s.", delivery.message.message_id)
            self._give_up(delivery, "no readable message of dramatiq")
            return None
        message.options.pop("eta", None)  # else the worker would hold it once more
        left_ms = message.options.pop(DELAY_LEFT_MS, None)
        if isinstance(left_ms, int | float) and left_ms > 0:
            self._send_again(message, left_ms, delivery)
            return None
        with self._changed:
            self._given.add(delivery)
        return ReceivedMessage(message, delivery, self)

    def _send_again(self, message: Task[Any], delay_ms: float, delivery: Delivery) -> None:
        """Store a message once more, and settle this one. Raises ConnectionClosed."""
        try:
            self._broker.send(message, delay_ms)
        except ClientError as error:  # it cannot pass: no broker takes such a message
            self._log.error("Message %s not stored again: %s", message.message_id, error)
            self._give_up(delivery, str(error))
        else:
            self._settle(delivery, delivery.ack)

    def _give_up(self, delivery: Delivery, reason: str) -> None:
        """Move a message to the dead-letter queue. Raises ConnectionClosed."""
        self._settle(delivery, lambda: delivery.retry(DEAD_LETTER, reason=reason))

    def ack(self, message: MessageProxy) -> None:
        """Settle a message as processed. Raises ConnectionClosed; the worker then tries again.

        A retry that could not be stored is stored first, or the task would be lost.
        """
        assert isinstance(message, ReceivedMessage)
        if message.unsent is not None:
            message.consumer._send_again(*message.unsent, message.delivery)
            return
        message.consumer._settle(message.delivery, message.delivery.ack)

    def nack(self, message: MessageProxy) -> None:
        """Move a message to the dead-letter queue. Raises as `ack`."""
        assert isinstance(message, ReceivedMessage)
        delivery = message.delivery
        message.consumer._settle(delivery, lambda: delivery.retry(DEAD_LETTER))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back to the other workers. Raises as `ack`."""
        for message in messages:
            assert isinstance(message, ReceivedMessage)
            message.consumer._give_back(message.delivery)

    def _give_back(self, delivery: Delivery) -> None:
        """Store a message again at the end of its queue: a retry would count as a redelivery."""
        message = _decoded(delivery)
        if message is None or delivery.is_settled:
            self._settle(delivery, lambda: delivery.retry(seconds=0))
        else:
            self._send_again(message, 0, delivery)

    def _settle(self, delivery: Delivery, settle: Callable[[], None]) -> None:
        try:
            settle()
        except (DeliveryExpired, DeliverySettled, ClientClosed) as error:
            self._log.warning("Message delivered again: %s", error)
        except ClientError as error:
            raise ConnectionClosed(error) from error
        with self._changed:
            self._given.discard(delivery)
            self._changed.notify_all()
            is_last = self._is_closed and not self._given
        if is_last:
            self.end()

    def close(self) -> None:
        """Give back the messages that the worker has not got. Raises ConnectionClosed."""
        try:
            while self._ready:
                self._give_back(self._ready.popleft())
        finally:  # the client gives back what is left, when it ends
            with self._changed:
                self._is_closed = True
                is_last = not self._given
            if is_last:
                self.end()

    def end(self) -> None:
        """Give back all messages that are not settled, and close the connection."""
        self._client.stop()
        self._broker.forget(self)
