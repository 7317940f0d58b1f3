"""SimpleConsumer: the application receives messages and settles each of them by itself.

The flows (`flows.py`) have the logic. This class keeps what is held, and blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Condition, Thread
from time import monotonic, time_ns
from typing import Literal

from protocol.bodies import ConsumerData
from protocol.bodies_client import ConsumerRunningInfo
from protocol.codes import RequestCode
from protocol.headers.pop import FROM_MAX, FROM_MIN
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import (
    DELAY_S_MAX,
    MS_MAX,
    check_flag,
    check_instance,
    check_integer,
    check_range,
    delay_milliseconds,
    method_names_checked,
    names_checked,
)
from troupemq.client.connection.calls import Value
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, ClientMember, Work, seconds_to
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_requests import answer_running_info
from troupemq.client.consuming.consumer_settings import UNLIMITED
from troupemq.client.consuming.listener import RISING_DELAY
from troupemq.client.consuming.running_info import receiver_info
from troupemq.client.consuming.sending_back import ORDERLY_RETRIES_MAX, RETRIES_MAX
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
    AckGathering,
    Delivery,
    DeliveryState,
    delivery_spans,
    retry_delay_ms,
)
from troupemq.client.receiving.flows import (
    NOTIFIED_MS_MAX,
    SETTLE_TIMEOUT_MS,
    Flow,
    Flows,
    ReceiveTerms,
    expired,
)
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.reclaiming import Reclaimer
from troupemq.client.receiving.waiter import Waiter
from troupemq.client.spans import spans_of

log = client_logger(__name__)

RECEIVE_COUNT_MAX = 32
"""Maximum messages of one receive; brokers refuse more."""
WAIT_MS = 15_000
INVISIBLE_S = 60.0
EXTENSIONS = 4
"""Checks for messages to extend within one invisible time."""
ACKS_MAX = 1024
"""Maximum acknowledgements in one request."""

CONSUME_TYPE = "CONSUME_POP"


def terms_of(
    group: str,
    *,
    hold: str,
    invisible_s: float,
    auto_extend: bool,
    orderly: bool,
    begin: ConsumeFrom,
    max_reconsume_times: int,
    highest_queue_first: bool = False,
) -> ReceiveTerms:
    """Return the terms of a consumer's receives. Raises ArgumentIllegal."""
    if hold not in ("connection", "time"):
        raise ArgumentIllegal(f"hold is 'connection' or 'time', and not {hold!r}")
    check_range(invisible_s, 1, DELAY_S_MAX, "invisible_s")
    check_flag(auto_extend, "auto_extend")
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


