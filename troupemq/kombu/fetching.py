"""Threads that receive tasks for a channel, and one that settles them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Event, Lock, Thread
from time import monotonic, time_ns

from troupemq.client.consuming.listener import DEAD_LETTER
from troupemq.client.errors import ClientClosed, ClientError
from troupemq.client.log import client_logger
from troupemq.client.receiving.delivery import Delivery, Settler
from troupemq.client.receiving.flows import is_passing
from troupemq.client.receiving.simple_consumer import RECEIVE_COUNT_MAX, SimpleConsumer
from troupemq.kombu.envelope import Payload, decode, is_expired, mark_redelivered, waits_in_broker

log = client_logger(__name__)

WAIT_MS = 15_000
JOIN_S = 5.0
REST_S, REST_S_MAX = 1.0, 10.0
"""Pause after a refused receive, or a settlement that failed; it doubles with each further one."""

DeadLetter = tuple[Delivery, str | None]
"""A delivery with the reason of its end."""


@dataclass
class Demand:
    """Time until which messages are wanted: without end in a hub, else to the end of a drain."""

    until_s: float = 0.0

    def left_ms(self) -> float:
        return min(WAIT_MS, (self.until_s - monotonic()) * 1000)


class SettlingThread:
    """Thread that acknowledges, so that the tasks' thread never waits for a broker.

    A broker that stalls may hold a message for days, as long as the connection lives. So what could
    not be settled is tried again, or finished tasks would run once more after the worker's stop.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._acks: list[Delivery] = []
        self._dead: list[DeadLetter] = []
        self._is_busy = self._is_stopped = False
        self._thread = Thread(target=self._run, name="troupemq-kombu-settle", daemon=True)
        self._thread.start()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self._acks += deliveries
            self._changed.notify_all()

    def dead_letter(self, delivery: Delivery, reason: str | None = None) -> None:
        with self._changed:
            self._dead.append((delivery, reason))
            self._changed.notify_all()

    def flush(self, timeout_s: float = JOIN_S) -> None:
        """Wait until all is settled."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._acks or self._dead or self._is_busy), timeout_s
            )

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        acks: list[Delivery] = []
        dead: list[DeadLetter] = []
        rest_s = REST_S
        while True:
            with self._changed:
                self._is_busy = bool(acks or dead)
                rest_s = min(2 * rest_s, REST_S_MAX) if self._is_busy else REST_S / 2
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._acks or self._dead or self._is_stopped,
                    rest_s if self._is_busy else None,
                )
                if self._is_stopped and not (self._acks or self._dead):
                    return
                acks, self._acks = acks + self._acks, []
                dead, self._dead = dead + self._dead, []
                self._is_busy = True
            by_broker: dict[tuple[Settler, str], list[Delivery]] = {}
            for each in acks:
                by_broker.setdefault((each.consumer, each.receipt.broker_name), []).append(each)
            acks = []
            for (consumer, _), several in by_broker.items():
                if not _is_over(partial(consumer.ack, several)):
                    acks += [each for each in several if not each.is_settled]
            dead = [
                (delivery, reason)
                for delivery, reason in dead
                if not _is_over(partial(delivery.retry, DEAD_LETTER, reason=reason))
            ]


def _is_over(settle: Callable[[], None]) -> bool:
    """Settle; return False if that may succeed later."""
    try:
        settle()
    except ClientError as error:
        log.warning("tasks not settled", error=str(error))
        return not is_passing(error)
    return True


class Fetcher:
    """One queue of a channel: a consumer, and the thread that receives from it."""

    def __init__(
        self,
        queue: str,
        consumer: SimpleConsumer,
        *,
        changed: Condition,
        demand: Demand,
        room: Callable[[], int],
        is_alone: Callable[[], bool],
        taking: Lock,
        settler: SettlingThread,
        put: Callable[[str, Payload], None],
        ready: Callable[[str, list[tuple[Payload, Delivery]]], None],
    ) -> None:
        """Start the consumer, but receive nothing before `resume`.

        * `changed`: condition of `room` and `demand`.
        * `room`: messages that the channel may take now.
        * `is_alone`: whether no other queue shares the room.
        * `taking`: lock for the time between `room` and its use.
        * `put`: stores a message in the queue.
        * `ready`: takes the messages.
        """
        self.queue, self.consumer = queue, consumer
        self.ttl_ms: float | None = None
        self.is_active = False
        self._changed, self._demand, self._room = changed, demand, room
        self._is_alone, self._taking, self._settler = is_alone, taking, settler
        self._put, self._ready = put, ready
        self._stopping = Event()
        self._giving = Lock()
        """Held from the decision to send a message again until its acknowledgement is in line."""
        self._thread: Thread | None = None
        consumer.start()

    def resume(self) -> None:
        with self._changed:
            self.is_active = True
            self._changed.notify_all()
        if self._thread is None:
            name = f"troupemq-kombu-{self.queue}"
            self._thread = Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def pause(self) -> None:
        with self._changed:
            self.is_active = False

    def end(self) -> None:
        """Receive no more, and wait for a message that is being sent again."""
        with self._giving, self._changed:
            self.is_active = False
            self._stopping.set()
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop the consumer, which gives back what is not settled, and the thread; after `end`."""
        self.consumer.stop()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def get(self, count: int, wait_ms: float) -> list[tuple[Payload, Delivery]]:
        """Receive on this thread. Raises ClientError."""
        deliveries = self.consumer.receive(count, wait_ms)
        with self._giving:
            return [] if self._stopping.is_set() else self._wanted(deliveries)

    def _may_receive(self) -> bool:
        is_wanted = self.is_active and self._demand.left_ms() > 0 and self._room() > 0
        return is_wanted or self._stopping.is_set()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_receive)
            if self._stopping.is_set():
                return
            try:
                self._receive()
            except ClientClosed:
                return
            except ClientError as error:
                log.warning("tasks not received", queue=self.queue, error=str(error))
                self._stopping.wait(REST_S)

    def _receive(self) -> None:
        wait_ms = max(0.0, self._demand.left_ms())
        if self._is_alone():
            self._fill(wait_ms)
        elif self.consumer.wait(wait_ms):
            with self._taking:  # other queues fill the same room
                self._fill(0.0)

    def _fill(self, wait_ms: float) -> None:
        count = min(self._room(), RECEIVE_COUNT_MAX)
        found = self.get(count, wait_ms) if count > 0 and self.is_active else []
        if not found:
            return
        with self._changed:  # which a cancellation holds while it removes messages
            if self.is_active:
                self._ready(self.queue, found)
                return
        self.give_back(found)

    def _wanted(self, deliveries: Sequence[Delivery]) -> list[tuple[Payload, Delivery]]:
        """Return the messages to deliver now; settle the others."""
        found, over = [], []
        now_ms = time_ns() // 1_000_000
        for delivery in deliveries:
            view = delivery.message
            try:
                payload = decode(view.body)
            except ValueError as error:
                log.warning("message not understood", id=view.message_id, error=str(error))
                self._settler.dead_letter(delivery, str(error))
                continue
            is_over = is_expired(view, payload, self.ttl_ms, now_ms)
            if is_over or self._goes_back(payload, max(now_ms, view.store_timestamp_ms)):
                over.append(delivery)
            else:
                if view.reconsume_times:
                    mark_redelivered(payload)
                found.append((payload, delivery))
        if over:
            self._settler.ack(over)
        return found

    def _goes_back(self, payload: Payload, now_ms: int) -> bool:
        """Store a task that is due much later again; return whether that was so.

        While brokers refuse, the worker holds the task until it is due.
        """
        if waits_in_broker(payload, now_ms) is None:
            return False
        try:
            self._put(self.queue, payload)
        except ClientError as error:
            log.warning("tasks not given back", queue=self.queue, error=str(error))
            return False
        return True

    def give_back(self, messages: Sequence[tuple[Payload, Delivery]]) -> None:
        """Store messages again at the end of their queue; that does not count as a retry.

        A consumer that stops gives them back itself: then there would be two of them.
        """
        with self._giving:
            given = []
            try:
                for payload, delivery in messages if not self._stopping.is_set() else ():
                    self._put(self.queue, payload)
                    given.append(delivery)
            except ClientError as error:  # their consumer gives them back when it stops
                log.warning("tasks not given back", queue=self.queue, error=str(error))
            self._settler.ack(given)
