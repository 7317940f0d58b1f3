"""One TCP connection of the client: sends requests and delivers their answers.

A request is sent on its caller's thread as far as the socket accepts it. The I/O thread
(`remoting.py`) sends the rest. Only that thread reads, closes and uses the selector.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EINPROGRESS
from itertools import islice
from os import strerror
from selectors import EVENT_READ, EVENT_WRITE
from socket import (
    AI_NUMERICHOST,
    IPPROTO_TCP,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    AddressFamily,
    gaierror,
    getaddrinfo,
    socket,
)
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from protocol.errors import FrameError
from protocol.frame import RemotingCommand, encode
from protocol.stream import CommandStream
from remoting.address import split_address as host_and_port
from remoting.tls_options import WANTS_TLS
from troupemq.client.connection.pending import Later, PendingAnswers, Waiting, broken_by
from troupemq.client.errors import ClientBusy, ClientError, ConnectionFailed

if TYPE_CHECKING:
    from remoting.tls_socket import TlsSocket

RECEIVE_BYTES = 256 << 10

UNSENT_BYTES_MAX = 64 << 20
"""Limit of unsent requests; further ones fail at once with ClientBusy."""

DIRECT_SENDS_MAX = 8
"""Open requests up to which callers send directly.

Beyond it the I/O thread sends many in one call: concurrent calls slow each other down.
"""

PARTS_OF_A_SEND_MAX = 256

ANSWERS_OF_A_TURN_MAX = 512
"""Answers, or 16 for each request, of one read; the others wait for a turn of other connections.

The 256 KiB of a read may hold 13,000 requests, which took 0.4 s. Honest answers have more bytes.
"""

SILENT_PEER_MS = 120_000
"""Time without a sign of life after which a connection counts as lost, as it does at a broker."""


TURN_S = 0.01
"""Time of a turn after which a request of the server ends it."""


class ConnectionBase:
    """State that both kinds of connections to servers have, and the delivery of what arrives."""

    def __init__(self, address: str, on_command: Callable[[Any, RemotingCommand], None]) -> None:
        """`on_command` takes the peer's requests, where answers arrive."""
        self.address = address
        self._on_command = on_command
        self.is_open = False
        self.broken_by: str | None = None
        self._has_heard = False
        self._frames = CommandStream(ANSWERS_OF_A_TURN_MAX)
        self._left: Iterator[RemotingCommand] | None = None
        """Decoded commands that wait for the next turn."""
        self._pending = PendingAnswers(address)
        """Added to with a lock, removed without: waiting for it tripled answer times."""
        self._unsent_bytes = 0

    def submit(
        self, frame: bytes, opaque: int, waiting: Waiting | None, timeout_ms: float = 0.0
    ) -> None:
        """Send or queue a request. Raises ConnectionFailed and ClientBusy if nothing was sent."""
        raise NotImplementedError

    def _deliver(self, commands: Iterator[RemotingCommand]) -> bool:
        """Deliver commands for a turn; return whether some are left. Raises ConnectionFailed."""
        end_s = monotonic() + TURN_S
        try:
            for command in commands:
                self._has_heard = True
                if command.is_response:
                    self._pending.answered(command)
                else:
                    self._on_command(self, command)
                    if monotonic() > end_s:
                        self._left = commands
                        return True
        except FrameError as error:
            raise ConnectionFailed(f"{self.address}: broken frame, {error}") from None
        self._left = None
        return self._frames.has_more

    def answer(self, response: RemotingCommand) -> None:
        """Send the answer to a request of the server."""
        try:
            self.submit(encode(response), response.opaque, None)
        except ClientError:
            return  # the peer has disconnected, or does not read


