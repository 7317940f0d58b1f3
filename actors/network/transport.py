"""The transport of one connection: bytes from its peer, bytes to it, and what waits for it.

A plain class between a socket that does not block and its Connection, which says when to read and
what an error means. Nobody else reads or writes the socket.
"""

from collections import deque
from collections.abc import Sequence
from socket import socket

from actors.network.sends import Buffer
from remoting.tls_socket import TlsSocket

RECEIVE_BYTES = 256 << 10
"""How much one read takes: a few hundred small sends, or a part of a large one."""

BUFFERS_PER_SEND = 512
SEND_BYTES = 1 << 20
"""Offered to the socket in one call."""

KEPT_BYTES_MAX = 256 << 10
"""Of what the socket did not take of that, copied; there may be hundreds of peers that read
nothing."""

JOINED_BYTES_MAX = 1 << 10
"""Buffers that are smaller on average cost more one by one than the copy that joins them."""


class Transport:
    """Bytes in, bytes out."""

    __slots__ = ("_has_waited", "_unsent", "sock", "unsent_bytes")

    def __init__(self, sock: socket | TlsSocket) -> None:
        self.sock = sock
        """For the loop, which watches it."""
        self.unsent_bytes = 0
        """Output that the peer has not taken."""
        self._unsent: deque[Buffer] = deque()
        self._has_waited = False

    @property
    def is_laborious(self) -> bool:
        """Whether a read may take long for the little that it brings."""
        return False

    def receive(self) -> bytes | None:
        """What has come: None is nothing yet, no bytes the end. Raises OSError."""
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def queue(self, buffers: Sequence[Buffer]) -> None:
        """Keeps output for the next `flush`, in order."""
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    def flush(self) -> int:
        """Sends what waits until the socket takes no more; how many bytes it took.

        Raises OSError.
        """
        taken = 0
        buffers: Sequence[Buffer]
        while unsent := self._unsent:
            if len(unsent) == 1:  # nearly always
                buffers, offered = (unsent.popleft(),), self.unsent_bytes
            else:
                buffers, offered = self._next()
            try:
                sent = self.sock.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            taken += sent
            self.unsent_bytes -= sent
            if sent < offered:
                self._put_back(buffers, sent)
                return taken
        self._has_waited = False
        return taken

    def _next(self) -> tuple[Sequence[Buffer], int]:
        """Takes out what is offered in one call; gives it and its bytes."""
        unsent = self._unsent
        if self.unsent_bytes <= SEND_BYTES and len(unsent) <= BUFFERS_PER_SEND:
            buffers, offered = [*unsent], self.unsent_bytes
            unsent.clear()
        else:
            buffers, offered = [], 0
            while unsent and offered < SEND_BYTES and len(buffers) < BUFFERS_PER_SEND:
                buffers.append(unsent.popleft())
                offered += len(buffers[-1])
        if len(buffers) > 1 and offered < JOINED_BYTES_MAX * len(buffers) and not self._has_waited:
            # What has waited may have to come from the disk: only the kernel may meet an error
            # there. All else was in memory a moment ago.
            return (b"".join(buffers),), offered
        return buffers, offered

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Keeps what the socket did not take, the first of it as copies; the rest stays as it is.

        So a slow peer costs the memory of one try, not of all that waits for it.
        """
        left: list[Buffer] = []
        kept = 0
        for buffer in buffers:
            if sent >= len(buffer):
                sent -= len(buffer)
            else:
                rest = _behind(buffer, sent) if sent else buffer
                kept += len(rest)
                left.append(bytes(rest) if kept <= KEPT_BYTES_MAX else rest)
                sent = 0
        self._unsent.extendleft(reversed(left))
        self._has_waited = True

    def copy_out(self, file: object, bytes_max: int) -> int:
        """Copies what waits and is a view of this map, if it is no more than `bytes_max`.

        Gives the bytes that are such views, copied or not.
        """
        views = [
            number
            for number, buffer in enumerate(self._unsent)
            if isinstance(buffer, memoryview) and buffer.obj is file
        ]
        view_bytes = sum(len(self._unsent[number]) for number in views)
        if view_bytes <= bytes_max:
            for number in views:
                self._unsent[number] = bytes(self._unsent[number])
        return view_bytes

    def close(self) -> None:
        """Closes the socket and forgets what waits."""
        self.sock.close()
        self._unsent.clear()
        self.unsent_bytes = 0


class TlsTransport(Transport):
    """The same through TLS, where bytes are read here, not by the kernel."""

    __slots__ = ()

    def queue(self, buffers: Sequence[Buffer]) -> None:
        """What is behind something that waits is copied at once: parts of the log may be gone from
        memory before their turn comes, and an error of the disk would end this process."""
        if self._has_waited:
            buffers = [bytes(buffer) for buffer in buffers]
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    @property
    def is_laborious(self) -> bool:
        """Records of few bytes are."""
        return isinstance(self.sock, TlsSocket) and self.sock.short_reads > 0

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """For the same reason copies all when it begins to wait; never again what has waited."""
        begins = not self._has_waited
        super()._put_back(buffers, sent)
        if begins:
            self._unsent = deque(bytes(buffer) for buffer in self._unsent)


def _behind(buffer: Buffer, sent: int) -> Buffer:
    """The rest of a buffer, not copied each time a bit goes, but once half of it has gone: a view
    keeps the whole."""
    rest = memoryview(buffer)[sent:]
    whole = rest.obj
    return bytes(rest) if isinstance(whole, bytes) and 2 * len(rest) < len(whole) else rest


def transport_of(sock: socket | TlsSocket) -> Transport:
    """That of a new connection."""
    return TlsTransport(sock) if isinstance(sock, TlsSocket) else Transport(sock)
