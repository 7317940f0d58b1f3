"""Listening socket of the console, with limits for TLS handshakes.

Uvicorn counts a connection after its TLS handshake only. This socket limits those before it:
PENDING_MAX at once, HANDSHAKE_S each; it closes the others.
"""

from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from time import monotonic
from typing import Any

from actors.network.bind_address import bound_to
from actors.network.connections import PortTaken
from protocol.host import host_port, without_brackets
from storage.errors import reason_of
from troupemq.console.watched_socket import WatchedSocket

HANDSHAKE_S = 10.0
PENDING_MAX = 256


class PatientListener(socket):
    """Listening socket of one server.

    `accept` and `begun` run on the server's event loop, `end_late` on any thread.
    """

    def __init__(self, family: int, fileno: int) -> None:
        super().__init__(family, fileno=fileno)
        self.clock: Callable[[], float] = monotonic
        self.has_tls = False
        """Accepted connections must speak TLS."""
        self._pending: dict[int, tuple[socket, float]] = {}

    @classmethod
    def listening(cls, host: str, port: int) -> "PatientListener":
        """Listen at a port, 0 for a free one. Raises PortTaken."""
        try:
            bound = bound_to(without_brackets(host), port)
        except (OSError, UnicodeError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "unknown host"
            raise PortTaken(
                f"The console cannot listen at {host_port(host, port)}: {reason}."
            ) from None
        return cls(bound.family, fileno=bound.detach())

    def accept(self) -> tuple[socket, Any]:
        """Accept a connection; raise BlockingIOError without one or at the limit."""
        taken, address = super().accept()
        if len(self._pending) >= PENDING_MAX:
            self.end_late()
            if len(self._pending) >= PENDING_MAX:
                taken.close()
                raise BlockingIOError
        if self.has_tls:
            taken = WatchedSocket(taken)
        self._pending[taken.fileno()] = taken, self.clock()
        return taken, address

    def begun(self, number: int) -> None:
        """Release the slot of a connection after its handshake, by its file number."""
        self._pending.pop(number, None)

    def end_late(self) -> None:
        """Close connections past HANDSHAKE_S, and drop closed ones."""
        now_s = self.clock()
        for number, (taken, since_s) in list(self._pending.items()):
            if taken.fileno() != number:
                if self._pending.get(number, (None,))[0] is taken:
                    self._pending.pop(number, None)
            elif now_s - since_s > HANDSHAKE_S:
                with suppress(OSError):
                    taken.shutdown(SHUT_RDWR)
