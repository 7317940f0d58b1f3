"""Messages about delay offsets, in the order of a conversation."""

from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from protocol.bodies import DelayOffsetTable


@dataclass(slots=True)
class GetDelayOffset(Message):
    """Request for a delay level's offset; DelayOffsetReply answers it."""

    level: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Answer that the table has stopped."""
        self.reply_to.tell(DelayOffsetReply(None))


@dataclass(slots=True)
class DelayOffsetReply:
    """Answer to GetDelayOffset; None if the table could not answer: ask again."""

    offset: int | None
    is_known: bool = True
    """Whether the table has an offset for the level."""


@dataclass(slots=True)
class Delivered:
    """Report that a level is delivered below `next_offset`.

    The last copy ends at `end` of the log.
    """

    level: int
    next_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class TakeDelayOffsets:
    """The master's table, and its text, which becomes a slave's file."""

    table: DelayOffsetTable
    text: str
