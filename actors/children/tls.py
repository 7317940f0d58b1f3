"""Construction of the actors that negotiate TLS on listening ports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.network.limits import ConnectionSlots
from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import DISABLED, PERMISSIVE


@dataclass(frozen=True)
class TlsPortSpec:
    """TLS mode of a port, and the receiver of its connections."""

    name: str
    to: ActorAddress
    mode: str
    places: ConnectionSlots | None = None
    """Slots taken before the negotiation; None: the receiver takes them."""
    may_come: Callable[[str], bool] = lambda _: True

    def leads_to(self, system: System) -> ActorAddress:
        return self.to if self.mode == DISABLED else system.address(self.name)


def door_children(
    system: System, contexts: TlsContexts | None, doors: Sequence[TlsPortSpec], handshakes: str
) -> list[ChildSpec]:
    """Return the children that negotiate TLS, to be started before the acceptors."""
    if contexts is None:
        return []
    from actors.network.tls_negotiator import Handshakes

    return [
        ChildSpec(handshakes, lambda _: Handshakes(contexts)),
        *(_entrance(system, contexts, door, handshakes) for door in doors if door.mode != DISABLED),
    ]


def _entrance(
    system: System, contexts: TlsContexts, door: TlsPortSpec, handshakes: str
) -> ChildSpec:
    from actors.network.tls_negotiator import TlsNegotiator

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
