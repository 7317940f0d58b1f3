"""Producer: sends messages, one by one or in batches, and says what became of them."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition
from time import monotonic

from protocol.batch import BatchMessage, encode_batch
from protocol.command import RemotingCommand
from protocol.compression import COMPRESS_ABOVE_BYTES
from protocol.properties import WAIT
from protocol.properties import format as format_properties
from troupemq.client.client import next_message_id
from troupemq.client.errors import ClientBusy, MessageIllegal
from troupemq.client.lifecycle import ClientMember
from troupemq.client.message import Message, MessageQueue, SendResult, ids_joined
from troupemq.client.queue_choice import QueueChoice, RoundRobin, away_from
from troupemq.client.sending import Parcel, Sending

IN_FLIGHT_MAX = 10_000
"""Sends under way; the next caller waits, within its timeout, until one is done."""


@dataclass(frozen=True)
class ProducerSettings:
    """What a producer does by itself; the defaults are the Java client's."""

    send_timeout_ms: int = 3000
    """For a send as a whole, all its tries."""

    try_timeout_ms: int | None = None
    """For one try; None gives the first one all the time there is."""

    retries: int = 2
    """Further tries, on another broker where there is one, after a failure that may pass."""

    max_message_bytes: int = 4 << 20
    compress_above_bytes: int = COMPRESS_ABOVE_BYTES
    """Longer bodies of single messages are compressed (zlib)."""


