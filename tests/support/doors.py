"""A port with TLS on the virtual clock, and the clients that connect to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import EPOLLIN, EPOLLOUT
from socket import SHUT_WR, socket, socketpair
from ssl import MemoryBIO, SSLObject, SSLWantReadError
from typing import Any

from actors.engine.actor_address import ActorAddress
from actors.engine.supervisor import ChildSpec
from actors.network.connections import Accepted
from actors.network.request import Service
from actors.network.tls_contexts import TlsContexts
from actors.network.tls_negotiator import Handshakes, TlsNegotiator
from actors.settings.tls_settings import TlsSettings
from tests.support.certificates import Certificates
from tests.support.peers import Told, simulated
from troupemq.testing.simulation import SimulatedSystem

HELLO = bytes.fromhex("16030100050100000100")
"""The beginning of a handshake that never goes on."""


class Door:
    """A TlsNegotiator and its clients."""

    def __init__(
        self,
        system: SimulatedSystem,
        contexts: TlsContexts,
        *,
        handshakes: ActorAddress | None,
        **of_entrance: Any,
    ) -> None:
        self.system, self.contexts = system, contexts
        self.inside = Told("inside")
        self._ends: list[socket] = []
        self.entrances: list[TlsNegotiator] = []
        to = handshakes or system.address("handshakes")

        def make(_: Any) -> TlsNegotiator:
            self.entrances.append(TlsNegotiator(self.inside.address, to, **of_entrance))
            return self.entrances[-1]

        system.start(
            ChildSpec("handshakes", lambda _: Handshakes(contexts)), ChildSpec("entrance", make)
        )

    @property
    def entrance(self) -> TlsNegotiator:
        return self.entrances[-1]

    def comes(self, host: str = "192.0.2.7", *, says: bytes = b"") -> "Guest":
        """Connect a client."""
        near, far = socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self._ends += near, far
        guest = Guest(self, near, far)
        accepted = Accepted(far, (host, 40_000 + len(self._ends)), Service({}))
        self.system.address("entrance").tell(accepted)
        self.system.drain()
        if says:
            guest.says(says)
        return guest

    def let_in(self) -> list[Accepted]:
        return self.inside.take()

    def close(self) -> None:
        for each in self._ends:
            each.close()


class Guest:
    def __init__(self, door: Door, near: socket, far: socket) -> None:
        self._door = door
        self._near = near
        self._far = far.fileno()

    def says(self, data: bytes) -> None:
        self._near.send(data)
        self.is_seen()

    def leaves(self) -> None:
        self._near.shutdown(SHUT_WR)
        self.is_seen()

    def is_seen(self) -> None:
        self._door.system.loop.make_ready(_Fd(self._far), EPOLLIN | EPOLLOUT)
        self._door.system.drain()

    def hears(self) -> bytes | None:
        """Return the received bytes; None once the connection is closed."""
        try:
            return self._near.recv(1 << 18) or None
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            return None

    @property
    def is_out(self) -> bool:
        return self.hears() is None

    def shakes(self, end: SSLObject, incoming: MemoryBIO, outgoing: MemoryBIO) -> None:
        while True:
            try:
                end.do_handshake()
                over = True
            except SSLWantReadError:
                over = False
            self.says(outgoing.read())
            if over:
                return
            incoming.write(self.hears() or b"")


class _Fd:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


@contextmanager
def door(
    folder: Path, *, handshakes: ActorAddress | None = None, **of_entrance: Any
) -> Iterator[Door]:
    """Make a port; `handshakes` replaces the Handshakes actor, the rest is for the negotiator."""
    files = Certificates(folder).files()
    settings = TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=files.key_path)
    with simulated() as system:
        made = Door(system, TlsContexts(settings), handshakes=handshakes, **of_entrance)
        try:
            yield made
        finally:
            made.close()
