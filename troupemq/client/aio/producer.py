"""Producer for an event loop: sends single messages, batches and requests."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.aio.lifecycle import AioMember
from troupemq.client.aio.remoting import Pending
from troupemq.client.arguments import check_instance, check_timeout, names_checked
from troupemq.client.connection.client import next_message_id
from troupemq.client.connection.lifecycle import Work
from troupemq.client.errors import ClientBusy, ClientClosed, ClientError, RequestTimeout
from troupemq.client.message import (
    Message,
    MessageQueue,
    MessageView,
    SendResult,
    check_sendable,
    check_topic,
)
from troupemq.client.producing.batches import batch_parcel, check_messages, split_batch
from troupemq.client.producing.making import LONG_BODY_BYTES, SendMaker
from troupemq.client.producing.queue_choice import QueueChoice, RoundRobin, check_choice
from troupemq.client.producing.recalling import recall_request, recalled
from troupemq.client.producing.request_reply import ReplyTable, request_of
from troupemq.client.producing.sending import EncodedMessage, OnewaySending, Sender, Sending
from troupemq.client.producing.trace import Tracing
from troupemq.client.settings import ProducerSettings
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans


class Slots:
    """Quota of in-flight sends of one event loop. A single send may have any size."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty: list[asyncio.Future[None]] = []
        self.count = 0
        self.bytes = 0

    def try_enter(self, size_bytes: int) -> bool:
        """Take a free slot, unless other sends wait for one; return whether it was taken."""
        if self._waiting or not self._has_room(size_bytes):
            return False
        self.count += 1
        self.bytes += size_bytes
        return True

    async def enter(self, size_bytes: int) -> None:
        """Take a slot as soon as there is one, in the order of the calls."""
        if self.try_enter(size_bytes):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)  # the slot was given at the same time
            else:
                self._let_in()  # smaller sends may have waited behind it
            raise

    def leave(self, size_bytes: int) -> None:
        self.count -= 1
        self.bytes -= size_bytes
        self._let_in()
        if self.count == 0:
            for empty in self._empty:
                if not empty.done():
                    empty.set_result(None)

    def _let_in(self) -> None:
        """Give free slots to the sends that wait, in order; pass over cancelled ones."""
        waiting = self._waiting
        while waiting and (waiting[0][0].done() or self._has_room(waiting[0][1])):
            turn, size = waiting.popleft()
            if not turn.done():
                self.count += 1
                self.bytes += size
                turn.set_result(None)

    def _has_room(self, size_bytes: int) -> bool:
        if self.count == 0:
            return True
        return self.count < self._count_max and self.bytes + size_bytes <= self._bytes_max

    async def wait_empty(self, timeout_s: float) -> None:
        """Wait until no send is in flight, at most for `timeout_s`."""
        if self.count:
            empty = asyncio.get_running_loop().create_future()
            self._empty.append(empty)
            try:
                await asyncio.wait((empty,), timeout=max(0.0, timeout_s))
            finally:
                self._empty.remove(empty)


class _Lane:
    """Sends of one topic that wait for a route, a compression or a slot, in order."""

    def __init__(self) -> None:
        self.turns = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()


class SendFuture(Pending[SendResult]):
    """Result of a send; calls `on_end` once when it is done or cancelled."""

    on_end: Callable[[], object] | None = None

    def _end(self) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def set_result(self, result: SendResult, /) -> None:
        super().set_result(result)
        self._end()

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        self._end()

    def cancel(self, msg: object | None = None) -> bool:
        cancelled = super().cancel(msg)
        self._end()
        return cancelled


