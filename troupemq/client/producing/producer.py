"""Producer: sends single messages, batches and requests."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import (
    check_flag,
    check_instance,
    check_timeout,
    names_checked,
)
from troupemq.client.callbacks import ResultFuture, runs_event_loop
from troupemq.client.connection.client import next_message_id
from troupemq.client.connection.lifecycle import ClientMember, Work, seconds_to
from troupemq.client.errors import ClientBusy, ClientError
from troupemq.client.message import (
    Message,
    MessageQueue,
    MessageView,
    SendResult,
    check_sendable,
    check_topic,
)
from troupemq.client.producing.making import LONG_BODY_BYTES, SendMaker
from troupemq.client.producing.queue_choice import (
    QueueChoice,
    RoundRobin,
    always,
    check_choice,
)
from troupemq.client.producing.request_reply import Requests, request_of
from troupemq.client.producing.sending import (
    EncodedMessage,
    Lanes,
    Sender,
    chosen,
)
from troupemq.client.settings import ProducerSettings
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from troupemq.client.producing.trace import Tracing


class InFlight:
    """Quota of in-flight sends; for any thread. A single send may have any size."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._changed = Condition()
        self._waiting = 0
        self.count = 0
        self.bytes = 0

    def enter(
        self, size_bytes: int, deadline_s: float, may_wait: Callable[[], bool] = lambda: True
    ) -> None:
        """Take a slot; if `may_wait()`, wait until `deadline_s` (monotonic). Raises ClientBusy."""
        with self._changed:
            if not self._has_room(size_bytes):
                self._wait(size_bytes, deadline_s if may_wait() else 0.0)
            self.count += 1
            self.bytes += size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        if self.count == 0:
            return True
        return self.count < self._count_max and self.bytes + size_bytes <= self._bytes_max

    def _wait(self, size_bytes: int, deadline_s: float) -> None:
        left_s = max(0.0, deadline_s - monotonic())
        self._waiting += 1
        try:
            has_room = self._changed.wait_for(lambda: self._has_room(size_bytes), left_s)
        finally:
            self._waiting -= 1
        if not has_room:
            raise ClientBusy(
                f"{self.count} sends of {self.bytes} bytes are in flight already:"
                " wait for some of their futures first"
            )

    def leave(self, size_bytes: int) -> None:
        with self._changed:
            self.count -= 1
            self.bytes -= size_bytes
            if self._waiting:
                self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no send is in flight; return False on timeout."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.count == 0, timeout_s)
            finally:
                self._waiting -= 1


