"""Delivery: one received message, which the application settles; gathering of acknowledgements."""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from threading import Condition
from typing import Protocol

from troupemq.client.consuming.listener import RISING_DELAY, RetryLater, reason_of
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView
from troupemq.client.receiving.receipt import Receipt

log = client_logger(__name__)


class DeliveryState(Enum):
    """State of a delivery; the values complete "the message … already"."""

    OPEN = "is not settled"
    BUSY = "is being settled"
    ACKED = "was acknowledged"
    RETRIED = "was given back for a retry"
    EXPIRED = "was delivered again or settled by another consumer"
    RETURNED = "was given back by the stop of its consumer"


class DeliveryBase:
    """A received message and how far its settlement is; base of both kinds of deliveries."""

    __slots__ = ("message", "receipt", "state")

    def __init__(self, receipt: Receipt) -> None:
        """Start open; a consumer creates deliveries."""
        self.receipt = receipt
        self.state = DeliveryState.OPEN
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


class Settler(Protocol):
    """The consumer of a delivery."""

    def ack(self, deliveries: "Sequence[Delivery]") -> None: ...

    def retry(
        self, delivery: "Delivery", delay_level: int, *, seconds: float | timedelta | None
    ) -> None: ...

    def extend(self, delivery: "Delivery", seconds: float | timedelta) -> None: ...


class Delivery(DeliveryBase):
    """A received message and its settlement; for any thread.

        for delivery in consumer.receive():
            with delivery:
                print(delivery.message.body)

    Settle each one: by `ack` or `retry`, or by a `with` block. The end of the block acknowledges.
    An exception in the block has the message delivered again, and is passed on; a RetryLater says
    when, and is not passed on. If the block cannot reach the broker, it logs a warning, for the
    message is then delivered again. The methods raise instead: DeliverySettled for a second
    settlement, DeliveryExpired if the broker says that it no longer holds the message, ClientClosed
    after the stop of the consumer, and other ClientErrors.
    """

    __slots__ = ("consumer",)

    def __init__(self, consumer: Settler, receipt: Receipt) -> None:
        """Start open; SimpleConsumer creates deliveries."""
        super().__init__(receipt)
        self.consumer = consumer

    def ack(self) -> None:
        """Settle the message as consumed, and return when the broker has confirmed it."""
        self.consumer.ack([self])

    def retry(
        self, delay_level: int = RISING_DELAY, *, seconds: float | timedelta | None = None
    ) -> None:
        """Give the message back, to be delivered again later.

        * `delay_level`: level of the broker, or DEAD_LETTER. [default: rising with each retry]
        * `seconds`: delay instead of a level.
        """
        self.consumer.retry(self, delay_level, seconds=seconds)

    def extend(self, seconds: float | timedelta) -> None:
        """Keep the message for `seconds` from now; does nothing if its connection holds it."""
        self.consumer.extend(self, seconds)

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        is_asked = isinstance(error, RetryLater)
        try:
            if not self.is_settled:
                self._settle(error)
        except ClientError as failure:
            log.warning("delivery not settled", id=self.message.message_id, error=str(failure))
        return is_asked

    def _settle(self, error: BaseException | None) -> None:
        if error is None:
            self.ack()
            return
        log.warning("delivery failed", id=self.message.message_id, reason=reason_of(error))
        if isinstance(error, RetryLater):
            self.retry(error.delay_level, seconds=error.seconds)
        else:
            self.retry()


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
