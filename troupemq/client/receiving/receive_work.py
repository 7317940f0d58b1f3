"""Parts of a SimpleConsumer that threads and event loops share.

An event loop awaits the coroutines. On a thread they block and never suspend, so that `finished`
(connection/calls.py) runs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from protocol.bodies import ConsumerData
from protocol.bodies_client import ConsumerRunningInfo
from protocol.codes import RequestCode
from protocol.headers.pop import FROM_MAX, FROM_MIN
from troupemq.client.arguments import (
    DELAY_S_MAX,
    MS_MAX,
    check_flag,
    check_instance,
    check_integer,
    check_range,
    delay_milliseconds,
)
from troupemq.client.connection.calls import Value
from troupemq.client.connection.client import ClientCore
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S
from troupemq.client.consuming.consume import ORDERLY_RETRIES_MAX, RETRIES_MAX
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_requests import answer_running_info
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
from troupemq.client.receiving.flows import SETTLE_TIMEOUT_MS, Flow, Flows, ReceiveTerms, expired
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.reclaiming import Reclaimer
from troupemq.client.settings import UNLIMITED

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans, DeliverySpan

log = client_logger(__name__)

RECEIVE_COUNT_MAX = 32
"""Maximum messages of one receive; brokers refuse more."""
WAIT_MS = 15_000
INVISIBLE_S = 60.0
EXTENSIONS = 4
"""Checks for messages to extend within one invisible time."""

CONSUME_TYPE = "CONSUME_POP"
_DELIVERY = "what is settled is a Delivery"

Held = TypeVar("Held", bound=HeldMessage[Any])


def terms_of(
    group: str,
    hold: str,
    invisible_s: float,
    orderly: bool,
    begin: ConsumeFrom,
    max_reconsume_times: int,
    highest_queue_first: bool,
) -> ReceiveTerms:
    """Return the terms of a consumer's receives. Raises ArgumentIllegal."""
    if hold not in ("connection", "time"):
        raise ArgumentIllegal(f"hold is 'connection' or 'time', and not {hold!r}")
    check_range(invisible_s, 1, DELAY_S_MAX, "invisible_s")
    check_flag(orderly, "orderly")
    check_flag(highest_queue_first, "highest_queue_first")
    check_instance(begin, ConsumeFrom, "begin is a ConsumeFrom, such as FIRST_OFFSET")
    if begin is ConsumeFrom.TIMESTAMP:
        raise ArgumentIllegal("a SimpleConsumer begins at FIRST_OFFSET or LAST_OFFSET")
    check_integer(max_reconsume_times, UNLIMITED, MS_MAX, "max_reconsume_times")
    retries_max = max_reconsume_times
    if retries_max == UNLIMITED:
        retries_max = ORDERLY_RETRIES_MAX if orderly else RETRIES_MAX
    init_mode = FROM_MIN if begin is ConsumeFrom.FIRST_OFFSET else FROM_MAX
    with_connection, hold_ms = hold == "connection", round(invisible_s * 1000)
    return ReceiveTerms(
        group, hold_ms, with_connection, orderly, init_mode, retries_max, highest_queue_first
    )


