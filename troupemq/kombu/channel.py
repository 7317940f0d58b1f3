"""Channel: kombu's calls on queues, exchanges and messages.

Publications of a block `with producer.batch():` are sent together.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock
from time import monotonic, sleep, time_ns
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import BatchPublishError, ChannelError
from kombu.transport import base, virtual
from kombu.utils.uuid import uuid

from storage.spelling import closest
from troupemq.client.arguments import MS_MAX, check_flag, check_integer
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.log import client_logger
from troupemq.client.message import Message, word_of
from troupemq.client.receiving.delivery import Delivery
from troupemq.kombu.bindings import EXCHANGE_TYPES, FRESH_S, KEY_CHARS_MAX, RETRIED_S
from troupemq.kombu.envelope import (
    Payload,
    QueueMessage,
    encode,
    is_expired,
    mark_redelivered,
    message_of,
    queue_ttl_ms,
)
from troupemq.kombu.fetching import Fetcher
from troupemq.kombu.readers import ReadQueue, begin_by_name, forget_name
from troupemq.kombu.shared import Shared


class PublishBatch:
    """Messages of one producer that wait until the block ends, or until there are `max_size`."""

    def __init__(self, channel: Any, send: Callable[..., Any], max_size: int) -> None:
        """Take kombu's channel, and a function that sends a message and returns a future."""
        self.channel, self._send, self._max_size = channel, send, max_size
        self._messages: list[Message] = []
        self._failure: ClientError | None = None

    def publish(self, message: Payload, exchange: str, routing_key: str, **_: Any) -> None:
        """Keep a message for each queue that it is routed to. Raises BatchPublishError."""
        self._check()
        routed = self.channel.routed(message, exchange, routing_key)
        if self._messages and len(self._messages) + len(routed) > self._max_size:
            self.flush()
        self._messages += routed
        if len(self._messages) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Send what waits, and return when it is stored.

        Raises BatchPublishError if it may not be stored; after that the batch takes no more.
        """
        self._check()
        messages, self._messages = self._messages, []
        sent = []
        for message in messages:
            try:
                sent.append(self._send(message, wait_for_room=True))
            except ClientError as error:
                self._failure = self._failure or error
        for each in sent:
            try:
                each.result()
            except ClientError as error:
                self._failure = self._failure or error
        self._check()

    def discard(self) -> None:
        """Drop what waits, after an exception in the block."""
        self._messages.clear()

    def close(self) -> None:
        """Drop what waits, at the end of the block."""
        self._messages.clear()

    def _check(self) -> None:
        if self._failure is not None:
            text = f"some messages of the batch may not be stored: {self._failure}"
            raise BatchPublishError(text) from self._failure


log = client_logger(__name__)

GET_WAIT_MS = 100
"""Time in which a message that was sent just now reaches its queue."""
UNLIMITED_COUNT = 32
"""Messages that wait for a channel without a prefetch count."""
RETRIES_MAX = 16
MISSING_S = 5.0
"""Time for which a queue without a topic is not looked up again."""


class QoS(virtual.QoS):
    """The messages of a channel that are not settled."""

    def ack(self, delivery_tag: Any) -> None:
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Store the message again at the end of its queue, or make it a dead letter."""
        if requeue:
            self.channel._restore(self._delivered[delivery_tag])
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, is_dead=True)

    def restore_unacked(self) -> list[Any]:
        """Give back what is not settled; the broker keeps what cannot be given back."""
        self._flush()
        try:
            while self._delivered:
                _, message = self._delivered.popitem(last=False)
                self.channel._restore(message)
        except ClientError as error:
            log.warning("tasks not given back", error=str(error))
        self._delivered.clear()
        return []


_OWN_OPTIONS = ("confirm_publish", "max_reconsume_times")


