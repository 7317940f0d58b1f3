"""A new connection as its acceptor sends it: the socket, and its connection slot."""

from dataclasses import dataclass
from socket import socket

from actors.engine.messages import Message
from actors.engine.rate_limited_log import RateLimitedLog
from actors.network.limits import ConnectionSlots
from actors.network.service import Service
from remoting.tls_socket import TlsSocket


@dataclass(slots=True)
class Accepted(Message):
    """A new socket for `service`, sent by an acceptor or a TlsNegotiator to the port's server."""

    sock: socket | TlsSocket
    remote: tuple[str, int]
    service: Service
    places: ConnectionSlots | None = None
    """Slots from which one was taken for it; the receiver keeps the slot or gives it back."""

    def takes_place(self, places: ConnectionSlots, rarely: RateLimitedLog) -> bool:
        """Return whether it has a slot or gets one; else close and log it."""
        if self.places is not None:
            return True
        host = self.remote[0]
        if (setting := places.take(host)) is not None:
            self.sock.close()
            rarely.warn(f"connection rejected: {setting} reached", address=host)
            return False
        self.places = places
        return True

    def give_back_place(self) -> None:
        """Give the slot back; later calls do nothing."""
        places, self.places = self.places, None
        if places is not None:
            places.leave(self.remote[0])

    def on_undelivered(self, _remark: str) -> None:
        self.sock.close()
        self.give_back_place()
