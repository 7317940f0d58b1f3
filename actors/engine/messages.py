"""Messages that every actor may get or cause, in the order of its life."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol


class ChildAddress(Protocol):
    """The ActorAddress of a child; naming that class would close a circle of imports."""

    name: str
    incarnation: int


class Message:
    """Message, or context that travels with one, that must learn that it will not be handled."""

    __slots__ = ()

    def on_undelivered(self, remark: str) -> None:
        """Report that no actor will handle the message. Called at most once, in any thread."""


@dataclass(frozen=True, slots=True)
class Started:
    """Report to the parent: `on_start` has returned, the actor handles its messages now."""

    address: ChildAddress
    incarnation: int


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """End of a batch, sent after its last message to actors that handle it."""


BATCH_END: Final = BatchEnd()


@dataclass(frozen=True, slots=True)
class AskFigures(Message):
    """Request for an actor's figures: `reply` gets a frozen object, or None on a failure.

    The actor's thread calls `reply`.
    """

    reply: Callable[[object], None]

    def on_undelivered(self, remark: str) -> None:
        self.reply(None)


@dataclass(frozen=True, slots=True)
class Drain:
    """Request to prepare for the end of the system: `on_drain` is called."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to finish and end, handled after the messages that already wait."""

    at_once: bool = False
    """End with unfinished work: the deadline has passed."""
    incarnation: int | None = None
    """Incarnation to stop, so that a late Stop does not reach a restarted actor; None: any."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Report to the parent: the actor has ended; `failure` is None if it stopped as asked."""

    address: ChildAddress
    incarnation: int
    failure: BaseException | None = None
    message_type: type | None = None
    """Type of the message on which it failed; None for on_start, on_stop and sockets."""
    serves_peer: bool = False
    """Whether that message carried a peer's request or answer."""

    @property
    def name(self) -> str:
        return self.address.name
