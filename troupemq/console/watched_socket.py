"""Socket of the console that checks TLS records before OpenSSL reads them.

Asyncio feeds OpenSSL on the event loop of all connections. A second handshake, or endless key
updates, would block that loop. `remoting/tls_socket.py` also counts the contents of records;
this class checks their headers only.

Record header: 1 byte type, 2 bytes version, 2 bytes length of the payload.
"""

from socket import socket
from typing import Any

from remoting.tls_socket import HANDSHAKE_BYTES_MAX

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
