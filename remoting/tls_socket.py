"""A TLS connection that does not block, with the calls of a plain socket.

OpenSSL sees two buffers, and this class carries their bytes from and to the socket: one system call
takes as many records as have come, where OpenSSL itself would make two for each.  Where a plain
socket would block, BlockingIOError is raised.  All that was read is decrypted at once, so nothing
stays behind that the selector does not know of; what was encrypted and did not go is kept, and
counts as taken once it has gone.

For one thread at a time.
"""

from collections.abc import Sequence
from contextlib import suppress
from socket import SHUT_RD, socket
from ssl import MemoryBIO, SSLContext, SSLWantReadError, SSLWantWriteError
from typing import Any

Buffer = bytes | memoryview

RECORD_BYTES = 16 << 10
"""The most that a record holds."""

READ_BYTES_MAX = 256 << 10
"""Taken from the socket in one call; then others have a turn."""

FED_BYTES = 32 << 10
"""Given to OpenSSL at a time: its buffers stay as long as they ever were."""

PIECE_BYTES = 64 << 10
"""Encrypted before the socket is asked whether it takes any of it."""

_HEAD_BYTES = 5
_KEPT_ANSWERS_MAX = 64 << 10
"""Of what OpenSSL has to say by itself (new keys) to a peer that does not read."""


class _Scratch:
    """Room for what one read takes and gives, lent for that long: bytes of that size would be
    mapped and unmapped every time, which is 10 µs."""

    def __init__(self) -> None:
        self.taken = memoryview(bytearray(READ_BYTES_MAX))
        self.given = memoryview(bytearray(READ_BYTES_MAX + 2 * RECORD_BYTES))


_spare: list[_Scratch] = []
"""As many as there were reads at the same time, which is one for each thread that reads."""


class TlsSocket:
    """What a connection reads from and writes to in place of a socket."""

    __slots__ = (
        "_cipher",
        "_head",
        "_incoming",
        "_is_over",
        "_kept_bytes",
        "_outgoing",
        "_record_left",
        "_socket",
        "_tls",
        "shaken_bytes",
    )

    def __init__(
        self, sock: socket, context: SSLContext, *, server_hostname: str | None = None
    ) -> None:
        """`server_hostname`: the server that is called; None: this side is the server.

        Raises ValueError for a name that no certificate can have.
        """
        self._socket = sock
        self._incoming, self._outgoing = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._cipher: Buffer = b""
        """Encrypted, and not gone yet."""
        self._kept_bytes = 0
        """What of it is offered again, before it was encrypted."""
        self._is_over = False
        self._head = b""
        self._record_left = 0
        self.shaken_bytes = 0
        """What has come for the handshake."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    # --- the handshake

    def do_handshake(self) -> None:
        """Goes on with it, as far as it goes without waiting; all of it with a socket that blocks.

        Raises SSLWantReadError, SSLWantWriteError where it has to wait; OSError.
        """
        while True:
            try:
                self._push()
            except BlockingIOError:
                raise SSLWantWriteError from None
            try:
                self._tls.do_handshake()
            except SSLWantReadError:
                if not self._outgoing.pending:
                    self._take_of_record()
            except OSError:
                with suppress(OSError):
                    self._push()  # why not
                raise
            else:
                if not self._outgoing.pending:
                    return

    def _take_of_record(self) -> None:
        """Never more than a record: what is behind the last one is not the handshake's."""
        wanted = self._record_left or _HEAD_BYTES - len(self._head)
        try:
            data = self._socket.recv(wanted)
        except BlockingIOError:
            raise SSLWantReadError from None
        if not data:
            self._incoming.write_eof()
            return
        self.shaken_bytes += len(data)
        self._incoming.write(data)
        if self._record_left:
            self._record_left -= len(data)
            return
        self._head += data
        if len(self._head) == _HEAD_BYTES:
            self._record_left = int.from_bytes(self._head[3:])
            self._head = b""

    # --- in

    def recv(self, size_bytes: int) -> bytes:
        """What has come, `size_bytes` and a record at most; nothing: the end.

        Raises BlockingIOError, OSError.
        """
        if self._is_over:
            return b""
        try:
            scratch = _spare.pop()
        except IndexError:
            scratch = _Scratch()
        try:
            size = self._socket.recv_into(scratch.taken, min(size_bytes, READ_BYTES_MAX))
            data = self._decrypted(scratch, size)
        finally:
            _spare.append(scratch)
        if self._outgoing.pending:
            self._answer()
        if not size:
            self._is_over = True
        if not data and not self._is_over:
            raise BlockingIOError
        return data

    def _decrypted(self, scratch: _Scratch, size: int) -> bytes:
        taken, given, found = scratch.taken, scratch.given, 0
        incoming = self._incoming
        read: Any = self._tls.read  # its buffer need not be a bytearray
        for at in range(0, size, FED_BYTES):
            incoming.write(taken[at : min(at + FED_BYTES, size)])
            try:
                while incoming.pending:
                    count = read(RECORD_BYTES, given[found:])
                    if not count:
                        self._end()
                        break
                    found += count
            except SSLWantReadError:  # the rest of a record has not come
                pass
        return bytes(given[:found])

    def _end(self) -> None:
        """The peer has said that nothing more comes."""
        self._is_over = True
        with suppress(OSError):
            self._socket.shutdown(SHUT_RD)  # so that the selector says so, too

    def _answer(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # it is gone: the next read says so
            self._push()
        if len(self._cipher) - self._kept_bytes > _KEPT_ANSWERS_MAX:
            raise OSError("it asks for new keys and does not read")

    # --- out

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """How many of these bytes were taken; the rest is offered again, first.

        Raises BlockingIOError if none were, OSError.
        """
        taken = skipped = self._kept_bytes
        if self._cipher:
            self._push()
        self._kept_bytes = 0
        outgoing, write = self._outgoing, self._tls.write
        for piece in _pieces(buffers, skipped):
            size = len(piece)
            if size <= RECORD_BYTES:
                write(piece)
                records = [outgoing.read()]
            else:
                records = []
                view = memoryview(piece)  # a part of bytes would be a copy
                for at in range(0, size, RECORD_BYTES):
                    write(view[at : at + RECORD_BYTES])
                    records.append(outgoing.read())
            try:
                sent = self._socket.sendmsg(records)
            except BlockingIOError:
                sent = 0
            if sent < sum(map(len, records)):
                self._cipher, self._kept_bytes = b"".join(records)[sent:], size
                if not taken:
                    raise BlockingIOError
                break
            taken += size
        return taken

    def send(self, data: bytes) -> int:
        """Sends a small piece that is not offered again: all of it, or BlockingIOError.

        One that did not go is sent before the next one.
        """
        self._push()
        self._tls.write(data)
        self._push()
        return len(data)

    def _push(self) -> None:
        """Sends what is encrypted. Raises BlockingIOError if something is left of it."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._cipher = b"".join((self._cipher, more)) if self._cipher else more
        while self._cipher:
            sent = self._socket.send(self._cipher)
            self._cipher = memoryview(self._cipher)[sent:]
        self._cipher = b""

    def close(self) -> None:
        """Without a word to the peer, who may not read."""
        self._socket.close()


def _pieces(buffers: Sequence[Buffer], skipped: int) -> list[Buffer]:
    """These bytes but for the first ones, cut; small ones joined."""
    pieces: list[Buffer] = []
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
            pieces.append(small[0] if len(small) == 1 else b"".join(small))
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
