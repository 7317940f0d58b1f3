"""A TLS connection that does not block, with the calls of a plain socket.

Where a plain socket would block, BlockingIOError is raised; in either direction, for what is read
and written are records.  A read of OpenSSL gives one record, of 16 KiB at most, so several are read
at once, and nothing stays behind that the selector does not know of.  A write that began must be
repeated with the same bytes: a piece of what was offered is kept until all of it has gone.

For one thread at a time.
"""

from collections.abc import Sequence
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError

Buffer = bytes | memoryview

RECORD_BYTES = 16 << 10
RECORDS_PER_READ = 16
"""Then others have a turn."""

PIECE_BYTES = 64 << 10
"""Given to OpenSSL in one call. One buffer of that size or more goes without a copy."""


class TlsSocket:
    """What a connection reads from and writes to in place of a socket."""

    __slots__ = ("_piece", "_socket")

    def __init__(self, sock: SSLSocket) -> None:
        """`sock`: its handshake is over, and it does not block."""
        self._socket = sock
        self._piece = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size_bytes: int) -> bytes:
        """What has come, `size_bytes` or a little more at most; nothing: the end.

        Raises BlockingIOError, OSError.
        """
        parts: list[bytes] = []
        sock = self._socket
        left = min(size_bytes, RECORDS_PER_READ * RECORD_BYTES)
        try:
            while left > 0 or sock.pending():
                data = sock.read(RECORD_BYTES)
                if not data:  # said again by the next read
                    break
                parts.append(data)
                left -= len(data)
        except SSLWantReadError:
            if not parts:
                raise BlockingIOError from None
        except BrokenPipeError:  # OpenSSL had something to say, and the peer is gone: the end
            pass
        except OSError:
            if not parts:
                raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """How many of these bytes were taken; the rest is offered again, first.

        Raises BlockingIOError if none were, OSError.
        """
        taken = 0
        for piece in self._pieces(buffers):
            try:
                taken += self._socket.send(piece)
            except SSLWantWriteError:
                self._piece = bytes(piece)
                if not taken:
                    raise BlockingIOError from None
                break
            self._piece = b""
        return taken

    def _pieces(self, buffers: Sequence[Buffer]) -> "list[Buffer]":
        """The same bytes, cut; what is kept comes first in them."""
        skipped = len(self._piece)
        pieces: list[Buffer] = [self._piece] if skipped else []
        small: list[Buffer] = []
        small_bytes = 0
        for buffer in buffers:
            size = len(buffer)
            if skipped >= size:
                skipped -= size
                continue
            rest = memoryview(buffer)[skipped:] if skipped else buffer
            skipped = 0
            if small and small_bytes + len(rest) > PIECE_BYTES:
                pieces.append(b"".join(small))
                small, small_bytes = [], 0
            if len(rest) >= PIECE_BYTES:
                view = memoryview(rest)
                pieces += [view[at : at + PIECE_BYTES] for at in range(0, len(rest), PIECE_BYTES)]
            elif rest:
                small.append(rest)
                small_bytes += len(rest)
        if small:
            pieces.append(small[0] if len(small) == 1 else b"".join(small))
        return pieces

    def send(self, data: bytes) -> int:
        """Sends a small piece that is not offered again: all of it, or BlockingIOError.

        One that did not go is sent before the next one.
        """
        pieces = [self._piece, data] if self._piece else [data]
        for piece in pieces:
            try:
                self._socket.send(piece)
            except SSLWantWriteError:
                self._piece = bytes(piece)
                raise BlockingIOError from None
            self._piece = b""
        return len(data)

    def close(self) -> None:
        """Without a word to the peer, who may not read."""
        self._socket.close()
