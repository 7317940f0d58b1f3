"""Messages about delay offsets, in the order of a conversation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from protocol.bodies_tables import DelayOffsetTable
from storage.tables.ahead_set import AheadSet


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
    ahead: AheadSet = field(default_factory=AheadSet)
    """Queue offsets behind it that are done, too."""


@dataclass(slots=True)
class Delivered:
    """Report that a level is delivered below `next_offset`, and so are the offsets in `ahead`.

    The last copy ends at `end` of the log.
    """

    level: int
    next_offset: int
    end: int
    begin: int = 0
    """Offset of the log from which on its copies are; used if `end` is above 0."""
    ahead: Sequence[int] = ()
    is_urgent: bool = False
    """Whether to save soon: a crash before it would deliver timers again."""
    then: Callable[[str], None] | None = None
    """Called with an empty text once this is saved, else with the reason."""


@dataclass(frozen=True, slots=True)
class TimersBegin:
    """Report that a level has timers; from now on their copies are looked for at a start."""


@dataclass(slots=True)
class ScanTimers(Message):
    """Request to find the timers among these units; TimersFound answers."""

    units: bytes
    first: int
    """Queue offset of the first unit."""
    run: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Ask again: the search was restarted."""
        self.reply_to.tell(TimersFound((), self.first, self.run))


@dataclass(slots=True)
class TimersFound:
    """Timers of a part of a level: due time in ms, queue offset, time of their turn in ms."""

    timers: Sequence[tuple[int, int, int]]
    next_offset: int
    """Queue offset from which the search goes on."""
    run: int
    """Number of the search, as in ScanTimers."""


@dataclass(frozen=True, slots=True)
class TakeDelayOffsets:
    """The master's table, and its text, which becomes a slave's file."""

    table: DelayOffsetTable
    text: str
    ahead: dict[int, AheadSet]
    """Delivered messages of the table; they belong to the receiver."""


@dataclass(slots=True)
class CancelTimer(Message):
    """Request to a delay level not to deliver the timer at this queue offset.

    TimerCancelled answers, once that is on the disk.
    """

    queue_offset: int
    token: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Answer that it is not cancelled: the level has stopped."""
        self.reply_to.tell(TimerCancelled(self.token, False))


@dataclass(slots=True)
class TimerCancelled:
    """Answer to CancelTimer."""

    token: int
    is_cancelled: bool
    """Whether the timer waited and is not delivered."""
