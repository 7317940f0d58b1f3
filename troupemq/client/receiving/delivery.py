"""Delivery: one received message, which the application settles; gathering of acknowledgements."""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from threading import Condition
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from troupemq.client.arguments import check_instance, check_integer, delay_milliseconds
from troupemq.client.connection.client import now_ms
from troupemq.client.consuming.listener import (
    DEAD_LETTER,
    DELAY_LEVEL_MAX,
    RISING_DELAY,
    RetryLater,
    reason_of,
)
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView
from troupemq.client.receiving.receipt import Receipt

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans, DeliverySpan

log = client_logger(__name__)

MESSAGE_MODEL = "CLUSTERING"


class DeliveryState(Enum):
    """State of a delivery; the values complete "the message … already"."""

    OPEN = "is not settled"
    BUSY = "is being settled"
    ACKED = "was acknowledged"
    RETRIED = "was given back for a retry"
    EXPIRED = "was delivered again or settled by another consumer"
    RETURNED = "was given back by the stop of its consumer"


def retry_delay_ms(
    delay_level: int, seconds: float | timedelta | None, reason: str | None
) -> int | None:
    """Return the delay of a retry that has no level. Raises ArgumentIllegal."""
    check_integer(delay_level, DEAD_LETTER, DELAY_LEVEL_MAX, "delay_level")
    if reason is not None:
        check_instance(reason, str, "the reason of a retry is a string")
    if seconds is None:
        return None
    if delay_level != RISING_DELAY:
        raise ArgumentIllegal("a retry has a delay_level or seconds, and not both")
    return delay_milliseconds(seconds, "seconds")


class Settler(Protocol):
    """The consumer of a delivery."""

    def ack(self, deliveries: "Sequence[Delivery]") -> None: ...

    def retry(
        self,
        delivery: "Delivery",
        delay_level: int,
        *,
        seconds: float | timedelta | None,
        reason: str | None,
    ) -> None: ...

    def extend(self, delivery: "Delivery", seconds: float | timedelta) -> None: ...


Consumer = TypeVar("Consumer")


class HeldMessage(Generic[Consumer]):
    """A received message, and what becomes of it; of a thread or of an event loop."""

    __slots__ = ("consumer", "message", "receipt", "received_ms", "span", "state")

    def __init__(
        self, consumer: Consumer, receipt: Receipt, span: "DeliverySpan | None" = None
    ) -> None:
        """Start open; SimpleConsumer creates deliveries."""
        self.consumer, self.receipt, self.span = consumer, receipt, span
        self.state = DeliveryState.OPEN
        self.received_ms = now_ms()
        self.message: MessageView = receipt.message
        """Message that was received."""

    def __repr__(self) -> str:
        return f"<Delivery of {self.message.message_id}: it {self.state.value}>"

    @property
    def is_settled(self) -> bool:
        """Whether it can no longer be settled."""
        return self.state not in (DeliveryState.OPEN, DeliveryState.BUSY)

    @property
    def holds_with_connection(self) -> bool:
        """Whether the broker keeps the message while the consumer's connection lives."""
        return self.receipt.expires_s is None

    def enter_span(self) -> None:
        """Begin the span of a block."""
        if self.span is not None:
            self.span.enter()

    def leave_span(self, error: BaseException | None) -> None:
        """End the block of a span; a RetryLater is no error."""
        if self.span is not None:
            self.span.leave(None if isinstance(error, RetryLater) else error)

    def end_span(self, failure: ClientError | None = None) -> None:
        """End the span of a message that is settled, or whose block could not settle it."""
        if self.span is None:
            return
        if failure is not None:
            self.span.end(type(failure).__name__, str(failure))
        elif self.state is DeliveryState.ACKED:
            self.span.end()
        else:
            self.span.end(_ERROR_TYPES[self.state], f"the message {self.state.value}")


_ERROR_TYPES = {
    DeliveryState.RETRIED: "retry_later",
    DeliveryState.EXPIRED: "expired",
    DeliveryState.RETURNED: "returned",
}


def delivery_spans(
    spans: "ClientSpans | None", group: str, receipts: Sequence[Receipt], begun_ns: int
) -> "Sequence[DeliverySpan | None]":
    """Record the span of a receive; return one for each of its messages, if there are spans."""
    if spans is None or not receipts:
        return [None] * len(receipts)
    views, model = [receipt.message for receipt in receipts], MESSAGE_MODEL.lower()
    spans.receive(group, views, model, begun_ns)
    return [spans.delivery(group, view, model) for view in views]


