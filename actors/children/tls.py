"""The making of the actors at the door of ports that speak TLS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.network.handshakes import Handshakes
from actors.network.limits import ConnectionSlots
from actors.network.tls_contexts import TlsContexts
from actors.network.tls_negotiator import TlsNegotiator
from actors.settings.tls_settings import DISABLED, PERMISSIVE


@dataclass(frozen=True)
class TlsPortSpec:
    """A port's: who takes its connections, and whether they may or must speak TLS."""

    name: str
    """Of the actor at it."""
    to: ActorAddress
    mode: str
    places: ConnectionSlots | None = None
    """Taken before the door; None: they are not counted there."""
    may_come: Callable[[str], bool] = lambda _: True
    """Asked with an address."""

    def leads_to(self, system: System) -> ActorAddress:
        """Whom an acceptor tells."""
        return self.to if self.mode == DISABLED else system.address(self.name)


def door_children(
    system: System, contexts: TlsContexts | None, doors: Sequence[TlsPortSpec], handshakes: str
) -> list[ChildSpec]:
    """Started before the acceptors; none where nothing speaks TLS."""
    if contexts is None:
        return []
    return [
        ChildSpec(handshakes, lambda _: Handshakes(contexts)),
        *(_entrance(system, contexts, door, handshakes) for door in doors if door.mode != DISABLED),
    ]


def _entrance(
    system: System, contexts: TlsContexts, door: TlsPortSpec, handshakes: str
) -> ChildSpec:
    takes_plain = door.mode == PERMISSIVE
    return ChildSpec(
        door.name,
        lambda _: TlsNegotiator(
            door.to,
            system.address(handshakes),
            takes_plain=takes_plain,
            results=contexts.handshakes,
            places=door.places,
            may_come=door.may_come,
        ),
    )
