"""A socket of the console whose records of TLS are looked at before OpenSSL has them.

Asyncio gives OpenSSL all that comes, on the loop of all connections, and a handshake behind the
handshake or keys without end would hold that up. `remoting/tls_socket.py` counts what is in
records, too; here it is their heads alone.

head of a record: 1 byte type, 2 version, 2 length of what follows
"""

from socket import socket
from typing import Any

from remoting.tls_socket import HANDSHAKE_BYTES_MAX

FED_BYTES = 32 << 10
"""Taken in one call; then others have a turn."""
SHORT_BYTES = 64
SHORT_RECORDS_MAX = 128
"""Of less than SHORT_BYTES, such as new keys; and four more for each KiB of others."""

_HEAD_BYTES = 5
_HANDSHAKE, _DATA = 22, 23


class WatchedSocket(socket):
    """A connection that was accepted; what it does not take is an OSError that ends it."""

    def __init__(self, accepted: socket) -> None:
        """`accepted` is this one from now on."""
        super().__init__(fileno=accepted.detach())
        self._head = b""
        self._left = 0
        """Bytes of a record that has begun."""
        self._shaken_bytes = 0
        self._is_shaken = False
        self._short_records = 0

    def recv_into(self, buffer: Any, *_: int) -> int:
        """Less than fits, perhaps."""
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
        """Of a record that begins."""
        if kind == _DATA:
            self._is_shaken = True
            if record_bytes < SHORT_BYTES:
                self._short_records += 1
            else:
                self._short_records = max(0, self._short_records - (record_bytes >> 8))
            if self._short_records > SHORT_RECORDS_MAX:
                raise OSError("it sends records with little in them")
        elif self._is_shaken and kind == _HANDSHAKE:
            raise OSError("it begins a handshake in TLS")
        elif not self._is_shaken:
            self._shaken_bytes += _HEAD_BYTES + record_bytes
            if self._shaken_bytes > HANDSHAKE_BYTES_MAX:
                raise OSError(f"more than {HANDSHAKE_BYTES_MAX} bytes, and not over")
