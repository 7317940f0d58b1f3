"""What a listening port serves: which actor takes which request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.engine.address import Address
from protocol.frame import FRAME_BYTES_MAX


@dataclass(frozen=True)
class Service:
    """What a listening port serves: request code → address, and what happens to the rest."""

    routes: Mapping[int, Address]
    sends_to: Address | None = None
    """Who takes sends; None where they are not served (the name server)."""

    answer_unknown: bool = True
    """Whether an unknown code is answered (a broker does, a name server stays silent)."""

    is_fast: bool = False
    """Whether it is a broker's fast port, where clients with vipChannelEnabled bring their offsets
    over another connection than that of their heartbeats."""

    tell_closed: Sequence[Address] = field(default_factory=tuple)
    answers_to: Address | None = None
    """Who takes the answers of clients; None where clients are never asked."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    cure: str = ""
    """What its operator can do about a longer one."""