class Delivery(HeldMessage[Settler]):
    """A received message and its settlement; for any thread.

        for delivery in consumer.receive():
            with delivery:
                print(delivery.message.body)

    Settle each one: by `ack` or `retry`, or by a `with` block. The end of the block acknowledges.
    An exception in the block has the message delivered again, with its text as the reason, and is
    passed on; a RetryLater says when and why, and is not passed on. If the block cannot reach the
    broker, it logs a warning, for the message is then delivered again. The methods raise instead:
    DeliverySettled for a second settlement, DeliveryExpired if the broker says that it no longer
    holds the message, ClientClosed after the stop of the consumer, and other ClientErrors.
    """

    __slots__ = ()

    def ack(self) -> None:
        """Settle the message as consumed, and return when the broker has confirmed it."""
        self.consumer.ack([self])

    def retry(
        self,
        delay_level: int = RISING_DELAY,
        *,
        seconds: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        """Give the message back, to be delivered again later.

        * `delay_level`: level of the broker, or DEAD_LETTER. [default: rising with each retry]
        * `seconds`: delay instead of a level.
        * `reason`: text that TroupeMQ stores with the retry and the dead letter.
        """
        self.consumer.retry(self, delay_level, seconds=seconds, reason=reason)

    def extend(self, seconds: float | timedelta) -> None:
        """Keep the message for `seconds` from now; does nothing if its connection holds it."""
        self.consumer.extend(self, seconds)

    def __enter__(self) -> "Delivery":
        self.enter_span()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        self.leave_span(error)
        try:
            if not self.is_settled:
                self._settle(error)
        except ClientError as failure:
            log.warning("delivery not settled", id=self.message.message_id, error=str(failure))
            self.end_span(failure)
        return isinstance(error, RetryLater)

    def _settle(self, error: BaseException | None) -> None:
        if error is None:
            self.ack()
            return
        reason = reason_of(error)
        log.warning("delivery failed", id=self.message.message_id, reason=reason)
        if isinstance(error, RetryLater):
            self.retry(error.delay_level, seconds=error.seconds, reason=reason)
        else:
            self.retry(reason=reason)


@dataclass(eq=False)
class _Turn:
    """Acknowledgements of one call at one broker."""

    receipts: Sequence[Receipt]
    is_done: bool = False
    gone: Collection[Receipt] = ()
    error: ClientError | None = None


@dataclass
class _Queue:
    """Calls that wait for a broker, in order."""

    turns: list[_Turn] = field(default_factory=list)
    is_busy: bool = False


class AckGathering:
    """Joins the acknowledgements of threads: those that come while one is sent share the next.

    A single thread never waits for others.
    """

    def __init__(self, send: Callable[[Sequence[Receipt]], Collection[Receipt]]) -> None:
        """Take the function that settles receipts of one broker.

        It blocks, raises ClientError, and returns those that the broker does not hold.
        """
        self._send = send
        self._changed = Condition()
        self._queues: dict[str, _Queue] = {}

    def ack(self, broker_name: str, receipts: Sequence[Receipt]) -> Collection[Receipt]:
        """Settle receipts of one broker; return those it does not hold. Raises ClientError."""
        mine = _Turn(receipts)
        with self._changed:
            queue = self._queues.setdefault(broker_name, _Queue())
            queue.turns.append(mine)
            self._changed.wait_for(lambda: mine.is_done or not queue.is_busy)
            turns: list[_Turn] = []
            if not mine.is_done:
                turns, queue.turns = queue.turns, turns
                queue.is_busy = True
        if turns:
            try:
                self._send_all(turns)
            finally:
                with self._changed:
                    queue.is_busy = False
                    for turn in turns:
                        turn.is_done = True
                    self._changed.notify_all()
        if mine.error is not None:
            raise mine.error
        return [each for each in mine.receipts if each in mine.gone]

    def _send_all(self, turns: Sequence[_Turn]) -> None:
        try:
            gone = self._send([receipt for turn in turns for receipt in turn.receipts])
        except ClientError as error:
            for turn in turns:
                turn.error = copy(error)  # one each: notes and tracebacks are added
        except BaseException:  # such as Ctrl-C: the other threads must not take it for a success
            for turn in turns:
                turn.error = ClientError("the thread that sent the acknowledgement was interrupted")
            raise
        else:
            for turn in turns:
                turn.gone = gone
