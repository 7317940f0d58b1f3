"""Messages to Receipts."""

from dataclasses import dataclass

from actors.engine.messages import Message
from actors.network.messages import Request
from actors.receipts.held_receives import HeldReceive


@dataclass(frozen=True, slots=True)
class ReceiptsTick:
    """Timer tick: look for deadlines."""


@dataclass(frozen=True, slots=True)
class ExpireMore:
    """Return more of the messages past their deadline."""


@dataclass(frozen=True, slots=True)
class WakeMore:
    """Process more of the woken receives."""


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """Report that a client has signed off from a group: it processes nothing more."""

    peer_id: int
    group: str


@dataclass(slots=True)
class ReceiveAgain(Message):
    """Request to process a receive again, after a cold read or a compilation."""

    request: Request
    receive: HeldReceive | None = None
    """The checked receive; None if it has to be checked first."""

    def refuse(self, remark: str) -> None:
        self.request.refuse(remark)

    def on_undelivered(self, remark: str) -> None:
        self.refuse(remark)