class ServerConnection(ConnectionBase):
    """A connection to `address` that opens in the background; it accepts requests at once."""

    def __init__(
        self,
        address: str,
        on_command: Callable[["ServerConnection", RemotingCommand], None],
        on_changed: Callable[["ServerConnection"], None],
        later: Later,
    ) -> None:
        """Start to connect. Raises ConnectionFailed.

        `on_command` is called on the I/O thread. `on_changed` is called on any thread when the I/O
        thread must check this connection. `later` runs a task on the I/O thread after a number of
        ms.
        """
        super().__init__(address, on_command)
        self.watched = 0
        self._on_changed = on_changed
        self._later = later
        self._lock = Lock()
        self._unsent: deque[memoryview] = deque()
        self._opens_on = EVENT_READ | EVENT_WRITE
        """Selector events to wait for until it is open."""

        self.socket: socket | TlsSocket
        self._has_socket = False
        self._found: list[tuple[AddressFamily, Any]] | ConnectionFailed | None = None
        """Addresses of the host to try yet, or the failure; None while it is being resolved."""

        host, port = split_address(address)
        try:
            self._found = resolved(host, port, AI_NUMERICHOST)
        except gaierror:  # a host name: resolving it may take seconds and must not block callers
            Thread(target=self._resolve, args=(host, port), daemon=True).start()
        except UnicodeError:  # longer than any host name
            raise ConnectionFailed(f"{address}: invalid host name") from None
        else:
            self.connect()

    def _resolve(self, host: str, port: int) -> None:
        try:
            self._found = resolved(host, port)
        except gaierror as error:
            self._found = ConnectionFailed(f"{self.address}: {error.strerror}")
        except UnicodeError:
            self._found = ConnectionFailed(f"{self.address}: invalid host name")
        self._on_changed(self)

    def connect(self) -> None:
        """Open the socket once the host is resolved. Raises ConnectionFailed."""
        if self._found is None or self._has_socket or self.broken_by is not None:
            return
        if isinstance(self._found, ConnectionFailed):
            raise self._found
        while not self._has_socket:
            family, target = self._found.pop(0)
            try:
                self.socket, self._has_socket = self._open(family, target), True
            except ConnectionFailed:
                if not self._found:
                    raise

    def _open(self, family: AddressFamily, target: Any) -> socket:
        try:
            sock = socket(family, SOCK_STREAM)
        except OSError as error:  # a family that this machine does not have
            raise ConnectionFailed(
                f"{self.address}: {strerror(error.errno or 0).lower()}"
            ) from None
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        expect_signs_of_life(sock)
        status = sock.connect_ex(target)
        if status not in (0, EINPROGRESS):
            sock.close()
            raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")
        return sock

    # --- any thread

    def submit(
        self, frame: bytes, opaque: int, waiting: Waiting | None, timeout_ms: float = 0.0
    ) -> None:
        new_step: int | None = None
        with self._lock:
            if self.broken_by is not None:
                raise ConnectionFailed(f"{self.address}: {self.broken_by}")
            if self._unsent_bytes + len(frame) > UNSENT_BYTES_MAX:
                raise ClientBusy(
                    f"{self.address}: {self._unsent_bytes} bytes are unsent already:"
                    " wait for some answers first"
                )
            if waiting is not None:
                new_step = self._pending.add(opaque, waiting, timeout_ms)
            is_first = not self._unsent
            rest = self._send_directly(frame) if is_first else memoryview(frame)
            if rest:
                self._unsent.append(rest)
                self._unsent_bytes += len(rest)
        if new_step is not None:
            self._later(self._pending.due_ms(new_step), lambda: self._expire(new_step))
        if rest and is_first:  # otherwise an earlier call is still pending
            self._on_changed(self)

    def _send_directly(self, frame: bytes) -> memoryview:
        """Send as much as the socket accepts; return the rest."""
        rest = memoryview(frame)
        sock = self.socket if self.is_open else None
        if not isinstance(sock, socket):
            return rest  # OpenSSL does not allow calls of two threads at once
        if len(self._pending) <= DIRECT_SENDS_MAX:
            with suppress(OSError):  # full or broken: the I/O thread finds out which
                rest = rest[sock.send(rest) :]
        return rest

    def _expire(self, step: int) -> None:
        with self._lock:
            due = self._pending.due(step)
        self._pending.expire(due, is_open=self.is_open)

    # --- the I/O thread

    def has_another_address(self) -> bool:
        """Return whether it did not open, and its host has an address that was not tried."""
        is_opening = self._has_socket and not self.is_open and isinstance(self.socket, socket)
        return is_opening and bool(self._found)

    def leave_address(self) -> None:
        """Close the socket of an address that cannot be reached; `connect` tries the next one."""
        self.socket.close()
        self._has_socket = False

    def wanted(self) -> int:
        """Return the selector events that this connection waits for; 0 once it is broken."""
        if self.broken_by is not None or not self._has_socket:
            return 0
        if not self.is_open:
            return self._opens_on
        write = EVENT_WRITE if self._unsent else 0
        return write | EVENT_READ  # No lock: `submit` calls `on_changed` after it adds to _unsent.

    def ready(self, events: int) -> bool:
        """Receive answers and send queued requests. Raises ConnectionFailed at the end.

        Return whether `go_on` must be called after the turns of other connections.
        """
        if not self.is_open and not self._opened():
            return False
        is_behind = self._left is not None or self._frames.has_more
        goes_on = bool(events & EVENT_READ) and not is_behind and self._receive()
        if events & EVENT_WRITE:
            self._send()
        return goes_on

    def go_on(self) -> bool:
        """Deliver more of what was received, as `ready`."""
        return self.broken_by is None and self._deliver(self._left or self._frames.more())

    def _opened(self) -> bool:
        """Continue to open; return whether it is open. Raises ConnectionFailed."""
        self._check_connected(self.socket)
        self.is_open = True
        return True

    def _check_connected(self, sock: "socket | TlsSocket") -> None:
        if isinstance(sock, socket) and (status := sock.getsockopt(SOL_SOCKET, SO_ERROR)):
            raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise ConnectionFailed(f"{self.address} closed the connection{self._perhaps_tls()}")
        return self._deliver(self._frames.receive(data))

    def _send(self) -> None:
        while self._unsent:  # Parts stay there until they are sent, so that no sender overtakes.
            with self._lock:
                parts = list(islice(self._unsent, PARTS_OF_A_SEND_MAX))
            try:
                sent = self.socket.sendmsg(parts)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(error) from None
            with self._lock:
                self._unsent_bytes -= sent
                while sent:
                    part = self._unsent.popleft()
                    if len(part) > sent:
                        self._unsent.appendleft(part[sent:])
                    sent -= min(sent, len(part))

    def fail(self, reason: ClientError) -> None:
        """Close the socket and fail all open requests."""
        with self._lock:
            self.broken_by = broken_by(reason, self.address)
            self._unsent.clear()
        if self._has_socket:
            self.socket.close()
        self._pending.fail(reason)

    def abandon(self) -> None:
        """Close this process's copy of the socket, without a word to the peer."""
        self.broken_by = "the client belongs to the parent process: make a new one"
        if self._has_socket:
            self.socket.close()

    def _lost(self, error: OSError) -> ConnectionFailed:
        text = (error.strerror or str(error) or type(error).__name__).lower()
        return ConnectionFailed(f"{self.address}: connection lost, {text}{self._perhaps_tls()}")

    def _perhaps_tls(self) -> str:
        return "" if self._has_heard else f" before it answered anything{WANTS_TLS}, or --tls"


def expect_signs_of_life(sock: socket) -> None:
    """Let the kernel end a connection whose peer acknowledges no bytes for SILENT_PEER_MS.

    Linux would go on for 15 minutes otherwise, for instance after a power failure of the server.
    """
    if sys.platform == "linux":
        from socket import TCP_USER_TIMEOUT

        sock.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, SILENT_PEER_MS)


def resolved(host: str, port: int, flags: int = 0) -> list[tuple[AddressFamily, Any]]:
    """Return the addresses of a host, with their families. Raises gaierror, UnicodeError."""
    found = getaddrinfo(host, port, type=SOCK_STREAM, flags=flags)
    return [(family, target) for family, _, _, _, target in found]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConnectionFailed."""
    try:
        return host_and_port(address)
    except ValueError as error:
        raise ConnectionFailed(str(error)) from None