class Channel(virtual.Channel):
    """A channel of a Transport."""

    QoS = QoS
    exchange_types = EXCHANGE_TYPES
    supports_fanout = True
    body_encoding = None
    max_reconsume_times = RETRIES_MAX
    """Deliveries after a killed worker before a task becomes a dead letter."""
    confirm_publish = True
    """Whether a publication returns when it is stored; pyamqp has the same option."""
    from_transport_options = (*virtual.Channel.from_transport_options, *_OWN_OPTIONS)

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        for name in connection.client.transport_options:
            known = self.from_transport_options
            if name not in known and (meant := closest(name, _OWN_OPTIONS)) is not None:
                raise ArgumentIllegal(f"unknown transport option {name}: did you mean {meant}?")
        check_flag(self.confirm_publish, "the transport option confirm_publish")
        check_integer(
            self.max_reconsume_times, 0, MS_MAX, "the transport option max_reconsume_times"
        )
        self._shared: Shared = connection.shared
        self._fetchers: dict[str, Fetcher] = {}
        self._ready: deque[tuple[str, Payload, Delivery | None]] = deque()
        self._held: dict[int, tuple[str, Delivery | None]] = {}
        self._callbacks: dict[str, tuple[Callable[[Any], None], bool]] = {}
        """Callback of each consumed queue, and whether it takes messages as settled."""
        self._taking = Lock()
        self._tags = count(1)

    # --- declarations

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        return base.to_rabbitmq_queue_arguments(arguments, **options)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **_: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue; only a passive declaration counts its messages."""
        queue = queue or f"amq.gen-{uuid()}"
        shared = self._shared
        if passive:
            if not self._has_queue(queue):
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404"
                )
            return queue_declare_ok_t(queue, self._size(queue), 0)
        ttl_ms = queue_ttl_ms(arguments)
        if auto_delete or exclusive:
            shared.read_queues.setdefault(queue, ReadQueue(queue)).ttl_ms = ttl_ms
            begin_by_name(shared.link, queue)
            shared.bindings.bind("", "direct", "", "")
        else:
            shared.ttls_ms[queue] = ttl_ms
            self._new_queue(queue)
        return queue_declare_ok_t(queue, 0, 0)

    def _new_queue(self, queue: str, **_: Any) -> None:
        link = self._shared.link
        link.ensure_topic(link.place.queue(queue))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        link = self._shared.link
        return queue in self._shared.read_queues or link.has_topic(link.place.queue(queue))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        """Bind a queue; a binding that fails is tried again by the next declaration."""
        exchange = exchange or "amq.direct"
        try:
            super().queue_bind(queue, exchange, routing_key, arguments, **options)
        except BaseException:
            super().queue_unbind(queue, exchange, routing_key, arguments)
            raise

    def _queue_bind(self, exchange: str, key: str, pattern: Any, queue: str) -> None:
        if len(key) > KEY_CHARS_MAX:
            raise ChannelError(f"a routing key has {KEY_CHARS_MAX} characters at most")
        shared = self._shared
        kind = self.typeof(exchange).type
        reader = shared.read_queues.get(queue)
        if reader is None:
            shared.bindings.bind(exchange, kind, queue, key)
            return
        lookup, table = self.typeof(exchange).lookup, [(key, pattern, queue)]
        exact = key if kind == "direct" else None
        reader.bind(
            shared.link, exchange, lambda used: bool(lookup(table, exchange, used, None)), exact
        )
        shared.bindings.bind(exchange, kind, "", "")

    def queue_unbind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, arguments, **options)
        if queue not in self._shared.read_queues:
            self._shared.bindings.unbind(exchange, queue, routing_key)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Delete a queue with its messages, its group and its bindings."""
        shared = self._shared
        if if_empty and self._size(queue):
            return
        for exchange, key, arguments in list(self.state.queue_bindings(queue)):
            super().queue_unbind(queue, exchange, key, arguments)
            if queue not in shared.read_queues:
                shared.bindings.unbind(exchange, queue, key)
        self.state.queue_bindings_delete(queue)
        reader = shared.read_queues.pop(queue, None)
        if reader is not None:
            reader.stop()
            forget_name(shared.link.place, queue)
            return
        name = shared.link.place.queue(queue)
        shared.link.forget_topic(name)
        with shared.link.admin() as admin:
            try:
                clusters = admin.topic_clusters(name)
            except RouteNotFound:
                return
            for cluster in clusters:
                admin.delete_topic(name, cluster)
                admin.delete_group(name, with_offsets=True, cluster=cluster)

    def exchange_declare(self, exchange: Any = None, type: Any = None, **options: Any) -> None:
        """Declare an exchange. Raises ChannelError for other types, such as headers."""
        if type and type not in EXCHANGE_TYPES:
            raise ChannelError(f"no exchanges of type {type!r}: use {', '.join(EXCHANGE_TYPES)}")
        super().exchange_declare(exchange, type, **options)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.state.exchanges.pop(exchange, None)

    # --- publishing

    def basic_publish(
        self, message: Payload, exchange: str, routing_key: str, **options: Any
    ) -> None:
        """Store a message in each queue that it is routed to."""
        messages = self.routed(message, exchange, routing_key)
        if not self.confirm_publish:
            self._shared.unconfirmed.publish(messages)
            return
        for each in messages:
            self._shared.link.send(each)

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return what a block `with producer.batch():` publishes to."""
        return PublishBatch(self, self._shared.link.send_async, max_size)

    def _next_delivery_tag(self) -> str:
        """Return an empty tag: the channel that receives a message numbers it itself."""
        return ""

    def routed(self, message: Payload, exchange: str, routing_key: str) -> list[Message]:
        """Return the messages to store: one for each queue, and one for those that are read."""
        self._inplace_augment_message(message, exchange, routing_key)
        queues, is_read = self._routes(exchange, routing_key)
        messages: list[Message] = [self._queued(queue, message) for queue in queues]
        if is_read:
            topic = self._shared.link.place.exchange(exchange)
            messages.append(Message(topic, encode(message), tags=word_of(routing_key)))
        return messages

    def _routes(self, exchange: str, key: str) -> tuple[Iterable[str], bool]:
        """Return the queues of a message, and whether other queues read the exchange's topic."""
        shared = self._shared
        bindings = shared.bindings
        if not exchange:
            if key in shared.ttls_ms:
                return (key,), False
            return self._named(key)
        bindings.refresh(FRESH_S)
        queues, is_read = self._bound(exchange, key)
        if not queues and not is_read:
            known = self.state.exchanges.get(exchange) or {}
            if bindings.refresh(RETRIED_S if known.get("durable") else 0.0):
                queues, is_read = self._bound(exchange, key)
        if not queues and not is_read and self.deadletter_queue:
            self._new_queue(self.deadletter_queue)
            queues = {self.deadletter_queue}
        return queues, is_read

    def _named(self, queue: str) -> tuple[Iterable[str], bool]:
        """Return the queue of that name, or whether the queue lives with a connection."""
        shared = self._shared
        if queue in shared.read_queues:
            return (), True
        if shared.link.has_topic(shared.link.place.queue(queue), MISSING_S):
            return (queue,), False
        shared.bindings.refresh(FRESH_S)
        if not shared.bindings.find("").readers_ms:
            shared.bindings.refresh(0.0)
        is_read = bool(shared.bindings.find("").readers_ms)
        return (() if is_read else (queue,)), is_read

    def _bound(self, exchange: str, key: str) -> tuple[set[str], bool]:
        shared = self._shared
        found = shared.bindings.find(exchange)
        known = self.state.exchanges.get(exchange)
        kind = self.exchange_types[found.type if known is None else known["type"]]
        table = [] if known is None else list(known["table"])
        table += [
            kind.prepare_bind(queue, exchange, rkey, None) for queue, rkey in tuple(found.bound)
        ]
        queues = kind.lookup(table, exchange, key, None)
        return queues - shared.read_queues.keys(), bool(found.readers_ms)

    def _queued(self, queue: str, message: Payload) -> QueueMessage:
        topic = self._shared.link.place.queue(queue)
        return message_of(topic, message, time_ns() // 1_000_000)

    def _put(self, queue: str, message: Payload, **_: Any) -> None:
        self._shared.link.send(self._queued(queue, message))

    # --- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **_: Any
    ) -> None:
        def deliver(payload: Payload) -> None:
            message = self.Message(payload, channel=self)
            if not no_ack:
                self.qos.append(message, message.delivery_tag)
            callback(message)

        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._callbacks[queue] = deliver, no_ack
        reader = self._shared.read_queues.get(queue)
        if reader is None:
            self._fetcher(queue).resume()
            return
        self._begin(reader)
        reader.on_ready = lambda: self._take_read(reader)
        reader.taken = lambda: len(self._ready)
        self._take_read(reader)

    def _begin(self, reader: ReadQueue) -> None:
        """Read a queue; one without bindings gets what is sent to its name."""
        shared = self._shared
        if not reader.is_bound:
            reader.read_by_name(shared.link)
            shared.bindings.bind("", "direct", "", "")
        reader.start()

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        self._callbacks.pop(queue, None)
        reader = self._shared.read_queues.get(queue)
        if reader is not None:
            reader.stop()
        if queue in self._fetchers:
            self._fetchers[queue].pause()
        self._give_back(queue)

    def _give_back(self, queue: str) -> None:
        """Give back messages that came too late to be delivered."""
        with self._shared.changed:
            late = [each for each in self._ready if each[0] == queue]
            self._ready = deque(each for each in self._ready if each[0] != queue)
        tasks = [(payload, delivery) for _, payload, delivery in late if delivery is not None]
        if tasks:
            self._fetchers[queue].give_back(tasks)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return a message, or None."""
        delivery: Delivery | None = None
        reader = self._shared.read_queues.get(queue)
        if reader is not None:
            self._begin(reader)
            until_s = monotonic() + GET_WAIT_MS / 1000
            while not reader.ready and monotonic() < until_s:
                sleep(0.001)
            if not reader.ready:
                return None
            payload, _view = reader.ready.popleft()
        else:
            found = self._fetcher(queue).get(1, GET_WAIT_MS)
            if not found:
                return None
            payload, delivery = found[0]
        self._note(queue, payload, delivery, no_ack)
        message = self.Message(payload, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _fetcher(self, queue: str) -> Fetcher:
        found = self._fetchers.get(queue)
        if found is None:
            shared = self._shared
            if queue not in shared.ttls_ms:
                self._new_queue(queue)
            found = self._fetchers[queue] = Fetcher(
                queue,
                shared.link.consumer(queue, self.max_reconsume_times),
                changed=shared.changed,
                demand=shared.demand,
                room=self._room,
                is_alone=lambda: sum(each.is_active for each in tuple(self._fetchers.values())) < 2,
                taking=self._taking,
                settler=shared.settler,
                put=self._put,
                ready=self._take,
            )
        found.ttl_ms = self._shared.ttls_ms.get(queue)
        return found

    def _room(self) -> int:
        most = self.qos.can_consume_max_estimate()
        return (UNLIMITED_COUNT if most is None else most) - len(self._ready)

    def _take(self, queue: str, messages: list[tuple[Payload, Delivery]]) -> None:
        with self._shared.changed:  # the tasks' thread may be removing some
            self._ready.extend((queue, payload, delivery) for payload, delivery in messages)
        self._shared.wake()

    def _take_read(self, reader: ReadQueue) -> None:
        now_ms = time_ns() // 1_000_000
        with self._shared.changed:  # the tasks' thread and the I/O thread take messages
            while reader.ready:
                payload, view = reader.ready.popleft()
                if not is_expired(view, payload, reader.ttl_ms, now_ms):
                    self._ready.append((reader.name, payload, None))
        self._shared.wake()

    @property
    def has_ready(self) -> bool:
        """Whether `deliver` would deliver something."""
        return bool(self._ready) and self.qos.can_consume()

    def deliver(self, *, one_read: bool = False) -> int:
        """Call the callbacks of what has been received; return how many there were.

        `one_read`: stop after a message of a queue that lives with its connection. Remote control
        counts its replies by the drains of events.
        """
        delivered = 0
        while self._ready and self.qos.can_consume():
            queue, payload, delivery = self._ready.popleft()
            callback, no_ack = self._callbacks.get(queue, (None, False))
            if callback is not None:
                self._note(queue, payload, delivery, no_ack)
                delivered += 1
                callback(payload)
                if one_read and delivery is None:
                    break
            elif delivery is not None:
                self._fetchers[queue].give_back([(payload, delivery)])
        if delivered:
            self._shared.room_changed()
        return delivered

    def _note(self, queue: str, payload: Payload, delivery: Delivery | None, no_ack: bool) -> None:
        tag = payload["properties"]["delivery_tag"] = next(self._tags)
        if not no_ack:
            self._held[tag] = queue, delivery
        elif delivery is not None:
            self._shared.settler.ack([delivery])

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        self.connection.drain_events(self, timeout)

    # --- settling

    def settle(self, tag: int, *, is_dead: bool = False) -> None:
        """Acknowledge a message, or make it a dead letter; does nothing for a settled one."""
        _, delivery = self._held.pop(tag, (None, None))
        if delivery is not None and is_dead:
            self._shared.settler.dead_letter(delivery)
        elif delivery is not None:
            self._shared.settler.ack([delivery])
        self._shared.room_changed()
        if self._ready:
            self._shared.wake()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._shared.room_changed()

    def _restore(self, message: Any) -> None:
        """Store a message again at the end of its queue, then settle it."""
        tag = message.delivery_tag
        if tag not in self._held:
            return
        queue, delivery = self._held[tag]
        payload = message._raw
        mark_redelivered(payload)
        if delivery is None:
            self._ready.append((queue, payload, None))
            self._held.pop(tag, None)
            return
        self._put(queue, payload)
        self.settle(tag)

    # --- the rest

    def _size(self, queue: str) -> int:
        """Return the messages that are not settled."""
        reader = self._shared.read_queues.get(queue)
        if reader is not None:
            return len(reader.ready)
        link = self._shared.link
        name = link.place.queue(queue)
        with link.admin() as admin:
            return sum(
                max(0, end - max(first, admin.stored_offset(name, each) or 0))
                for each in admin.queues(name)
                for first, end in (admin.offsets(each),)
            )

    def _purge(self, queue: str) -> int:
        """Settle all messages that no consumer holds; return how many there were."""
        reader = self._shared.read_queues.get(queue)
        if reader is not None:
            purged = len(reader.ready)
            reader.ready.clear()
            return purged
        purged, consumer = 0, self._fetcher(queue).consumer
        while found := consumer.receive(wait_ms=GET_WAIT_MS):
            consumer.ack(found)
            purged += len(found)
        return purged

    def close(self) -> None:
        """Cancel all consumers, and give back what is not settled."""
        if self.closed:
            return
        super().close()
        for queue, fetcher in self._fetchers.items():
            self._give_back(queue)
            fetcher.end()
        if self._fetchers:
            self._shared.settler.flush()
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._held.clear()  # a later acknowledgement would start the settling thread again
