"""Listening socket of the console, with limits for TLS handshakes.

Uvicorn counts a connection after its TLS handshake only. This socket limits those before it:
PENDING_MAX at once, HANDSHAKE_S each; it closes the others.

WatchedSocket checks TLS records before OpenSSL reads them. Asyncio feeds OpenSSL on the event loop
of all connections. A second handshake, or endless key updates, would block that loop.
`remoting/tls_socket.py` also counts the contents of records; this class checks their headers only.

Header of a record: 1 byte type, 2 bytes version, 2 bytes length of the payload.
"""

from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from time import monotonic
from typing import Any

from actors.network.bind_address import bound_to
from actors.network.connections import PortTaken
from protocol.host import host_port, without_brackets
from remoting.tls_socket import HANDSHAKE_BYTES_MAX
from storage.errors import reason_of

FED_BYTES = 32 << 10
"""Limit of one read, so that other connections get their turn."""
SHORT_BYTES = 64
SHORT_RECORDS_MAX = 128
"""Limit of records below SHORT_BYTES, such as key updates.

Each KiB in longer records allows four more.
"""

_HEAD_BYTES = 5
_HANDSHAKE, _DATA = 22, 23


class WatchedSocket(socket):
    """Accepted connection; an unacceptable record raises OSError, which ends it."""

    def __init__(self, accepted: socket) -> None:
        """Take over the file descriptor of `accepted`, which is detached."""
        super().__init__(fileno=accepted.detach())
        self._head = b""
        self._left = 0
        """Bytes still to come of the current record."""
        self._shaken_bytes = 0
        self._is_shaken = False
        self._short_records = 0

    def recv_into(self, buffer: Any, *_: int) -> int:
        """Receive at most FED_BYTES; return their count."""
        size = super().recv_into(memoryview(buffer)[:FED_BYTES])
        self._look(bytes(memoryview(buffer)[:size]))
        return size

    def _look(self, data: bytes) -> None:
        at, size = self._left, len(data)
        while at < size:
            wanted = _HEAD_BYTES - len(self._head)
            self._head += data[at : at + wanted]
            if len(self._head) < _HEAD_BYTES:
                at = size
                break
            record_bytes = int.from_bytes(self._head[3:])
            self._note(self._head[0], record_bytes)
            self._head = b""
            at += wanted + record_bytes
        self._left = at - size

    def _note(self, kind: int, record_bytes: int) -> None:
        """Check the header of the next record."""
        if kind == _DATA:
            self._is_shaken = True
            if record_bytes < SHORT_BYTES:
                self._short_records += 1
            else:
                self._short_records = max(0, self._short_records - (record_bytes >> 8))
            if self._short_records > SHORT_RECORDS_MAX:
                raise OSError("too many short TLS records")
        elif self._is_shaken and kind == _HANDSHAKE:
            raise OSError("a second TLS handshake is not allowed")
        elif not self._is_shaken:
            self._shaken_bytes += _HEAD_BYTES + record_bytes
            if self._shaken_bytes > HANDSHAKE_BYTES_MAX:
                raise OSError(f"TLS handshake exceeds {HANDSHAKE_BYTES_MAX} bytes")


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