class Producer(ClientMember):
    """Sends messages; for any number of threads. Start it, or use it in a `with` block.

        with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = producer.send(Message("Orders", b"...", tags="new", keys="4711"))

    Sends raise ClientError: BrokerError with the broker's code and remark, RequestTimeout,
    ConnectionFailed, RouteNotFound, MessageIllegal, ClientBusy, ClientClosed. After a timeout or a
    lost connection the message may be stored all the same, and with retries twice.
    `stop` waits for the sends under way.
    """

    kind = "producer"
    stop_timeout_s = 5.0

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        settings: ProducerSettings | None = None,
        choose: QueueChoice | None = None,
        instance_name: str | None = None,
    ) -> None:
        """`namesrv`: "host:port;host:port", else NAMESRV_ADDR, else 127.0.0.1:9876.

        `choose` picks the queue of each message: by default one after the other.
        """
        super().__init__(namesrv, instance_name)
        self.group = group
        self.settings = settings or ProducerSettings()
        self._choose: QueueChoice = choose or RoundRobin()
        self._client.producer_groups.append(group)
        self._in_flight = 0
        self._changed = Condition()

    def _finish(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight == 0, timeout_s)

    # --- sending

    def send(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> SendResult:
        """Sends and waits until it is stored. With `queue` or `choose` there is one try only."""
        return self.send_async(message, timeout_ms, queue=queue, choose=choose).result()

    def send_async(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> Future[SendResult]:
        """Sends; the future gets the result, and runs its callbacks on the I/O thread.

        Blocks for the first route of a topic, and while too many sends are under way.
        """
        parcel = self._parcel(message)
        if queue is not None:
            choose = _always(queue)
        return self._send(parcel, message, timeout_ms, choose)

    def send_batch(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Stores all of them, next to each other in one queue, or none.

        They have one topic, no delay, and together at most `max_message_bytes`.
        """
        return self.send_batch_async(messages, timeout_ms, queue=queue).result()

    def send_batch_async(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> Future[SendResult]:
        """`send_batch` with a future."""
        parcel = self._batch_parcel(messages)
        choose = _always(queue) if queue is not None else None
        return self._send(parcel, messages[0], timeout_ms, choose)

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> str:
        """Sends and never hears of it: it may be lost without a word. Returns the message's id."""
        self.check_running()
        parcel = self._parcel(message)
        queues = self._client.routes.publish_route(message.topic).publish_queues
        chosen = queue or self._choose(queues, message)
        address = self._client.routes.master(chosen.broker_name)
        self._client.remoting.oneway(address, parcel.command(chosen, self.group))
        return parcel.message_id

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of `topic`. Raises RouteNotFound."""
        self.check_running()
        return self._client.routes.publish_route(topic).publish_queues

    # --- within

    def _send(
        self,
        parcel: Parcel,
        message: Message,
        timeout_ms: float | None,
        choose: QueueChoice | None,
    ) -> Future[SendResult]:
        self.check_running()
        if timeout_ms is None:
            timeout_ms = self.settings.send_timeout_ms
        deadline_s = monotonic() + timeout_ms / 1000
        routes = self._client.routes
        queues = routes.publish_route(parcel.topic).publish_queues
        if choose is None:
            tries = 1 + self.settings.retries
            pick = self._choose
        else:
            tries, pick = 1, choose
        self._enter(deadline_s)
        result: Future[SendResult] = Future()
        result.set_running_or_notify_cancel()
        result.add_done_callback(self._leave)
        Sending(
            parcel,
            self.group,
            lambda tried: pick(away_from(tried, queues) if tried else queues, message),
            self._post,
            tries,
            deadline_s,
            self.settings.try_timeout_ms,
            result,
        ).next_try()
        return result

    def _post(
        self, queue: MessageQueue, command: RemotingCommand, timeout_ms: float
    ) -> Future[RemotingCommand]:
        address = self._client.routes.master(queue.broker_name)
        return self._client.remoting.call_async(address, command, timeout_ms)

    def _parcel(self, message: Message) -> Parcel:
        self._check_size(len(message.body), "a body")
        message_id = next_message_id(self._client.ip)
        text = message.wire_properties(message_id).decode()
        parcel = Parcel(message.topic, message.body, text, message_id, message.flag)
        if len(message.body) > self.settings.compress_above_bytes:
            return parcel.compressed()
        return parcel

    def _batch_parcel(self, messages: Sequence[Message]) -> Parcel:
        if not messages:
            raise MessageIllegal("a batch holds at least one message")
        first = messages[0]
        if any(message.topic != first.topic for message in messages):
            raise MessageIllegal("the messages of a batch have one topic")
        if any(message.wait_store_ok != first.wait_store_ok for message in messages):
            raise MessageIllegal("the messages of a batch wait to be stored, or none does")
        if any(message.delay_level for message in messages):
            raise MessageIllegal("the messages of a batch cannot be delayed")
        ids = [next_message_id(self._client.ip) for _ in messages]
        body = encode_batch(
            BatchMessage(message.body, message.wire_properties(message_id), message.flag)
            for message, message_id in zip(messages, ids, strict=True)
        )
        self._check_size(len(body), "a batch")
        shared = format_properties({WAIT: "true" if first.wait_store_ok else "false"})
        return Parcel(first.topic, body, shared.decode(), ids_joined(ids), is_batch=True)

    def _check_size(self, size_bytes: int, what: str) -> None:
        if size_bytes > self.settings.max_message_bytes:
            limit = self.settings.max_message_bytes
            raise MessageIllegal(f"{what} of {size_bytes} bytes; at most {limit}")

    def _enter(self, deadline_s: float) -> None:
        """Waits for its turn; on the I/O thread, which makes the turns, it does not."""
        with self._changed:
            if self._in_flight >= IN_FLIGHT_MAX:
                on_io_thread = self._client.remoting.runs_on_this_thread()
                left_s = 0.0 if on_io_thread else max(0.0, deadline_s - monotonic())
                if not self._changed.wait_for(lambda: self._in_flight < IN_FLIGHT_MAX, left_s):
                    raise ClientBusy(f"{IN_FLIGHT_MAX} sends are under way already")
            self._in_flight += 1

    def _leave(self, _: Future[SendResult]) -> None:
        with self._changed:
            self._in_flight -= 1
            if self._in_flight in (0, IN_FLIGHT_MAX - 1):
                self._changed.notify_all()


def _always(queue: MessageQueue) -> QueueChoice:
    """The choice that is none."""
    return lambda queues, message: queue