@partial(names_checked, settings=ProducerSettings)
class Producer(SendMaker, ClientMember):
    """Sends messages; for any thread. Call `start` and `stop`, or use it in a `with` block.

        with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = producer.send(Message("Orders", b"...", tags="new", keys="4711"))

    Sends raise ClientError: BrokerError with the broker's code and remark, RequestTimeout,
    ConnectionFailed, RouteNotFound, MessageIllegal, ClientBusy, ClientClosed. After a timeout or a
    lost connection the broker may have stored the message, and with retries twice. Asynchronous
    sends raise only for invalid arguments and when the producer does not run; all other errors
    are set on their futures.

    The futures are `concurrent.futures.Future`; in a coroutine, `await asyncio.wrap_future(...)`.
    Their callbacks run on the I/O thread. They may send asynchronously, but must not block.
    `stop` waits for in-flight sends, as does the end of a process whose producer still runs.
    """

    kind = "producer"
    stop_timeout_s = 5.0
    finishes_at_exit = True

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
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address.

        * `namesrv`: "host:port;host:port". [default: NAMESRV_ADDR, else 127.0.0.1:9876]
        * `choose`: returns the queue of each message. [default: round robin]
        * `credentials`: account for servers with access control. [default: TROUPEMQ_ACCESS_KEY and
          TROUPEMQ_SECRET_KEY]
        * `tls`: TLS options for servers. [default: TROUPEMQ_TLS and its related variables]
        """
        settings = settings or ProducerSettings()
        check_instance(settings, ProducerSettings, "settings are ProducerSettings")
        choose = choose or RoundRobin()
        check_choice(choose)
        super().__init__(group, namesrv, instance_name, credentials=credentials, tls=tls)
        self.settings = settings
        self._choose: QueueChoice = choose
        self._client.producer_groups.append(group)
        self._carrier = Sender(self._client, group)
        self._lanes = Lanes(self._client)
        self._in_flight = InFlight(settings.in_flight_max, settings.in_flight_bytes_max)
        self._requests = Requests(self._client)
        self._spans = spans_of(self.client_id, self._client.routes.known_master)
        self._tracing = self._new_tracing() if settings.trace else None

    def _new_tracing(self) -> "Tracing":
        from troupemq.client.producing.trace import Tracing

        return Tracing(self._client, self.group, self._send_trace)

    def _begin(self) -> None:
        if self._tracing is not None:
            self._tracing.start()

    def _work(self) -> Work:
        return {"sends": lambda: self._in_flight.count}

    def _finish(self, deadline_s: float) -> None:
        self._in_flight.wait_empty(seconds_to(deadline_s))
        self._client.housekeeping.stop(seconds_to(deadline_s))
        if self._tracing is not None:
            self._tracing.send_rest()
            self._in_flight.wait_empty(seconds_to(deadline_s))
        self._lanes.close()
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
        """Send a message and return when it is stored. With `queue` or `choose`, do not retry."""
        self._client.remoting.check_may_wait()
        return self.send_async(
            message, timeout_ms, queue=queue, choose=choose, wait_for_room=True
        ).result()

    def send_async(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
        wait_for_room: bool | None = None,
    ) -> Future[SendResult]:
        """Send a message and return a future of the result.

            producer.send_async(message).add_done_callback(lambda done: print(done.result()))

        In an event loop and in a callback this never blocks. Other threads look up routes and
        compress bodies of 64 KiB or more. Over `in_flight_max` or `in_flight_bytes_max` the future
        fails with ClientBusy. On any other thread it compresses bodies itself and waits for room
        within its timeout. `wait_for_room` overrides this choice.
        """
        self.check_running()
        may_wait = self._may_wait(wait_for_room)

        def send(carrying: Message) -> Future[SendResult]:
            parcel = self._parcel(carrying)
            compresses = len(parcel.body) >= self.settings.compress_over_bytes
            if compresses and (len(parcel.body) < LONG_BODY_BYTES or may_wait()):
                parcel, compresses = parcel.compressed(), False
            return self._send(parcel, carrying, timeout_ms, queue, choose, compresses, may_wait)

        return send(message) if self._spans is None else self._spans.around(message, send)

    def send_batch(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Store all messages in consecutive offsets of one queue, or none of them.

        The messages have one topic, no delay, and together at most `max_message_bytes`.
        """
        self._client.remoting.check_may_wait()
        return self.send_batch_async(messages, timeout_ms, queue=queue, wait_for_room=True).result()

    def send_batch_async(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        wait_for_room: bool | None = None,
    ) -> Future[SendResult]:
        """Send a batch and return a future; encode on this thread, else block as `send_async`."""
        from troupemq.client.producing.batches import batch_parcel, check_messages

        self.check_running()
        messages = check_messages(messages)

        def send(carrying: Sequence[Message]) -> Future[SendResult]:
            parcel = batch_parcel(carrying, self._next_id)
            check_sendable(parcel.topic)
            self._check_size(parcel.body)
            may_wait = self._may_wait(wait_for_room)
            return self._send(parcel, carrying[0], timeout_ms, queue, None, False, may_wait)

        return send(messages) if self._spans is None else self._spans.around_batch(messages, send)

    def send_batches(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        """Send any number of messages of one topic in as few batches as possible, one by one.

        `timeout_ms` is for each batch. If a batch fails, the earlier batches are stored, and a
        note on the error says how many messages they hold.
        """
        from troupemq.client.producing.batches import check_messages, split_batch

        messages = check_messages(messages)
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
        """Send a message without an answer and return its id; a loss is not reported.

        Blocks while it looks up the first route of a topic; use `send_async` in a coroutine.
        """
        self.check_running()

        def send(carrying: Message) -> str:
            parcel = self._compressed_parcel(carrying)
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
        """Send a message and return its consumer's reply.

            reply = producer.request(Message("Prices", b"4711"), timeout_ms=5000)

        Raises ClientError: RequestTimeout also if the message was stored and no reply arrived.
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
        """Send a request and return a future of its reply; block as `send_async`."""
        self.check_running()
        check_timeout(timeout_ms)
        self._check_message(message)
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        request = request_of(message, self.client_id, timeout_ms)
        return self._requests.ask(
            request,
            timeout_ms,
            lambda: self.send_async(request, timeout_ms, queue=queue, choose=choose),
            self._lanes.run,
        )

    def recall(self, topic: str, handle: str | None, timeout_ms: float | None = None) -> str:
        """Cancel a delivery by `delay` or `deliver_at` that is not due yet; return its message id.

            result = producer.send(Message("Reminders", b"pay", delay=3600))
            producer.recall("Reminders", result.recall_handle)

        Raises ClientError: BrokerError if the message is delivered or recalled already, and
        NotSupported for a broker that cannot recall.
        """
        from troupemq.client.producing.recalling import recall_request, recalled

        self.check_running()
        check_timeout(timeout_ms)
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        name, command = recall_request(self.group, topic, handle)
        self._client.routes.get(topic)
        address = self._client.routes.master(name)
        return recalled(self._client.remoting.call(address, command, timeout_ms), name, address)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of `topic`. Raises RouteNotFound."""
        self.check_running()
        check_topic(topic)
        return self._client.routes.publish_route(topic).publish_queues

    # --- within

    def _send(
        self,
        parcel: EncodedMessage,
        message: Message,
        timeout_ms: float | None,
        queue: MessageQueue | None,
        choose: QueueChoice | None,
        compresses: bool,
        may_wait: Callable[[], bool],
    ) -> Future[SendResult]:
        result: Future[SendResult] = ResultFuture()
        result.set_running_or_notify_cancel()
        sending = self._sending(
            self._carrier, parcel, message, timeout_ms, queue, choose, result, compresses=compresses
        )
        size = parcel.size_bytes
        try:
            self._in_flight.enter(size, sending.deadline_s, may_wait)
        except ClientBusy as error:
            result.set_exception(error)
            return result
        if self._tracing is not None:
            self._tracing.watch(sending)  # before `leave`, which lets `stop` go on
        Future.add_done_callback(result, lambda done: self._in_flight.leave(size))
        self._lanes.submit(sending)
        return result

    def _send_trace(self, message: Message) -> Future[SendResult]:
        """Send a message of traces, even while the producer stops."""
        parcel = self._compressed_parcel(message)
        return self._send(parcel, message, None, None, None, False, lambda: False)

    def _may_wait(self, wanted: bool | None) -> Callable[[], bool]:
        """Return a function that returns whether the calling thread may block."""
        if wanted is not None:
            check_flag(wanted, "wait_for_room")
            return lambda: wanted and not self._client.remoting.runs_on_this_thread()
        return lambda: not (self._client.remoting.runs_on_this_thread() or runs_event_loop())

    def _next_id(self) -> str:
        return next_message_id(self._client.ip)
