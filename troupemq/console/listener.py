"""The listening socket of the console: ends connections that begin a handshake of TLS and no more.

Uvicorn counts a connection when it is there, which with TLS is after the handshake. Those before
it are counted here: PENDING_MAX at once, the rest is closed, and each has HANDSHAKE_S.
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
    """Listens for one server. `accept` and `begun` on its loop, `end_late` on any thread.

    Raises PortTaken from `listening`.
    """

    def __init__(self, family: int, fileno: int) -> None:
        super().__init__(family, fileno=fileno)
        self.clock: Callable[[], float] = monotonic
        self.has_tls = False
        """What is accepted speaks TLS and nothing else."""
        self._pending: dict[int, tuple[socket, float]] = {}

    @classmethod
    def listening(cls, host: str, port: int) -> "PatientListener":
        """At that place; port 0: a free one."""
        try:
            bound = bound_to(without_brackets(host), port)
        except (OSError, UnicodeError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "nobody knows this host"
            raise PortTaken(
                f"The console cannot listen at {host_port(host, port)}: {reason}."
            ) from None
        return cls(bound.family, fileno=bound.detach())

    def accept(self) -> tuple[socket, Any]:
        """The next one; raises BlockingIOError where there is none, or one too many."""
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
        """The connection with this file number is through with its handshake, or has none."""
        self._pending.pop(number, None)

    def end_late(self) -> None:
        """Ends those that are at it for too long; forgets those that are gone."""
        now_s = self.clock()
        for number, (taken, since_s) in list(self._pending.items()):
            if taken.fileno() != number:
                if self._pending.get(number, (None,))[0] is taken:
                    self._pending.pop(number, None)
            elif now_s - since_s > HANDSHAKE_S:
                with suppress(OSError):
                    taken.shutdown(SHUT_RDWR)
