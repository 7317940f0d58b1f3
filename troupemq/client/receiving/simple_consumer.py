"""SimpleConsumer: the application receives messages and settles each of them by itself.

The flows (`flows.py`) have the logic, and `receive_work.py` what is held. This class blocks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Condition, Thread
from typing import TYPE_CHECKING, Literal

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_range, method_names_checked, names_checked
from troupemq.client.connection.calls import Value, finished
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, ClientMember, Work, seconds_to
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import RISING_DELAY
from troupemq.client.errors import ClientClosed
from troupemq.client.receiving.delivery import AckGathering, Delivery
from troupemq.client.receiving.flows import NOTIFIED_MS_MAX, Flow
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.receive_work import (
    EXTENSIONS,
    INVISIBLE_S,
    RECEIVE_COUNT_MAX,
    WAIT_MS,
    ReceiveWork,
    terms_of,
)
from troupemq.client.receiving.waiter import Waiter
from troupemq.client.settings import UNLIMITED
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from troupemq.client.span_making import DeliverySpan

__all__ = ["RECEIVE_COUNT_MAX", "SimpleConsumer"]


class ThreadChanges:
    """Condition of threads with coroutines that block."""

    def __init__(self) -> None:
        self.lock = Condition()
        self.notify_all = self.lock.notify_all

    async def __aenter__(self) -> None:
        self.lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.lock.release()

    async def holds(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        return self.lock.wait_for(is_so, timeout_s)


@names_checked
class SimpleConsumer(ClientMember, ReceiveWork[Delivery]):
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

    _changed: ThreadChanges

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
            group, hold, invisible_s, orderly, begin, max_reconsume_times, highest_queue_first
        )
        super().__init__(group, namesrv, instance_name, client_ip, credentials, tls)
        self._join(self._client, terms, begin, auto_extend)
        self._changed = ThreadChanges()
        self._waiter = Waiter(self._client)
        self._acks = AckGathering(lambda some: self._waiter.run(self._flows.ack_all(some)))
        self._spans = spans_of(self.client_id)
        self._spare: list[Delivery] = []
        """Messages of a late answer, beyond the number that the next receive asked for."""

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
        self._subscribe(topic, expression, sql)

    def unsubscribe(self, topic: str) -> None:
        """Receive no more from `topic`; what is held stays so. Raises MessageIllegal."""
        self._unsubscribe(topic)

    def receive(
        self, count_max: int = RECEIVE_COUNT_MAX, wait_ms: float = WAIT_MS
    ) -> list[Delivery]:
        """Return up to `count_max` messages, 32 at most; none after `wait_ms` without any.

        Settle each of them. Any number of threads may wait. An unreachable broker is logged and
        asked again. A stop ends the wait. Raises BrokerError if all brokers refuse, NotSupported if
        they are too old, ClientError without a subscription, and ClientClosed.
        """
        self._check_receive(count_max, wait_ms)
        with self._changed.lock:
            spare = [each for each in self._spare if not each.is_settled]  # by a stop
            found, self._spare = spare[:count_max], spare[count_max:]
        if found:
            return found
        deliveries = finished(self._received(count_max, wait_ms))
        with self._changed.lock:
            self._spare += deliveries[count_max:]
        return deliveries[:count_max]

    def wait(self, wait_ms: float = NOTIFIED_MS_MAX) -> bool:
        """Wait for messages, a second at most, without receiving any; return whether there are any.

        Another consumer may receive them first. Raises as `receive`.
        """
        self.check_running()
        check_range(wait_ms, 0, MS_MAX, "wait_ms")
        flow = self._flows.wait(self._subscriptions, wait_ms)
        try:
            return bool(self._spare) or self._waiter.run(flow)
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
            with self._changed.lock:
                self._spare[:0] = rest

    # --- settling

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle messages as consumed, with one request for each broker.

            consumer.ack(consumer.receive())

        Raises DeliverySettled, without a request, if one of them is settled already;
        DeliveryExpired if the broker says that it no longer holds one, after the others are
        acknowledged; and other ClientErrors, after which the rest can be settled again. Brokers
        answer a request for several without saying which of them they no longer hold.
        """
        self.check_running()
        finished(self._acking(deliveries))

    def retry(
        self,
        delivery: Delivery,
        delay_level: int = RISING_DELAY,
        *,
        seconds: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, as `Delivery.retry`. Raises as `ack`."""
        finished(self._retrying(delivery, delay_level, seconds, reason))

    def extend(self, delivery: Delivery, seconds: float | timedelta) -> None:
        """Keep a message, as `Delivery.extend`. Raises as `ack`."""
        finished(self._extending(delivery, seconds))

    def _connection_lost(self, address: str) -> None:
        """Have the next connection hold what this one held; on the I/O thread."""
        flow = self._reclaimer.lose(self._client.routes.name_of(address))
        if flow is not None:
            Thread(target=self._reclaim, args=(flow,), name="troupemq-reclaim", daemon=True).start()

    def _reclaim(self, flow: Flow[None]) -> None:
        with suppress(ClientClosed):
            self._waiter.run(flow)

    # --- within

    def _delivery(self, receipt: Receipt, span: "DeliverySpan | None") -> Delivery:
        return Delivery(self, receipt, span)

    async def _run(self, flow: Flow[Value]) -> Value:
        return self._waiter.run(flow)

    async def _ack_at(self, broker_name: str, receipts: Sequence[Receipt]) -> Collection[Receipt]:
        return self._acks.ack(broker_name, receipts)

    def _begin(self) -> None:
        self._started_at_ms = now_ms()
        self._client.remoting.on_lost = self._connection_lost
        if self.auto_extend:
            interval_ms = self.invisible_s * 1000 / EXTENSIONS
            every = self._client.housekeeping.every
            every(interval_ms, self._extend_all, first_ms=interval_ms)

    def _extend_all(self) -> None:
        finished(self._extend_due())

    def _work(self) -> Work:
        return {"settlements": self._settling}

    def _finish(self, deadline_s: float) -> None:
        returned = finished(self._take_back(seconds_to(deadline_s)))
        self._waiter.stop()
        timeout_ms = 1000 * max(LAST_TIMEOUT_S, seconds_to(deadline_s))
        finished(self._give_back(returned, timeout_ms))
