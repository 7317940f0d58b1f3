"""Producer: sends messages, one by one or in batches, and says what became of them."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from time import monotonic

from protocol.compression import COMPRESS_OVER_BYTES
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import (
    MS_MAX,
    check_instance,
    check_range,
    check_ranges,
)
from troupemq.client.connection.client import next_message_id
from troupemq.client.connection.lifecycle import ClientMember, seconds_to
from troupemq.client.errors import ClientClosed, ClientError, MessageIllegal
from troupemq.client.message import (
    Message,
    MessageQueue,
    MessageView,
    SendResult,
    check_sendable,
)
from troupemq.client.producing.batches import MESSAGE_BYTES_MAX, batch_parcel, split_batch
from troupemq.client.producing.in_flight import InFlight
from troupemq.client.producing.queue_choice import (
    QueueChoice,
    RoundRobin,
    always,
    check_choice,
)
from troupemq.client.producing.request_reply import Requests, request_of
from troupemq.client.producing.sending import (
    RETRIED_CODES,
    Carrier,
    Parcel,
    Sending,
    chosen,
    parcel_of,
)
from troupemq.client.producing.trace import Tracing
from troupemq.client.spans import spans_of

_RANGES = {
    "send_timeout_ms": (1, MS_MAX),
    "retries": (0, MS_MAX),
    "max_message_bytes": (1, (1 << 31) - 1),
    "compress_over_bytes": (0, (1 << 31) - 1),
    "in_flight_max": (1, (1 << 31) - 1),
    "in_flight_bytes_max": (1, 1 << 40),
}


@dataclass(frozen=True)
class ProducerSettings:
    """What a producer does by itself; the defaults are the Java client's where it has them."""

    send_timeout_ms: int = 3000
    """For a send as a whole, all its tries."""

    try_timeout_ms: int | None = None
    """For one try; None gives the first one all the time there is."""

    retries: int = 2
    """Further tries, on another broker where there is one, after a failure that may pass."""

    retried_codes: frozenset[int] = RETRIED_CODES
    """The response codes that may pass; a lost connection and a timeout may always."""

    retry_another_broker_when_not_ok: bool = False
    """Whether a message that is stored, but not as safely as the broker's settings ask, is sent to
    another broker too; the first one keeps it as well."""

    max_message_bytes: int = MESSAGE_BYTES_MAX
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    """Bodies of single messages that are so long or longer are compressed (zlib)."""

    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 32 << 20
    """Sends under way, and their bytes: the next caller waits, within its timeout, for room."""

    trace: bool = False
    """Whether a line about each send goes to RMQ_SYS_TRACE_TOPIC."""

    def __post_init__(self) -> None:
        """Raises ArgumentIllegal for a number that makes no sense."""
        check_ranges(self, _RANGES)
        if self.try_timeout_ms is not None:
            check_range(self.try_timeout_ms, 1, MS_MAX, "try_timeout_ms")


