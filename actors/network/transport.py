"""Transport of one connection: received bytes, sent bytes, and unsent output.

A plain class between a non-blocking socket and its Connection. The Connection decides when to read
and how to handle errors. No other code reads or writes the socket.
"""

from collections import deque
from collections.abc import Sequence
from socket import socket

from actors.network.sends import Buffer
from remoting.tls_socket import TlsSocket

RECEIVE_BYTES = 256 << 10
"""Maximum bytes of one read: a few hundred small sends, or a part of a large one."""

BUFFERS_PER_SEND = 512
SEND_BYTES = 1 << 20
"""Bytes offered to the socket in one call."""

KEPT_BYTES_MAX = 256 << 10
"""Maximum copied bytes of output that the socket did not take, for each of many slow peers."""

JOINED_BYTES_MAX = 1 << 10
"""Buffers of a smaller average size cost more one by one than the copy that joins them."""


class Transport:
    __slots__ = ("_has_waited", "_unsent", "sock", "unsent_bytes")

    def __init__(self, sock: socket | TlsSocket) -> None:
        self.sock = sock
        self.unsent_bytes = 0
        self._unsent: deque[Buffer] = deque()
        self._has_waited = False

    @property
    def is_laborious(self) -> bool:
        """Whether a read may take long and bring little."""
        return False

    def receive(self) -> bytes | None:
        """Return the received bytes, None without any, b"" at the end. Raises OSError."""
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def queue(self, buffers: Sequence[Buffer]) -> None:
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    def flush(self) -> int:
        """Send until the socket takes no more; return the number of bytes sent. Raises OSError."""
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
        """Remove and return the buffers for one call, and their total size."""
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
            # Output that has waited may have to be read from the disk, where only the kernel may
            # meet an error. All other output was in memory a moment ago.
            return (b"".join(buffers),), offered
        return buffers, offered

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Requeue what the socket did not take: the first bytes as copies, the rest unchanged.

        A slow peer thus costs the memory of one call, not of all its output.
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
        """Copy queued views of this map, unless they exceed `bytes_max`.

        Returns the bytes in such views, copied or not.
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
        self.sock.close()
        self._unsent.clear()
        self.unsent_bytes = 0


class TlsTransport(Transport):
    """TLS socket; this process reads its output from memory, not the kernel."""

    __slots__ = ()

    def queue(self, buffers: Sequence[Buffer]) -> None:
        """Queue output; copy it if earlier output waits.

        Parts of the commit log may leave the page cache before they are sent, and a disk error on a
        mapped page would kill this process.
        """
        if self._has_waited:
            buffers = [bytes(buffer) for buffer in buffers]
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    @property
    def is_laborious(self) -> bool:
        return isinstance(self.sock, TlsSocket) and self.sock.short_reads > 0

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Requeue what the socket did not take; copy all of it when the peer begins to lag.

        The reason is that of `queue`. Output that has waited is not copied again.
        """
        begins = not self._has_waited
        super()._put_back(buffers, sent)
        if begins:
            self._unsent = deque(bytes(buffer) for buffer in self._unsent)


def _behind(buffer: Buffer, sent: int) -> Buffer:
    """Return the rest of a buffer, copied once more than half of it is sent, to free the whole."""
    rest = memoryview(buffer)[sent:]
    whole = rest.obj
    return bytes(rest) if isinstance(whole, bytes) and 2 * len(rest) < len(whole) else rest


def transport_of(sock: socket | TlsSocket) -> Transport:
    return TlsTransport(sock) if isinstance(sock, TlsSocket) else Transport(sock)
