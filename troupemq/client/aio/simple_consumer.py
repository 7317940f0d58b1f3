"""SimpleConsumer for an event loop: coroutines receive messages and settle each by itself.

The flows of the threaded consumer (receiving/flows.py) have the logic, and
receiving/receive_work.py has what is held.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from protocol.frame import RemotingCommand
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.aio.client import AioClient, happens, unfold, with_long_bodies
from troupemq.client.aio.lifecycle import AioMember
from troupemq.client.aio.remoting import Pending, driven, finished
from troupemq.client.arguments import names_checked
from troupemq.client.connection.calls import Value
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, LifecycleState, Work
from troupemq.client.connection.route import Route
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import RISING_DELAY, RetryLater, reason_of
from troupemq.client.errors import ClientClosed, ClientError
from troupemq.client.log import client_logger
from troupemq.client.receiving.delivery import HeldMessage
from troupemq.client.receiving.flows import Flow
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.receive_work import (
    EXTENSIONS,
    INVISIBLE_S,
    RECEIVE_COUNT_MAX,
    WAIT_MS,
    ReceiveWork,
    terms_of,
)
from troupemq.client.receiving.waiter import FlowWaiter
from troupemq.client.settings import UNLIMITED
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from troupemq.client.span_making import DeliverySpan


class AioWaiter(FlowWaiter[Pending[RemotingCommand]]):
    """Runs flows for any number of coroutines of one loop."""

    def __init__(self, client: AioClient) -> None:
        super().__init__(client)
        self._client = client
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all pauses with ClientClosed; open requests end when the client stops."""
        self._stopping.set()

    def run(self, flow: Flow[Value]) -> Coroutine[Any, Any, Value]:
        """Return the result of `flow`, once awaited. Raises ClientError."""
        return driven(flow, self._carry_out)

    def _send(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> Pending[RemotingCommand]:
        return self._client.remoting.call(address, command, timeout_ms)

    async def _answer(self, request: Pending[RemotingCommand]) -> RemotingCommand:
        return await request

    async def _wait(
        self, requests: Sequence[Pending[RemotingCommand]], timeout_s: float, *, for_all: bool
    ) -> None:
        enough = asyncio.ALL_COMPLETED if for_all else asyncio.FIRST_COMPLETED
        await asyncio.wait(requests, timeout=timeout_s, return_when=enough)

    async def _look_up(self, topic: str) -> Route:
        return await self._client.routes.get(topic)

    async def _blocking(self, work: Callable[[], object]) -> object:
        return await asyncio.to_thread(work)

    async def _pause(self, seconds: float) -> bool:
        return await happens(self._stopping.wait(), seconds)


log = client_logger(__name__)


class Delivery(HeldMessage["SimpleConsumer"]):
    """A received message and its settlement.

        for delivery in await consumer.receive():
            async with delivery:
                await work(delivery.message.body)

    The end of the block acknowledges. An exception in the block, a cancellation included, has the
    message delivered again and is passed on; a RetryLater says when, and is not passed on. Methods
    and errors are those of `troupemq.Delivery`.
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Settle the message as consumed, and return when the broker has confirmed it."""
        await self.consumer.ack([self])

    async def retry(
        self,
        delay_level: int = RISING_DELAY,
        *,
        seconds: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        """Give the message back, to be delivered again after a delay level or some seconds."""
        await self.consumer.retry(self, delay_level, seconds=seconds, reason=reason)

    async def extend(self, seconds: float | timedelta) -> None:
        """Keep the message for `seconds` from now; does nothing if its connection holds it."""
        await self.consumer.extend(self, seconds)

    async def __aenter__(self) -> "Delivery":
        self.enter_span()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        self.leave_span(error)
        try:
            if not self.is_settled:
                await self._settle(error)  # which goes on if this block is cancelled
        except ClientError as failure:
            log.warning("delivery not settled", id=self.message.message_id, error=str(failure))
            self.end_span(failure)
        return isinstance(error, RetryLater)

    async def _settle(self, error: BaseException | None) -> None:
        if error is None:
            await self.ack()
            return
        reason = reason_of(error)
        log.warning("delivery failed", id=self.message.message_id, reason=reason)
        if isinstance(error, RetryLater):
            await self.retry(error.delay_level, seconds=error.seconds, reason=reason)
        else:
            await self.retry(reason=reason)


class LoopChanges(asyncio.Condition):
    """Condition of the coroutines of a loop."""

    async def holds(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        return await happens(self.wait_for(is_so), timeout_s)


@names_checked
class SimpleConsumer(AioMember, ReceiveWork[Delivery]):
    """A consumer whose coroutines receive messages and settle each by itself.

        async with aio.SimpleConsumer("workers", namesrv="127.0.0.1:9876") as consumer:
            await consumer.subscribe("Tasks")
            async for delivery in consumer:
                async with delivery:
                    await work(delivery.message.body)

    Holds, deliveries and errors are those of `troupemq.SimpleConsumer`. A receive that is cancelled
    loses no message: the next one returns what it would have returned.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        hold: Literal["connection", "time"] = "connection",
        invisible_s: float = INVISIBLE_S,
        auto_extend: bool = False,
        orderly: bool = False,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        max_reconsume_times: int = UNLIMITED,
        highest_queue_first: bool = False,
        instance_name: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Take the arguments of `troupemq.SimpleConsumer`, with the same errors; do no I/O."""
        terms = terms_of(
            group, hold, invisible_s, orderly, begin, max_reconsume_times, highest_queue_first
        )
        super().__init__(group, namesrv, instance_name, credentials, tls)
        self._join(self._client, terms, begin, auto_extend)
        self._changed = LoopChanges()
        self._waiter = AioWaiter(self._client)
        self._spans = None
        self._spare: deque[Delivery] = deque()
        """Messages of receives that were cancelled, and of answers with more than was asked for."""
        self._left: list[asyncio.Task[None]] = []
        """Receives that were cancelled and still wait."""
        self._acks: dict[str, _Acks] = {}

    # --- receiving

    async def subscribe(
        self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None
    ) -> None:
        """Receive from `topic`, all messages or those of some tags, before or after `start`."""
        self._check_usable()
        self._subscribe(topic, expression, sql)

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more from `topic`; what is held stays so."""
        if self.is_running:
            self.check_running()
        self._unsubscribe(topic)

    async def receive(
        self, count_max: int = RECEIVE_COUNT_MAX, wait_ms: float = WAIT_MS
    ) -> list[Delivery]:
        """Return up to `count_max` messages, 32 at most; none after `wait_ms` without any.

        Settle each of them. Any number of coroutines may wait. Errors are those of
        `troupemq.SimpleConsumer.receive`.
        """
        self._check_receive(count_max, wait_ms)
        if not (found := self._taken(count_max)):
            await self._receive(count_max, wait_ms)
            found = self._taken(count_max)
        return found

    def _taken(self, count_max: int) -> list[Delivery]:
        """Return spare messages, without those that are settled: a stop gives all of them back."""
        found: list[Delivery] = []
        while self._spare and len(found) < count_max:
            if not (delivery := self._spare.popleft()).is_settled:
                found.append(delivery)
        return found

    def _put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Have messages that an iteration has not yielded received by the next call. Any thread."""
        self._spare.extendleft(reversed(deliveries))

    async def _receive(self, count_max: int, wait_ms: float) -> None:
        """Have messages added to the spare ones; a cancelled call goes on for the next one."""
        task = self._left.pop() if self._left else None
        if task is None:
            task = self._client.remoting.spawn(self._fetch(count_max, wait_ms))
        try:
            await asyncio.wait((task,), timeout=wait_ms / 1000 + LAST_TIMEOUT_S)
        finally:
            if not task.done():
                self._left.append(task)
        if task.done() and not task.cancelled():
            task.result()

    async def _fetch(self, count_max: int, wait_ms: float) -> None:
        deliveries = await self._received(count_max, wait_ms)
        if long := with_long_bodies(each.message for each in deliveries):
            await asyncio.to_thread(unfold, long)
        self._spare += deliveries

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Yield messages until the consumer stops. Raises as `receive`.

        What an iteration has received and not yielded is received by the next one, on PyPy after a
        garbage collection.
        """
        return _Deliveries(self)

    async def _following(self) -> list[Delivery]:
        """Return the next messages of an iteration; none after a stop. Raises as `receive`."""
        found: list[Delivery] = []
        while not found and self._state is not LifecycleState.STOPPED:
            found = await self.receive()
        return found

    # --- settling

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle messages as consumed. Raises as `troupemq.SimpleConsumer.ack`.

        A call that is cancelled goes on, as those of the other settlements do.
        """
        self.check_running()
        await self._shielded(self._acking(deliveries))

    async def _ack_at(self, broker_name: str, receipts: Sequence[Receipt]) -> Collection[Receipt]:
        """Settle receipts of one broker; those that come while others are sent share a request."""
        acks = self._acks.setdefault(broker_name, _Acks())
        turn: asyncio.Future[Collection[Receipt]] = asyncio.get_running_loop().create_future()
        acks.waiting.append((receipts, turn))
        if not acks.is_busy:
            acks.is_busy = True
            self._client.remoting.spawn(self._send_acks(acks))
        gone = await turn
        return [each for each in receipts if each in gone]

    async def _send_acks(self, acks: "_Acks") -> None:
        turns: list[tuple[Sequence[Receipt], asyncio.Future[Collection[Receipt]]]] = []
        try:
            while acks.waiting:
                turns, acks.waiting = acks.waiting, []
                receipts = [receipt for some, _ in turns for receipt in some]
                gone: list[Receipt] = []
                error: ClientError | None = None
                try:
                    gone = await self._waiter.run(self._flows.ack_all(receipts))
                except ClientError as failure:
                    error = failure
                for _, turn in turns:
                    if turn.done():
                        continue
                    if error is None:
                        turn.set_result(gone)
                    else:
                        turn.set_exception(copy(error))
        finally:
            acks.is_busy = False
            for _, turn in (*turns, *acks.waiting):
                if not turn.done():
                    turn.set_exception(ClientClosed("the client is stopped"))

    async def retry(
        self,
        delivery: Delivery,
        delay_level: int = RISING_DELAY,
        *,
        seconds: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, as `Delivery.retry`. Raises as `ack`."""
        await self._shielded(self._retrying(delivery, delay_level, seconds, reason))

    async def extend(self, delivery: Delivery, seconds: float | timedelta) -> None:
        """Keep a message, as `Delivery.extend`. Raises as `ack`."""
        await self._shielded(self._extending(delivery, seconds))

    def _connection_lost(self, address: str) -> None:
        """Have the next connection hold what this one held."""
        flow = self._reclaimer.lose(self._client.routes.name_of(address))
        if flow is not None:
            self._client.remoting.spawn(self._waiter.run(flow))

    # --- within

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that goes on if the caller is cancelled."""
        await finished(self._client.remoting.spawn(work))

    def _delivery(self, receipt: Receipt, span: "DeliverySpan | None") -> Delivery:
        return Delivery(self, receipt, span)

    async def _run(self, flow: Flow[Value]) -> Value:
        return await self._waiter.run(flow)

    async def _prepare(self) -> None:
        self._spans = spans_of(self.client_id)

    def _begin(self) -> None:
        self._started_at_ms = now_ms()
        self._client.remoting.on_lost = self._connection_lost
        if self.auto_extend:
            self._client.remoting.spawn(self._extend_all())

    async def _extend_all(self) -> None:
        while True:
            await asyncio.sleep(self.invisible_s / EXTENSIONS)
            await self._extend_due()

    def _work(self) -> Work:
        return {"settlements": self._settling}

    async def _finish(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter.stop()
        returned = await self._take_back(deadline_s - loop.time())
        timeout_ms = 1000 * max(LAST_TIMEOUT_S, deadline_s - loop.time())
        await self._give_back(returned, timeout_ms)


class _Deliveries(AsyncIterator[Delivery]):
    """An iterator that a cancelled step does not end, as it would end a generator."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer = consumer
        self._rest: deque[Delivery] = deque()

    async def __anext__(self) -> Delivery:
        while True:
            while self._rest:
                if not (delivery := self._rest.popleft()).is_settled:
                    return delivery
            self._rest += await self._consumer._following()
            if not self._rest:
                raise StopAsyncIteration

    def __del__(self) -> None:
        """Leave the rest to others, after a `break` or an exception in the loop."""
        self._consumer._put_back(self._rest)


class _Acks:
    """Acknowledgements for one broker: those that wait share the next request."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[Receipt], asyncio.Future[Collection[Receipt]]]] = []
        self.is_busy = False
