"""A new connection, as an acceptor tells of it: its socket, and the place that it may have."""

from dataclasses import dataclass
from socket import socket

from actors.engine.rate_limited_log import RateLimitedLog
from actors.network.limits import ConnectionSlots
from actors.network.service import Service
from remoting.tls_socket import TlsSocket


@dataclass(slots=True)
class Accepted:
    """A new socket for this service."""

    sock: socket | TlsSocket
    remote: tuple[str, int]
    service: Service
    places: ConnectionSlots | None = None
    """Where one was taken for it; whoever has this message gives it back, or keeps it."""

    def takes_place(self, places: ConnectionSlots, rarely: RateLimitedLog) -> bool:
        """Whether it has one, or there is one left; else it is closed, and told of."""
        if self.places is not None:
            return True
        host = self.remote[0]
        if (setting := places.take(host)) is not None:
            self.sock.close()
            rarely.warn(f"too many connections: {setting}", address=host)
            return False
        self.places = places
        return True

    def give_back_place(self) -> None:
        """Once."""
        places, self.places = self.places, None
        if places is not None:
            places.leave(self.remote[0])

    def refuse(self, _remark: str) -> None:
        """It is turned away, or whoever should have taken it is gone."""
        self.sock.close()
        self.give_back_place()