@partial(names_checked, settings=ProducerSettings)
class Producer(SendMaker, AioMember):
    """Sends messages from coroutines of one event loop. Use it in an `async with` block.

        async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"...", tags="new", keys="4711"))

    No call blocks the loop. Errors and settings are those of `troupemq.Producer`. At the limits of
    sends in flight, `send` waits for a slot. Sends to one queue leave in the order of their calls;
    a retry may reorder them.

    A send that is cancelled frees its slot. Before its request is written nothing is sent; later
    the message may be stored. `stop` waits for sends in flight.
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
        """Take the arguments of `troupemq.Producer`, with the same errors; do no I/O."""
        settings = settings or ProducerSettings()
        check_instance(settings, ProducerSettings, "settings are ProducerSettings")
        choose = choose or RoundRobin()
        check_choice(choose)
        super().__init__(group, namesrv, instance_name, credentials, tls)
        self.settings = settings
        self._choose: QueueChoice = choose
        self._client.producer_groups.append(group)
        self._carrier = Sender(self._client, group)
        self._slots = Slots(settings.in_flight_max, settings.in_flight_bytes_max)
        self._lanes: dict[str, _Lane] = {}
        """Sends by topic that have not started: later ones of the topic wait behind them."""
        self._replies = ReplyTable(self._client)
        self._spans: ClientSpans | None = None
        self._tracing: Tracing | None = None

    async def _prepare(self) -> None:
        self._spans = spans_of(self.client_id, self._client.routes.known_master)
        if self.settings.trace:
            self._tracing = Tracing(self._client, self.group, self._send_trace)

    def _begin(self) -> None:
        if self._tracing is not None:
            self._tracing.start()

    def _work(self) -> Work:
        return {"sends": self._open_sends}

    def _open_sends(self) -> int:
        return self._slots.count + sum(len(lane.tasks) for lane in self._lanes.values())

    async def _finish(self, deadline_s: float) -> None:
        try:
            await self._finish_sends(deadline_s)
        finally:
            self._replies.close()

    async def _finish_sends(self, deadline_s: float) -> None:
        await self._wait_for_sends(deadline_s)
        if self._tracing is not None:
            self._tracing.send_rest()
            await self._wait_for_sends(deadline_s)

    async def _wait_for_sends(self, deadline_s: float) -> None:
        """Wait until no send is open, also none that has no route yet."""
        loop = asyncio.get_running_loop()
        while self._open_sends() and (left_s := deadline_s - loop.time()) > 0:
            starting = [task for lane in self._lanes.values() for task in lane.tasks]
            if starting:
                await asyncio.wait(starting, timeout=left_s)
            await self._slots.wait_empty(deadline_s - loop.time())

    def _next_id(self) -> str:
        return next_message_id(self._client.ip)

    # --- sending

    async def send(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> SendResult:
        """Send a message and return when it is stored. With `queue` or `choose`, do not retry."""
        return await self._send_message(message, timeout_ms, queue, choose)

    def _send_message(
        self,
        message: Message,
        timeout_ms: float | None,
        queue: MessageQueue | None,
        choose: QueueChoice | None,
        kind: type[Sending] = Sending,
    ) -> SendFuture:
        self.check_running()

        def send(carrying: Message) -> SendFuture:
            parcel = self._parcel(carrying)
            compresses = len(parcel.body) >= self.settings.compress_over_bytes
            if compresses and len(parcel.body) < LONG_BODY_BYTES:
                parcel, compresses = parcel.compressed(), False
            return self._send(
                parcel, carrying, timeout_ms, queue, choose, compresses=compresses, kind=kind
            )

        if self._spans is None:
            return send(message)
        return self._spans.around(message, send)

    async def send_batch(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Store all messages in consecutive offsets of one queue, or none of them."""
        self.check_running()
        messages = check_messages(messages)

        def send(carrying: Sequence[Message]) -> SendFuture:
            parcel = batch_parcel(carrying, self._next_id)
            check_sendable(parcel.topic)
            self._check_size(parcel.body)
            return self._send(parcel, carrying[0], timeout_ms, queue, None, compresses=False)

        if self._spans is None:
            return await send(messages)
        return await self._spans.around_batch(messages, send)

    async def send_batches(
        self,
        messages: Sequence[Message],
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        """Send any number of messages in batches, as `troupemq.Producer.send_batches`."""
        messages = check_messages(messages)
        results: list[SendResult] = []
        stored = 0
        for batch in split_batch(messages, self.settings.max_message_bytes):
            try:
                results.append(await self.send_batch(batch, timeout_ms, queue=queue))
            except ClientError as error:
                error.add_note(f"the first {stored} of {len(messages)} messages are stored")
                raise
            stored += len(batch)
        return results

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> str:
        """Send a message without an answer and return its id; a loss is not reported."""
        return (await self._send_message(message, None, queue, choose, OnewaySending)).message_id

    async def request(
        self,
        message: Message,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        choose: QueueChoice | None = None,
    ) -> MessageView:
        """Send a message and return its consumer's reply, as `troupemq.Producer.request`."""
        self.check_running()
        check_timeout(timeout_ms)
        self._check_message(message)
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        request = request_of(message, self.client_id, timeout_ms)
        reply: Pending[MessageView] = Pending()
        self._replies.expect(request, timeout_ms, reply)
        try:
            if await self._meet_brokers(message.topic, timeout_ms):
                sent = self._send_message(request, timeout_ms, queue, choose)
                sent.add_done_callback(lambda done: self._replies.sent(request, done))
            return await reply
        finally:
            self._replies.forget(request)

    async def _meet_brokers(self, topic: str, timeout_ms: float) -> bool:
        """Send a heartbeat to each broker that may push a reply; return False on timeout."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                addresses = await self._to_meet(topic)
                await self._client.run(self._client.heartbeating(addresses))
        except ClientError:  # first: a RequestTimeout is a TimeoutError, too
            raise
        except TimeoutError:
            return False
        return True

    async def _to_meet(self, topic: str) -> list[str]:
        """Return the brokers that may push a reply and do not know this client."""
        routes = self._client.routes
        route = await routes.publish_route(topic)
        for name in self._replies.topics_to_ask(route.clusters):
            try:
                await routes.look_up(name)
            except ClientError as error:
                self._replies.not_asked(name, error)
        return self._replies.unknown_brokers(routes.all_addresses(masters_only=True))

    async def recall(self, topic: str, handle: str | None, timeout_ms: float | None = None) -> str:
        """Cancel a delivery that is not due yet, as `troupemq.Producer.recall`."""
        self.check_running()
        check_timeout(timeout_ms)
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        name, command = recall_request(self.group, topic, handle)
        await self._client.routes.get(topic)
        address = self._client.routes.master(name)
        return recalled(
            await self._client.remoting.call(address, command, timeout_ms), name, address
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of `topic`. Raises RouteNotFound."""
        self.check_running()
        check_topic(topic)
        return (await self._client.routes.publish_route(topic)).publish_queues

    # --- within

    def _send(
        self,
        parcel: EncodedMessage,
        message: Message,
        timeout_ms: float | None,
        queue: MessageQueue | None,
        choose: QueueChoice | None,
        *,
        compresses: bool,
        kind: type[Sending] = Sending,
    ) -> SendFuture:
        result = SendFuture(loop=asyncio.get_running_loop())  # `check_running` has seen it
        sending = self._sending(
            self._carrier,
            parcel,
            message,
            timeout_ms,
            queue,
            choose,
            result,
            compresses=compresses,
            kind=kind,
        )
        if self._tracing is not None:
            self._tracing.watch(sending)
        topic, size = parcel.topic, parcel.size_bytes
        if (
            not compresses
            and topic not in self._lanes
            and self._carrier.queues_of(topic)
            and self._slots.try_enter(size)
        ):
            self._start(sending, result, size)
        else:
            lane = self._lanes.setdefault(topic, _Lane())
            task = self._client.remoting.spawn(self._start_later(sending, result, size, lane))
            lane.tasks.add(task)
            if not task.done():  # An eager task may have started the send already.
                result.on_end = task.cancel
            # Not in the task itself: one that is cancelled early does not run at all.
            task.add_done_callback(lambda task: self._leave_lane(topic, lane, task, result))
        return result

    def _leave_lane(
        self, topic: str, lane: "_Lane", task: asyncio.Task[None], result: SendFuture
    ) -> None:
        if task.cancelled() and not result.done():
            result.set_exception(ClientClosed("the client is stopped"))
        elif not task.cancelled() and (error := task.exception()) and not result.done():
            result.set_exception(error)
        lane.tasks.discard(task)
        if not lane.tasks and self._lanes.get(topic) is lane:
            del self._lanes[topic]

    def _start(self, sending: Sending, result: SendFuture, size: int) -> None:
        def ended() -> None:
            sending.tries_left = 0
            self._slots.leave(size)

        result.on_end = ended
        sending.next_try()

    async def _start_later(
        self, sending: Sending, result: SendFuture, size: int, lane: "_Lane"
    ) -> None:
        """Start a send as soon as its route is known, its body compressed and a slot free."""
        topic, left_s = sending.parcel.topic, sending.deadline_s - monotonic()
        has_route = False
        try:
            async with asyncio.timeout(left_s), lane.turns:
                await self._client.routes.publish_route(topic)
                has_route = True
                if sending.compresses:
                    sending.parcel = await asyncio.to_thread(sending.parcel.compressed)
                await self._slots.enter(size)
                self._start(sending, result, size)
        except ClientError as error:  # first: a RequestTimeout is a TimeoutError, too
            result.set_exception(copy(error))  # notes are added to each
        except TimeoutError:
            late = self._too_late(topic, has_route=has_route)
            sending.note_short_timeout(late)
            result.set_exception(late)

    def _too_late(self, topic: str, *, has_route: bool) -> ClientError:
        if not has_route and self._client.routes.known(topic) is None:
            unanswered = self._client.routes.no_answer("no answer within the send's timeout")
            return RequestTimeout(f"no route of the topic {topic}: {unanswered}")
        if self._slots.count:
            return ClientBusy(
                f"{self._slots.count} sends of {self._slots.bytes} bytes are in flight already:"
                " wait for some of them first"
            )
        return RequestTimeout(f"the timeout of a send to {topic} expired before its first try")

    def _send_trace(self, message: Message) -> SendFuture:
        """Send a message of traces, even while the producer stops."""
        parcel = self._compressed_parcel(message)
        return self._send(parcel, message, None, None, None, compresses=False)