class Changes(Protocol):
    """Condition over what is held and over the states of deliveries."""

    async def __aenter__(self) -> object: ...
    async def __aexit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...

    async def holds(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_so()`, at most for `timeout_s`; return the last result."""

    def notify_all(self) -> None: ...


class ReceiveWork(ABC, Generic[Held]):
    """A consumer that receives messages and settles each by itself."""

    kind = "consumer"
    stop_timeout_s = 10.0
    group: str
    _changed: Changes
    _spans: "ClientSpans | None"

    def _join(
        self, client: ClientCore, terms: ReceiveTerms, begin: ConsumeFrom, auto_extend: bool
    ) -> None:
        """Set the state up, after the creation of the client. Raises ArgumentIllegal."""
        check_flag(auto_extend, "auto_extend")
        self.invisible_s, self.auto_extend = terms.invisible_ms / 1000, auto_extend
        self._core, self._begin_where = client, begin
        self._flows = Flows(terms, monotonic)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._held: dict[Receipt, Held] = {}
        self._reclaimer = Reclaimer(self._flows, self._held)
        self._is_returning = False
        self._started_at_ms = 0
        client.consumer_data = self._consumer_data
        client.topics = lambda: tuple(self._subscriptions)
        client.serves |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda command: None,
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda it: answer_running_info(it, self),
        }

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""

    @abstractmethod
    def check_running(self) -> None:
        """Raise ClientClosed unless it runs."""

    @abstractmethod
    def _delivery(self, receipt: Receipt, span: "DeliverySpan | None") -> Held:
        """Return a new delivery."""

    @abstractmethod
    async def _run(self, flow: Flow[Value]) -> Value:
        """Return the result of a flow. Raises ClientError."""

    @abstractmethod
    async def _ack_at(self, broker_name: str, receipts: Sequence[Receipt]) -> Collection[Receipt]:
        """Settle receipts of one broker; return those it does not hold. Raises ClientError."""

    # --- receiving

    def _subscribe(self, topic: str, expression: str, sql: str | None) -> None:
        subscription = TopicSubscription.checked(self.group, topic, expression, sql)
        self._subscriptions = {**self._subscriptions, topic: subscription}
        self._announce()

    def _unsubscribe(self, topic: str) -> None:
        check_topic(topic)
        rest = {name: each for name, each in self._subscriptions.items() if name != topic}
        self._subscriptions = rest
        self._announce()

    def _announce(self) -> None:
        """Send a heartbeat soon, with which brokers list this consumer and keep its connection."""
        if self.is_running:
            self._core.flows.post(self._core.heartbeating)

    def _check_receive(self, count_max: int, wait_ms: float) -> None:
        self.check_running()
        check_integer(count_max, 1, RECEIVE_COUNT_MAX, "count_max")
        check_range(wait_ms, 0, MS_MAX, "wait_ms")
        if not self._subscriptions:
            raise ClientError(f"the {self.kind} has no topics: subscribe first")

    async def _received(self, count_max: int, wait_ms: float) -> list[Held]:
        """Return the messages of one receive; none after a stop."""
        begun_ns, was_served = time_ns(), self._flows.served
        try:
            receipts = await self._run(self._flows.receive(self._subscriptions, count_max, wait_ms))
        except ClientClosed:
            return []
        if self._flows.served and not was_served:
            self._announce()
        spans = delivery_spans(self._spans, self.group, receipts, begun_ns)
        deliveries = [self._delivery(*each) for each in zip(receipts, spans, strict=True)]
        async with self._changed:
            if not self._is_returning:
                self._held.update(zip(receipts, deliveries, strict=True))
                return deliveries
        await self._give_back(receipts, LAST_TIMEOUT_S * 1000)
        return []

    def info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state that administrators see; `stacks`: with stack traces of all threads."""
        wanted, begun_ms = self._subscriptions.values(), self._started_at_ms
        return receiver_info(self.group, self._core, wanted, self.held(), begun_ms, stacks=stacks)

    def held(self) -> list[Held]:
        """Return the received messages that are not settled."""
        return list(self._held.values())

    # --- settling

    async def _acking(self, deliveries: Iterable[Held]) -> None:
        own = await self._claim(deliveries)
        gone: list[Receipt] = []
        try:
            by_broker: dict[str, list[Held]] = {}
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

    def _retrying(
        self, delivery: Held, level: int, seconds: float | timedelta | None, reason: str | None
    ) -> Coroutine[Any, Any, None]:
        check_instance(delivery, HeldMessage, _DELIVERY)
        delay_ms = retry_delay_ms(level, seconds, reason)
        self.check_running()
        flow = self._flows.retry(delivery.receipt, level, delay_ms, reason or "")
        return self._settle(delivery, flow, DeliveryState.RETRIED)

    def _extending(self, delivery: Held, seconds: float | timedelta) -> Coroutine[Any, Any, None]:
        check_instance(delivery, HeldMessage, _DELIVERY)
        hold_ms = delay_milliseconds(seconds, "seconds")
        self.check_running()
        is_held = delivery.holds_with_connection
        flow = None if is_held else self._flows.change(delivery.receipt, hold_ms)
        return self._settle(delivery, flow, DeliveryState.OPEN)

    async def _settle(self, delivery: Held, flow: Flow[None] | None, then: DeliveryState) -> None:
        own = await self._claim([delivery])
        try:
            if flow is not None:
                await self._run(flow)
            delivery.state = then
        except DeliveryExpired:
            delivery.state = DeliveryState.EXPIRED
            raise
        finally:
            await self._release(own)

    async def _claim(self, deliveries: Iterable[Held]) -> list[Held]:
        """Mark deliveries as busy, after the extensions that run. Raises DeliverySettled."""
        check_instance(deliveries, Iterable, "what is settled is a list of Deliveries")
        own: dict[Held, None] = {}
        for each in deliveries:
            check_instance(each, HeldMessage, _DELIVERY)
            if each.consumer is not self:
                raise ArgumentIllegal("a delivery is settled by the consumer that received it")
            own[each] = None
        async with self._changed:
            await self._changed.holds(lambda: not _are_busy(own))
            for each in own:
                if each.state is not DeliveryState.OPEN:
                    raise DeliverySettled(
                        f"the message {each.message.message_id} {each.state.value} already"
                    )
            for each in own:
                each.state = DeliveryState.BUSY
        return list(own)

    async def _release(self, deliveries: Iterable[Held]) -> None:
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

    async def _extend_due(self) -> None:
        """Extend what would be delivered again before the next check but one."""
        soon_s = monotonic() + self.invisible_s * 2 / EXTENSIONS
        async with self._changed:
            due = [
                each
                for each in self._held.values()
                if each.state is DeliveryState.OPEN
                and each.receipt.expires_s is not None
                and each.receipt.expires_s <= soon_s
            ]
            for each in due:
                each.state = DeliveryState.BUSY
        if not due:
            return
        try:
            receipts, hold_ms = [each.receipt for each in due], round(self.invisible_s * 1000)
            gone = await self._run(self._flows.change_all(receipts, hold_ms, SETTLE_TIMEOUT_MS))
            for each in due:
                if each.receipt in gone:
                    each.state = DeliveryState.EXPIRED
        finally:
            await self._release(due)

    # --- the stop

    def _settling(self) -> int:
        """Return the number of deliveries whose settlement runs."""
        held = tuple(self._held.values())
        return sum(each.state is DeliveryState.BUSY for each in held)

    async def _take_back(self, timeout_s: float) -> list[Receipt]:
        """Return what is not settled after the settlements that run, to be given back."""
        async with self._changed:
            self._is_returning = True
            held = self._held.values()
            if not await self._changed.holds(lambda: not _are_busy(held), timeout_s):
                log.warning("settlement still running at stop", group=self.group)
            returned = [each for each in held if each.state is DeliveryState.OPEN]
            for each in returned:
                each.state = DeliveryState.RETURNED
                del self._held[each.receipt]
        for each in returned:
            each.end_span()
        return [each.receipt for each in returned]

    async def _give_back(self, receipts: Sequence[Receipt], timeout_ms: float) -> None:
        if receipts:
            log.info("messages given back", group=self.group, count=len(receipts))
            timeout_ms = min(timeout_ms, SETTLE_TIMEOUT_MS)
            await self._run(self._flows.change_all(receipts, 0, timeout_ms))

    def _consumer_data(self) -> list[ConsumerData]:
        """Return the group's data once a broker knows POP; others would list a pull consumer."""
        if not self._flows.served:
            return []
        subscriptions = [each.data() for each in self._subscriptions.values()]
        begin = self._begin_where.value
        return [ConsumerData(self.group, CONSUME_TYPE, MESSAGE_MODEL, begin, subscriptions)]


def _are_busy(deliveries: Iterable[HeldMessage[Any]]) -> bool:
    return any(each.state is DeliveryState.BUSY for each in deliveries)