@names_checked
class SimpleConsumer(ClientMember):
    """A consumer that receives messages and settles each by itself; for any thread.

        with SimpleConsumer("workers", namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Tasks")
            for delivery in consumer:
                with delivery:
                    work(delivery.message.body)

    An iteration ends when the consumer stops. `receive` returns several messages at once.

    A message goes to one member of the group, whatever its queue. Any number of members, and of
    threads, can share a queue, and a slow message delays none behind it. The broker needs RocketMQ
    5's POP requests: TroupeMQ or RocketMQ 5.

    A received message is held for this consumer until it is settled. TroupeMQ holds it as long as
    the connection lives, so that work may take any time, and delivers it again about a second after
    the connection's end. A consumer that connects again within that second keeps its messages, also
    if the broker was restarted. RocketMQ 5 holds it for `invisible_s`, and so does TroupeMQ with
    `hold="time"`; `auto_extend` then extends the hold of each message that is not settled.

    Delivery is at least once. A message that is given back, or whose hold ends, is delivered again.
    After `max_reconsume_times` retries it becomes a dead letter. `stop` gives back what is held and
    ends a receive that waits.
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
        client_ip: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address.

        * `hold`: "connection" where the broker can, or "time".
        * `invisible_s`: time of a hold that does not live with the connection.
        * `auto_extend`: whether to extend such holds until the messages are settled.
        * `orderly`: each queue in order; it gives nothing more until its messages are settled.
        * `begin`: start in queues that the group has never consumed; not TIMESTAMP.
        * `max_reconsume_times`: retries before a dead letter. [default: 16, or none if orderly]
        * `highest_queue_first`: a queue's number is the priority of its messages; TroupeMQ only.
        """
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
        super().__init__(group, namesrv, instance_name, client_ip, credentials, tls)
        self.invisible_s, self.auto_extend, self._begin_where = invisible_s, auto_extend, begin
        self._flows = Flows(terms, monotonic)
        self._waiter = Waiter(self._client)
        self._acks = AckGathering(self._ack_some)
        self._spans = spans_of(self.client_id)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._held: dict[Receipt, Delivery] = {}
        self._spare: list[Delivery] = []
        """Messages of a late answer, beyond the number that the next receive asked for."""

        self._is_returning = False
        self._changed = Condition()
        """Guards what is held and the states of deliveries."""

        self._reclaimer = Reclaimer(self._flows, self._held)
        self._client.consumer_data = self._consumer_data
        self._client.topics = lambda: tuple(self._subscriptions)
        self._started_at_ms = 0
        self._client.serves |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda command: None,
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda it: answer_running_info(it, self),
        }

    # --- receiving

    @method_names_checked
    def subscribe(self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None) -> None:
        """Receive from `topic`, all messages or those of some tags, before or after `start`.

            consumer.subscribe("Orders", "new || paid")
            consumer.subscribe("Payments", sql="amount > 100 AND currency = 'EUR'")

        `sql` filters by properties in SQL92; the broker checks it at the next receive. All members
        of a group must have the same subscriptions. Raises MessageIllegal for invalid arguments,
        ClientClosed after a stop.
        """
        self.check_not_stopped()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, sql, now_ms())
        subscription.warn_of_doubts(self.group)
        self._subscriptions = {**self._subscriptions, topic: subscription}
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more from `topic`; what is held stays so. Raises MessageIllegal."""
        check_topic(topic)
        rest = {name: each for name, each in self._subscriptions.items() if name != topic}
        self._subscriptions = rest
        self._announce()

    def receive(
        self, count_max: int = RECEIVE_COUNT_MAX, wait_ms: float = WAIT_MS
    ) -> list[Delivery]:
        """Return up to `count_max` messages, 32 at most; none after `wait_ms` without any.

        Settle each of them. Any number of threads may wait. An unreachable broker is logged and
        asked again. A stop ends the wait. Raises BrokerError if all brokers refuse, NotSupported if
        they are too old, ClientError without a subscription, and ClientClosed.
        """
        self.check_running()
        check_integer(count_max, 1, RECEIVE_COUNT_MAX, "count_max")
        check_range(wait_ms, 0, MS_MAX, "wait_ms")
        if not self._subscriptions:
            raise ClientError(f"the {self.kind} has no topics: subscribe first")
        with self._changed:
            spare = [each for each in self._spare if not each.is_settled]  # by a stop
            found, self._spare = spare[:count_max], spare[count_max:]
        if found:
            return found
        begun_ns = time_ns()
        was_served = self._flows.served
        try:
            receipts = self._run(self._flows.receive(self._subscriptions, count_max, wait_ms))
        except ClientClosed:
            return []
        if not was_served:
            self._announce()
        deliveries = self._keep(receipts, begun_ns)
        with self._changed:
            self._spare += deliveries[count_max:]
        return deliveries[:count_max]

    def wait(self, wait_ms: float = NOTIFIED_MS_MAX) -> bool:
        """Wait for messages, a second at most, without receiving any; return whether there are any.

        Another consumer may receive them first. Raises as `receive`.
        """
        self.check_running()
        check_range(wait_ms, 0, MS_MAX, "wait_ms")
        try:
            return bool(self._spare) or self._run(self._flows.wait(self._subscriptions, wait_ms))
        except ClientClosed:
            return False

    def __iter__(self) -> Iterator[Delivery]:
        """Yield messages until the consumer stops. Raises as `receive`.

        What an iteration has received and not yielded is received by the next one, on PyPy after a
        garbage collection.
        """
        self.check_running()
        rest: list[Delivery] = []
        try:
            while True:
                try:
                    rest = self.receive()
                except ClientClosed:
                    return
                while rest:
                    if not (delivery := rest.pop(0)).is_settled:
                        yield delivery
        finally:
            with self._changed:
                self._spare[:0] = rest

    def _keep(self, receipts: Sequence[Receipt], begun_ns: int) -> list[Delivery]:
        spans = delivery_spans(self._spans, self.group, receipts, begun_ns)
        deliveries = [Delivery(self, *each) for each in zip(receipts, spans, strict=True)]
        with self._changed:
            if not self._is_returning:
                self._held.update(zip(receipts, deliveries, strict=True))
                return deliveries
        self._give_back(receipts, LAST_TIMEOUT_S * 1000)
        return []

    def info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state that administrators see; `stacks`: with stack traces of all threads."""
        wanted, begun_ms = self._subscriptions.values(), self._started_at_ms
        return receiver_info(self.group, self._client, wanted, self.held(), begun_ms, stacks=stacks)

    def held(self) -> list[Delivery]:
        """Return the received messages that are not settled."""
        with self._changed:
            return list(self._held.values())

    # --- settling

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle messages as consumed, with one request for each broker.

            consumer.ack(consumer.receive())

        Raises DeliverySettled, without a request, if one of them is settled already;
        DeliveryExpired if the broker says that it no longer holds one, after the others are
        acknowledged; and other ClientErrors, after which the rest can be settled again. Brokers
        answer a request for several without saying which of them they no longer hold.
        """
        own = self._claim(deliveries)
        gone: list[Receipt] = []
        try:
            by_broker: dict[str, list[Delivery]] = {}
            for each in own:
                by_broker.setdefault(each.receipt.broker_name, []).append(each)
            for name, several in by_broker.items():
                lost = self._acks.ack(name, [each.receipt for each in several])
                gone += lost
                for each in several:
                    is_lost = each.receipt in lost
                    each.state = DeliveryState.EXPIRED if is_lost else DeliveryState.ACKED
        finally:
            self._release(own)
        if gone:
            raise expired(gone)

    def _ack_some(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Settle receipts of one broker, perhaps of several threads, in requests that it takes."""
        gone: list[Receipt] = []
        for start in range(0, len(receipts), ACKS_MAX):
            gone += self._run(self._flows.ack(receipts[start : start + ACKS_MAX]))
        return gone

    def retry(
        self,
        delivery: Delivery,
        delay_level: int = RISING_DELAY,
        *,
        seconds: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, as `Delivery.retry`. Raises as `ack`."""
        delay_ms = retry_delay_ms(delay_level, seconds, reason)
        flow = self._flows.retry(delivery.receipt, delay_level, delay_ms, reason or "")
        self._settle(delivery, flow, DeliveryState.RETRIED)

    def extend(self, delivery: Delivery, seconds: float | timedelta) -> None:
        """Keep a message, as `Delivery.extend`. Raises as `ack`."""
        hold_ms = delay_milliseconds(seconds, "seconds")
        receipt = delivery.receipt
        is_held = delivery.holds_with_connection
        flow = None if is_held else self._flows.change(receipt, hold_ms)
        self._settle(delivery, flow, DeliveryState.OPEN)

    def _settle(self, delivery: Delivery, flow: Flow[None] | None, then: DeliveryState) -> None:
        own = self._claim([delivery])
        try:
            if flow is not None:
                self._run(flow)
            delivery.state = then
        except DeliveryExpired:
            delivery.state = DeliveryState.EXPIRED
            raise
        finally:
            self._release(own)

    def _claim(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Mark deliveries as busy, after the extensions that run. Raises DeliverySettled."""
        self.check_running()
        check_instance(deliveries, Iterable, "what is settled is a list of Deliveries")
        own: dict[Delivery, None] = {}
        for each in deliveries:
            check_instance(each, Delivery, "what is settled is a Delivery")
            if each.consumer is not self:
                raise ArgumentIllegal("a delivery is settled by the consumer that received it")
            own[each] = None
        with self._changed:
            self._changed.wait_for(
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

    def _release(self, deliveries: Iterable[Delivery]) -> None:
        """Open those that are still busy again, and forget the settled ones."""
        with self._changed:
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

    def _extend_all(self) -> None:
        """Extend what would be delivered again before the next check but one."""
        soon_s = monotonic() + self.invisible_s * 2 / EXTENSIONS
        with self._changed:
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
            gone = self._run(self._flows.change_all(receipts, hold_ms, SETTLE_TIMEOUT_MS))
            for each in due:
                if each.receipt in gone:
                    each.state = DeliveryState.EXPIRED
        finally:
            self._release(due)

    def _give_back(self, receipts: Sequence[Receipt], timeout_ms: float) -> None:
        if receipts:
            log.info("messages given back", group=self.group, count=len(receipts))
            self._run(self._flows.change_all(receipts, 0, timeout_ms))

    def _connection_lost(self, address: str) -> None:
        """Have the next connection hold what this one held; on the I/O thread."""
        flow = self._reclaimer.lose(self._client.routes.name_of(address))
        if flow is not None:
            Thread(target=self._reclaim, args=(flow,), name="troupemq-reclaim", daemon=True).start()

    def _reclaim(self, flow: Flow[None]) -> None:
        with suppress(ClientClosed):
            self._run(flow)

    # --- within

    def _run(self, flow: Flow[Value]) -> Value:
        return self._waiter.run(flow)

    def _begin(self) -> None:
        self._started_at_ms = now_ms()
        self._client.remoting.on_lost = self._connection_lost
        if self.auto_extend:
            interval_ms = self.invisible_s * 1000 / EXTENSIONS
            every = self._client.housekeeping.every
            every(interval_ms, self._extend_all, first_ms=interval_ms)

    def _work(self) -> Work:
        return {"settlements": self._settling}

    def _settling(self) -> int:
        """Return the number of deliveries whose settlement runs."""
        held = tuple(self._held.values())
        return sum(each.state is DeliveryState.BUSY for each in held)

    def _finish(self, deadline_s: float) -> None:
        with self._changed:
            self._is_returning = True
            held = self._held.values()
            self._changed.wait_for(
                lambda: all(each.state is not DeliveryState.BUSY for each in held),
                seconds_to(deadline_s),
            )
            returned = [each for each in held if each.state is DeliveryState.OPEN]
            for each in returned:
                each.state = DeliveryState.RETURNED
                del self._held[each.receipt]
        for each in returned:
            each.end_span()
        self._waiter.stop()
        timeout_ms = 1000 * max(LAST_TIMEOUT_S, seconds_to(deadline_s))
        self._give_back([each.receipt for each in returned], min(timeout_ms, SETTLE_TIMEOUT_MS))

    def _announce(self) -> None:
        """Send a heartbeat soon, with which brokers list this consumer and keep its connection."""
        if self.is_running:
            self._client.housekeeping.post(self._client.heartbeat)

    def _consumer_data(self) -> list[ConsumerData]:
        """Return the group's data once a broker knows POP; others would list a pull consumer."""
        if not self._flows.served:
            return []
        subscriptions = [each.data() for each in self._subscriptions.values()]
        begin = self._begin_where.value
        return [ConsumerData(self.group, CONSUME_TYPE, MESSAGE_MODEL, begin, subscriptions)]