class Producer(ClientMember):
    """Sends messages; for any number of threads. Start it, or use it in a `with` block.

        with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = producer.send(Message("Orders", b"...", tags="new", keys="4711"))

    Sends raise ClientError: BrokerError with the broker's code and remark, RequestTimeout,
    ConnectionFailed, RouteNotFound, MessageIllegal, ClientBusy, ClientClosed. After a timeout or a
    lost connection the message may be stored all the same, and with retries twice.

    The futures are `concurrent.futures.Future`; in a coroutine, `await asyncio.wrap_future(...)`.
    Their callbacks run on the I/O thread: they may send asynchronously, but must not wait.
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
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`namesrv`: "host:port;host:port", else NAMESRV_ADDR, else 127.0.0.1:9876.

        `choose` picks the queue of each message: by default one after the other. `credentials`
        are for servers with access control; else TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY. `tls`
        is how servers are called with TLS; else as TROUPEMQ_TLS and those beside it say.
        """
        settings = settings or ProducerSettings()
        check_instance(settings, ProducerSettings, "settings are ProducerSettings")
        choose = choose or RoundRobin()
        check_choice(choose)
        super().__init__(group, namesrv, instance_name, credentials=credentials, tls=tls)
        self.settings = settings
        self._choose: QueueChoice = choose
        self._client.producer_groups.append(group)
        self._carrier = Carrier(self._client, group)
        self._without_route: set[Sending] = set()
        remoting = self._client.remoting
        self._in_flight = InFlight(
            self.settings.in_flight_max,
            self.settings.in_flight_bytes_max,
            lambda: not remoting.runs_on_this_thread(),
        )
        self._requests = Requests(self._client)
        self._spans = spans_of(self.client_id, self._client.routes.known_master)
        self._tracing: Tracing | None = None
        if self.settings.trace:
            self._tracing = Tracing(self._client, group, self._send_trace)

    def _begin(self) -> None:
        if self._tracing is not None:
            self._tracing.start()

    def _finish(self, deadline_s: float) -> None:
        while True:
            if self._without_route:  # those before the mark are under way when it comes
                mark = Event()
                self._client.housekeeping.post(mark.set)
                mark.wait(seconds_to(deadline_s))
            self._in_flight.wait_empty(seconds_to(deadline_s))
            if not self._without_route or not seconds_to(deadline_s):
                break  # else there are traces of what has just ended
        self._client.housekeeping.stop(seconds_to(deadline_s))
        while self._without_route:
            self._without_route.pop().result.set_exception(ClientClosed("the client is stopped"))
        if self._tracing is not None:
            self._tracing.send_rest()
            self._in_flight.wait_empty(seconds_to(deadline_s))
        self._requests.close()

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
        self._client.remoting.check_may_wait()
        return self.send_async(message, timeout_ms, queue=queue, choose=choose).result()

    def send_async(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> Future[SendResult]:
        """Sends; the future gets the result.

        Blocks for the first route of a topic, and while too much is under way; it does neither when
        called back by another future.
        """
        self.check_running()

        def send(carrying: Message) -> Future[SendResult]:
            return self._send(self._parcel(carrying), carrying, timeout_ms, queue, choose)

        return send(message) if self._spans is None else self._spans.around(message, send)

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
        self._client.remoting.check_may_wait()
        return self.send_batch_async(messages, timeout_ms, queue=queue).result()

    def send_batch_async(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> Future[SendResult]:
        """`send_batch` with a future."""
        self.check_running()

        def send(carrying: Sequence[Message]) -> Future[SendResult]:
            parcel = batch_parcel(carrying, self._next_id)
            check_sendable(parcel.topic)
            self._check_size(parcel.body)
            return self._send(parcel, carrying[0], timeout_ms, queue, None)

        return send(messages) if self._spans is None else self._spans.around_batch(messages, send)

    def send_batches(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        """Any number of messages of one topic, in as few batches as take them, one after the other.

        `timeout_ms` is for each batch. Where one fails, those before it are stored, and a note on
        the error says how many messages they hold.
        """
        results: list[SendResult] = []
        stored = 0
        for batch in split_batch(messages, self.settings.max_message_bytes):
            try:
                results.append(self.send_batch(batch, timeout_ms, queue=queue))
            except ClientError as error:
                error.add_note(f"the first {stored} of {len(messages)} messages are stored")
                raise
            stored += len(batch)
        return results

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> str:
        """Sends and never hears of it: it may be lost without a word. Returns the message's id."""
        self.check_running()

        def send(carrying: Message) -> str:
            parcel = self._parcel(carrying)
            queues = self._client.routes.publish_route(carrying.topic).publish_queues
            chooses = always(queue) if queue is not None else choose or self._choose
            self._carrier.post_oneway(chosen(chooses, queues, carrying), parcel)
            return parcel.message_id

        return send(message) if self._spans is None else self._spans.around_oneway(message, send)

    # --- asking

    def request(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> MessageView:
        """Sends a message and waits for the reply that its consumer makes of it.

        Raises ClientError: RequestTimeout also where the message was stored and nobody replied.
        """
        self._client.remoting.check_may_wait()
        return self.request_async(message, timeout_ms, queue=queue, choose=choose).result()

    def request_async(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> Future[MessageView]:
        """`request` with a future. Blocks for the first route of a topic."""
        self.check_running()
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        request = request_of(message, self.client_id, timeout_ms)
        self._requests.meet_brokers(message.topic)
        reply = self._requests.expect(request, timeout_ms)
        try:
            sent = self.send_async(request, timeout_ms, queue=queue, choose=choose)
        except BaseException:
            self._requests.forget(request)
            raise
        sent.add_done_callback(lambda done: self._requests.sent(request, done))
        return reply

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
        queue: MessageQueue | None,
        choose: QueueChoice | None,
    ) -> Future[SendResult]:
        settings = self.settings
        if timeout_ms is None:
            timeout_ms = settings.send_timeout_ms
        if queue is not None:
            choose = always(queue)
        result: Future[SendResult] = Future()
        result.set_running_or_notify_cancel()
        sending = Sending(
            self._carrier,
            parcel,
            message,
            choose or self._choose,
            1 + settings.retries if choose is None else 1,
            monotonic() + timeout_ms / 1000,
            settings.try_timeout_ms,
            settings.retried_codes,
            settings.retry_another_broker_when_not_ok,
            result,
        )
        if self._carrier.queues_of(parcel.topic):
            self._begin_sending(sending)
        elif self._client.remoting.runs_on_this_thread():  # which brings the routes
            self._without_route.add(sending)
            self._client.housekeeping.post(lambda: self._look_up_and_send(sending))
        else:
            self._client.routes.publish_route(parcel.topic)
            self._begin_sending(sending)
        return result

    def _send_trace(self, message: Message) -> Future[SendResult]:
        """Also while the producer stops."""
        return self._send(self._parcel(message), message, None, None, None)

    def _look_up_and_send(self, sending: Sending) -> None:
        if sending not in self._without_route:
            return
        self._without_route.discard(sending)
        try:
            self._client.routes.publish_route(sending.parcel.topic)
            self._begin_sending(sending)
        except ClientError as error:
            sending.result.set_exception(error)

    def _begin_sending(self, sending: Sending) -> None:
        size = sending.parcel.size_bytes
        self._in_flight.enter(size, sending.deadline_s)
        if self._tracing is not None:
            self._tracing.watch(sending)  # first: a stop waits for the last to leave
        sending.result.add_done_callback(lambda done: self._in_flight.leave(size))
        sending.next_try()

    def _parcel(self, message: Message) -> Parcel:
        check_instance(message, Message, "what is sent is a Message")
        check_sendable(message.topic)
        self._check_size(message.body)
        return parcel_of(message, self._next_id(), self.settings.compress_over_bytes)

    def _next_id(self) -> str:
        return next_message_id(self._client.ip)

    def _check_size(self, body: bytes) -> None:
        limit = self.settings.max_message_bytes
        if len(body) > limit:
            raise MessageIllegal(f"the message body size over max value, MAX: {limit}")
