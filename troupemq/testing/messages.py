"""Messages from a test to the Faults actor of its broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from actors.engine.actor_address import ActorAddress, Question
from actors.network.messages import Request, Sends


class Effect(Enum):
    """Effect of a fault on the requests that match it."""

    REFUSE = auto()
    """The broker answers with an error code and does nothing else."""
    LOSE = auto()
    """The request never arrives."""
    LOSE_ANSWER = auto()
    """The broker handles the request, and its answer never arrives."""
    DELAY = auto()
    """The request arrives later."""


@dataclass(eq=False, slots=True)
class InjectedFault:
    """Rule that the broker applies to matching requests, until `times` are hit or it is ended."""

    effect: Effect
    codes: frozenset[int] | None
    """Request codes; None for all."""
    times: int | None = None
    """Maximum number of hits; None for no limit."""
    code: int = 0
    """Response code of a refusal."""
    remark: str = ""
    delay_ms: float = 0.0
    hits: int = 0
    """Requests hit so far."""
    is_ended: bool = False

    def takes(self, code: int) -> bool:
        """Count and return whether the fault applies to a request with this code."""
        if self.is_ended or (self.codes is not None and code not in self.codes):
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class AddFault(Question):
    """Request to apply this fault from now on; answered with None."""

    fault: InjectedFault
    reply: Callable[[None], None]


@dataclass(slots=True)
class Forward:
    """Timer: pass a delayed request on."""

    message: Request | Sends
    to: ActorAddress


@dataclass(slots=True)
class CutConnections(Question):
    """Request to close all connections of clients; answered with their number."""

    reply: Callable[[int], None]


@dataclass(slots=True)
class MoveClock(Question):
    """Request to set the broker's clock forward; answered with None."""

    by_ms: float
    reply: Callable[[None], None] = field(repr=False)


@dataclass(slots=True)
class SetDiskFull(Question):
    """Request to let the disk look full, or free again; answered with None."""

    is_full: bool
    reply: Callable[[None], None] = field(repr=False)
