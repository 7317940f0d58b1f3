"""SimpleConsumer for an event loop: coroutines receive messages and settle each by itself.

The flows of the threaded consumer (receiving/flows.py) have the logic.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Sequence
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Literal

from protocol.bodies import ConsumerData
from protocol.bodies_client import ConsumerRunningInfo
from protocol.codes import RequestCode
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.aio.lifecycle import AioMember
from troupemq.client.aio.remoting import finished
from troupemq.client.aio.waiter import AioWaiter
from troupemq.client.arguments import (
    MS_MAX,
    check_instance,
    check_integer,
    check_range,
    delay_milliseconds,
    names_checked,
)
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, LifecycleState, Work
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_requests import answer_running_info
from troupemq.client.consuming.consumer_settings import UNLIMITED
from troupemq.client.consuming.listener import RISING_DELAY, RetryLater, reason_of
from troupemq.client.consuming.running_info import receiver_info
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import (
    ArgumentIllegal,
    ClientClosed,
    ClientError,
    DeliveryExpired,
    DeliverySettled,
)
from troupemq.client.log import client_logger
from troupemq.client.message import check_topic
from troupemq.client.receiving.delivery import (
    MESSAGE_MODEL,
    DeliveryState,
    HeldMessage,
    delivery_spans,
    retry_delay_ms,
)
from troupemq.client.receiving.flows import SETTLE_TIMEOUT_MS, Flow, Flows, expired
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.reclaiming import Reclaimer
from troupemq.client.receiving.simple_consumer import (
    ACKS_MAX,
    CONSUME_TYPE,
    EXTENSIONS,
    INVISIBLE_S,
    RECEIVE_COUNT_MAX,
    WAIT_MS,
    terms_of,
)
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans, DeliverySpan

log = client_logger(__name__)


class Delivery(HeldMessage):
    """A received message and its settlement.

        for delivery in await consumer.receive():
            async with delivery:
                await work(delivery.message.body)

    The end of the block acknowledges. An exception in the block, a cancellation included, has the
    message delivered again and is passed on; a RetryLater says when, and is not passed on. Methods
    and errors are those of `troupemq.Delivery`.
    """

    __slots__ = ("consumer",)

    def __init__(
        self, consumer: "SimpleConsumer", receipt: Receipt, span: "DeliverySpan | None" = None
    ) -> None:
        """Start open; SimpleConsumer creates deliveries."""
        super().__init__(receipt, span)
        self.consumer = consumer

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


@names_checked
class SimpleConsumer(AioMember):
    """A consumer whose coroutines receive messages and settle each by itself.

        async with aio.SimpleConsumer("workers", namesrv="127.0.0.1:9876") as consumer:
            await consumer.subscribe("Tasks")
            async for delivery in consumer:
                async with delivery:
                    await work(delivery.message.body)

    Holds, deliveries and errors are those of `troupemq.SimpleConsumer`. A receive that is cancelled
    loses no message: the next one returns what it would have returned.
    """

    kind = "consumer"
    stop_timeout_s = 10.0

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
            group,
            hold=hold,
            invisible_s=invisible_s,
            auto_extend=auto_extend,
            orderly=orderly,
            begin=begin,
            max_reconsume_times=max_reconsume_times,
            highest_queue_first=highest_queue_first,
        )
        super().__init__(group, namesrv, instance_name, credentials, tls)
        self.invisible_s, self.auto_extend = invisible_s, auto_extend
        self._begin_where = begin
        self._flows = Flows(terms, monotonic)
        self._waiter = AioWaiter(self._client)
        self._spans: ClientSpans | None = None
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._held: dict[Receipt, Delivery] = {}
        self._spare: deque[Delivery] = deque()
        """Messages of receives that were cancelled, and of answers with more than was asked for."""
        self._left: list[asyncio.Task[list[Delivery]]] = []
        """Receives that were cancelled and still wait."""
        self._acks: dict[str, _Acks] = {}
        self._changed = asyncio.Condition()
        self._reclaimer = Reclaimer(self._flows, self._held)
        self._client.consumer_data = self._consumer_data
        self._client.topics = lambda: tuple(self._subscriptions)
        self._started_at_ms = 0
        self._client.serves |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda command: None,
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda it: answer_running_info(it, self),
        }

    # --- receiving

    async def subscribe(
        self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None
    ) -> None:
        """Receive from `topic`, all messages or those of some tags, before or after `start`."""
        if not self.is_running:
            self._check_not_stopped()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, sql, now_ms())
        subscription.warn_of_doubts(self.group)
        self._subscriptions = {**self._subscriptions, topic: subscription}
        self._announce()

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more from `topic`; what is held stays so."""
        check_topic(topic)
        rest = {name: each for name, each in self._subscriptions.items() if name != topic}
        self._subscriptions = rest
        self._announce()

    async def receive(
        self, count_max: int = RECEIVE_COUNT_MAX, wait_ms: float = WAIT_MS
    ) -> list[Delivery]:
        """Return up to `count_max` messages, 32 at most; none after `wait_ms` without any.

        Settle each of them. Any number of coroutines may wait. Errors are those of
        `troupemq.SimpleConsumer.receive`.
        """
        self.check_running()
        check_integer(count_max, 1, RECEIVE_COUNT_MAX, "count_max")
        check_range(wait_ms, 0, MS_MAX, "wait_ms")
        if not self._subscriptions:
            raise ClientError(f"the {self.kind} has no topics: subscribe first")
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

    async def _fetch(self, count_max: int, wait_ms: float) -> list[Delivery]:
        begun_ns, was_served = time_ns(), self._flows.served
        flow = self._flows.receive(self._subscriptions, count_max, wait_ms)
        try:
            receipts = await self._waiter.run(flow)
        except ClientClosed:
            return []
        if not was_served and self._flows.served:
            self._announce()
        spans = delivery_spans(self._spans, self.group, receipts, begun_ns)
        deliveries = [Delivery(self, *each) for each in zip(receipts, spans, strict=True)]
        if not self.is_running:
            await self._give_back(receipts, LAST_TIMEOUT_S * 1000)
            return []
        self._held.update(zip(receipts, deliveries, strict=True))
        self._spare += deliveries
        return deliveries

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

    def info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state that administrators see; `stacks`: with stack traces of all threads."""
        wanted, begun_ms = self._subscriptions.values(), self._started_at_ms
        return receiver_info(self.group, self._client, wanted, self.held(), begun_ms, stacks=stacks)

    def held(self) -> list[Delivery]:
        """Return the received messages that are not settled."""
        return list(self._held.values())

    # --- settling

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle messages as consumed. Raises as `troupemq.SimpleConsumer.ack`.

        A call that is cancelled goes on, as those of the other settlements do.
        """
        self.check_running()
        await self._shielded(self._ack(deliveries))

    async def _ack(self, deliveries: Iterable[Delivery]) -> None:
        own = await self._claim(deliveries)
        gone: list[Receipt] = []
        try:
            by_broker: dict[str, list[Delivery]] = {}
            for each in own:
                by_broker.setdefault(each.receipt.broker_name, []).append(each)
            for name, several in by_broker.items():
                lost = await self._ack_at(name, [each.receipt for each in several])
                gone += lost
                for each in several:
                    is_lost = each.receipt in lost
                    each.state = DeliveryState.EXPIRED if is_lost else DeliveryState.ACKED
        finally:
            await self._release(own)
        if gone:
            raise expired(gone)

    async def _ack_at(self, broker_name: str, receipts: Sequence[Receipt]) -> list[Receipt]:
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
                    for start in range(0, len(receipts), ACKS_MAX):
                        some = receipts[start : start + ACKS_MAX]
                        gone += await self._waiter.run(self._flows.ack(some))
                except ClientError as failure:
                    error = failure
                for _, turn in turns:
                    if turn.done():
                        continue
                    if error is None:
                        turn.set_result(gone)
                    else:
                        turn.set_exception(type(error)(*error.args))
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
        delay_ms = retry_delay_ms(delay_level, seconds, reason)
        self.check_running()
        flow = self._flows.retry(delivery.receipt, delay_level, delay_ms, reason or "")
        await self._shielded(self._settle(delivery, flow, DeliveryState.RETRIED))

    async def extend(self, delivery: Delivery, seconds: float | timedelta) -> None:
        """Keep a message, as `Delivery.extend`. Raises as `ack`."""
        hold_ms = delay_milliseconds(seconds, "seconds")
        is_held = delivery.holds_with_connection
        flow = None if is_held else self._flows.change(delivery.receipt, hold_ms)
        self.check_running()
        await self._shielded(self._settle(delivery, flow, DeliveryState.OPEN))

    async def _settle(
        self, delivery: Delivery, flow: Flow[None] | None, then: DeliveryState
    ) -> None:
        own = await self._claim([delivery])
        try:
            if flow is not None:
                await self._waiter.run(flow)
            delivery.state = then
        except DeliveryExpired:
            delivery.state = DeliveryState.EXPIRED
            raise
        finally:
            await self._release(own)

    async def _claim(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Mark deliveries as busy, after the extensions that run. Raises DeliverySettled."""
        check_instance(deliveries, Iterable, "what is settled is a list of Deliveries")
        own: dict[Delivery, None] = {}
        for each in deliveries:
            check_instance(each, Delivery, "what is settled is a Delivery")
            if each.consumer is not self:
                raise ArgumentIllegal("a delivery is settled by the consumer that received it")
            own[each] = None
        async with self._changed:
            await self._changed.wait_for(
                lambda: all(each.state is not DeliveryState.BUSY for each in own)
            )
            for each in own:
                if each.state is not DeliveryState.OPEN:
                    raise DeliverySettled(
                        f"the message {each.message.message_id} {each.state.value} already"
                    )
            for each in own:
                each.state = DeliveryState.BUSY
        return list(own)

    async def _release(self, deliveries: Iterable[Delivery]) -> None:
        """Open those that are still busy again, and forget the settled ones."""
        async with self._changed:
            for each in deliveries:
                if each.state is DeliveryState.BUSY:
                    each.state = DeliveryState.OPEN
                if each.state is not DeliveryState.OPEN:
                    self._held.pop(each.receipt, None)
                    self._reclaimer.forget(each.receipt)
            self._changed.notify_all()
        for each in deliveries:
            if each.is_settled:
                each.end_span()

    async def _extend_all(self) -> None:
        """Extend again and again what would be delivered again before the next check but one."""
        hold_ms = round(self.invisible_s * 1000)
        while True:
            await asyncio.sleep(self.invisible_s / EXTENSIONS)
            soon_s = monotonic() + self.invisible_s * 2 / EXTENSIONS
            due = [
                each
                for each in self._held.values()
                if each.state is DeliveryState.OPEN
                and each.receipt.expires_s is not None
                and each.receipt.expires_s <= soon_s
            ]
            if not due:
                continue
            for each in due:
                each.state = DeliveryState.BUSY
            try:
                receipts = [each.receipt for each in due]
                flow = self._flows.change_all(receipts, hold_ms, SETTLE_TIMEOUT_MS)
                gone = await self._waiter.run(flow)
                for each in due:
                    if each.receipt in gone:
                        each.state = DeliveryState.EXPIRED
            finally:
                await self._release(due)

    def _connection_lost(self, address: str) -> None:
        """Have the next connection hold what this one held."""
        flow = self._reclaimer.lose(self._client.routes.name_of(address))
        if flow is not None:
            self._client.remoting.spawn(self._waiter.run(flow))

    # --- within

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that goes on if the caller is cancelled."""
        await finished(self._client.remoting.spawn(work))

    async def _prepare(self) -> None:
        self._spans = spans_of(self.client_id)

    def _begin(self) -> None:
        self._started_at_ms = now_ms()
        self._client.remoting.on_lost = self._connection_lost
        if self.auto_extend:
            self._client.remoting.spawn(self._extend_all())

    def _work(self) -> Work:
        return {"settlements": self._settling}

    def _settling(self) -> int:
        """Return the number of deliveries whose settlement runs."""
        held = tuple(self._held.values())
        return sum(each.state is DeliveryState.BUSY for each in held)

    async def _finish(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter.stop()
        held = self._held.values()
        try:
            async with asyncio.timeout_at(deadline_s), self._changed:
                await self._changed.wait_for(
                    lambda: all(each.state is not DeliveryState.BUSY for each in held)
                )
        except TimeoutError:
            log.warning("settlement still running at stop", group=self.group)
        returned = [each for each in held if each.state is DeliveryState.OPEN]
        for each in returned:
            each.state = DeliveryState.RETURNED
            del self._held[each.receipt]
            each.end_span()
        timeout_ms = 1000 * max(LAST_TIMEOUT_S, deadline_s - loop.time())
        await self._give_back(
            [each.receipt for each in returned], min(timeout_ms, SETTLE_TIMEOUT_MS)
        )

    async def _give_back(self, receipts: Sequence[Receipt], timeout_ms: float) -> None:
        if receipts:
            log.info("messages given back", group=self.group, count=len(receipts))
            await self._waiter.run(self._flows.change_all(receipts, 0, timeout_ms))

    def _announce(self) -> None:
        """Send a heartbeat soon, with which brokers list this consumer and keep its connection."""
        if self.is_running:
            self._client.remoting.spawn(self._client.heartbeat())

    def _consumer_data(self) -> list[ConsumerData]:
        """Return the group's data once a broker knows POP; others would list a pull consumer."""
        if not self._flows.served:
            return []
        subscriptions = [each.data() for each in self._subscriptions.values()]
        begin = self._begin_where.value
        return [ConsumerData(self.group, CONSUME_TYPE, MESSAGE_MODEL, begin, subscriptions)]


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
