"""Messages of the pulling actors: held pulls, and reads of cold pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from actors.access.grant import Grant
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.messages import Peer, Request
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageHeader
from storage.queues.message_filter import MessageFilter
from storage.reading.page_probe import ColdPart

NEVER = 1 << 63
"""Offset above every queue offset: no new message wakes the pull."""

Origin: TypeAlias = tuple[int, int, int, int, int]
"""Code, flag, language, version and serialisation of a command."""


@dataclass(slots=True, eq=False)
class Hold(Message):
    """Request to hold this pull until its queue has messages beyond `offset`."""

    peer: Peer
    header: PullMessageHeader
    queue: tuple[bytes, int]
    """Topic and queue id."""
    offset: int
    """NEVER if its first message is in doubt and must be verified."""
    wanted: MessageFilter | None
    """Filter of the messages that wake it; None for all."""
    deadline_ms: float
    """Monotonic time, ms."""
    opaque: int
    origin: Origin
    seen_as: object
    grant: Grant | None

    def request(self) -> Request:
        """Return the request as received; its fields are in the header."""
        code, flag, language, version, kind = self.origin
        command = RemotingCommand(
            code, None, None, self.opaque, flag, None, language, version, kind
        )
        return Request(command, self.peer, self.seen_as, self.header, self.grant)

    @property
    def is_doubtful(self) -> bool:
        """Whether it waits for the scrubber instead of a message."""
        return self.offset == NEVER

    def on_undelivered(self, remark: str) -> None:
        self.request().refuse(remark)


@dataclass(slots=True)
class Woken(Message):
    """Request to process a held pull again."""

    hold: Hold
    is_verified: bool = False
    """Whether its doubtful unit has been verified."""
    is_over: bool = False
    """Whether its deadline has passed: it is answered even if a unit is in doubt."""

    def on_undelivered(self, remark: str) -> None:
        self.hold.on_undelivered(remark)


@dataclass(frozen=True, slots=True)
class HoldFigures:
    """Figures of PullHold."""

    held: int = 0
    """Number of held pulls."""


@dataclass(slots=True)
class BarrierForHolds:
    """Request to answer LastAnswered after all pulls woken before."""


@dataclass(slots=True)
class LastAnswered:
    """Report that no held pull is unanswered."""


@dataclass(slots=True)
class ReadCold(Message):
    """Request to read these parts of files, then send `then` to `reply_to`.

    If the read fails, `then` is refused.
    """

    parts: Sequence[ColdPart]
    then: Message
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        """Refuse `then`: the reader has stopped."""
        self.then.on_undelivered(remark)
