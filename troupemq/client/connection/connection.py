"""One TCP connection of the client: requests out, answers back to whoever waits for them.

Requests come from any thread and go out on it, as long as the socket takes them; what it does not
take waits for the I/O thread (`remoting.py`), which alone reads, closes and talks to the selector.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from errno import EINPROGRESS
from itertools import islice
from math import ceil
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
from ssl import SSLContext, SSLError, SSLWantReadError, SSLWantWriteError
from threading import Lock, Thread
from time import monotonic
from typing import Any, Protocol

from protocol.command import RemotingCommand
from protocol.errors import FrameError
from protocol.frame import encode
from protocol.stream import CommandStream
from remoting.address import split_address as host_and_port
from remoting.tls import reason_of_tls
from remoting.tls_options import WANTS_TLS
from remoting.tls_socket import TlsSocket
from troupemq.client.errors import ClientBusy, ClientError, ConnectionFailed, RequestTimeout

RECEIVE_BYTES = 256 << 10

UNSENT_BYTES_MAX = 64 << 20
"""Requests that the other side does not take; past it new ones are refused at once."""

DIRECT_SENDS_MAX = 8
"""With more requests waiting for answers, the I/O thread sends them, many in one call: threads
that each make their own calls get into each other's way."""

PARTS_OF_A_SEND_MAX = 256

EXPIRY_STEP_MS = 10
"""Requests whose time ends within one step are given up together: one timer for all of them."""


class Waiting(Protocol):
    """Who waits for an answer, such as a Future: it is told one of the two, once."""

    def set_result(self, answer: RemotingCommand, /) -> object: ...

    def set_exception(self, error: ClientError, /) -> object: ...


Answer = Future[RemotingCommand]


class ServerConnection:
    """A connection to `address`, opened in the background; requests may be given before it is."""

    def __init__(
        self,
        address: str,
        on_command: Callable[["ServerConnection", RemotingCommand], None],
        on_changed: Callable[["ServerConnection"], None],
        later: Callable[[float, Callable[[], None]], None],
        tls: SSLContext | None = None,
    ) -> None:
        """`on_command` gets the other side's requests, on the I/O thread; `on_changed` is told, on
        any thread, that the I/O thread must look at this connection again; `later` runs something
        on that thread in so many ms."""
        self.address = address
        self.watched = 0
        self.is_open = False
        self.broken_by: str | None = None
        self._has_heard = False
        self._on_command = on_command
        self._on_changed = on_changed
        self._later = later
        self._expiring: dict[int, list[int]] = {}  # step → opaque
        self._frames = CommandStream()
        self._lock = Lock()
        self._pending: dict[int, Waiting] = {}
        """Added to under the lock, taken from without it: waiting for a sender to come back from
        its system call tripled the time of an answer."""

        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._tls = tls
        self._opens_on = EVENT_READ | EVENT_WRITE
        """What it waits for until it is open."""
        self.socket: socket | TlsSocket
        self._has_socket = False
        self._found: tuple[AddressFamily, Any] | ConnectionFailed | None = None
        """Where the host's name leads to, once that is known."""

        host, port = split_address(address)
        try:
            self._found = _resolved(host, port, AI_NUMERICHOST)
        except gaierror:  # a name: asking for it may take seconds, and callers must not wait
            Thread(target=self._resolve, args=(host, port), daemon=True).start()
        except UnicodeError:  # longer than any name
            raise ConnectionFailed(f"{address}: no host has such a name") from None
        self.connect()

    def _resolve(self, host: str, port: int) -> None:
        try:
            self._found = _resolved(host, port)
        except gaierror as error:
            self._found = ConnectionFailed(f"{self.address}: {error.strerror}")
        except UnicodeError:
            self._found = ConnectionFailed(f"{self.address}: no host has such a name")
        self._on_changed(self)

    def connect(self) -> None:
        """Begin to connect if the host's address has just become known. Raises ConnectionFailed."""
        if self._found is None or self._has_socket or self.broken_by is not None:
            return
        if isinstance(self._found, ConnectionFailed):
            raise self._found
        self.socket, self._has_socket = self._open(*self._found), True

    def _open(self, family: AddressFamily, target: Any) -> socket:
        sock = socket(family, SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        status = sock.connect_ex(target)
        if status not in (0, EINPROGRESS):
            sock.close()
            raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")
        return sock

    # --- any thread

    def submit(
        self, frame: bytes, opaque: int, waiting: Waiting | None, timeout_ms: float = 0.0
    ) -> None:
        """Sends a request, or keeps it until it can be sent; `waiting` is None for one-way.

        Raises ConnectionFailed and ClientBusy, and then nothing was sent.
        """
        new_step: int | None = None
        with self._lock:
            if self.broken_by is not None:
                raise ConnectionFailed(f"{self.address}: {self.broken_by}")
            if self._unsent_bytes + len(frame) > UNSENT_BYTES_MAX:
                raise ClientBusy(f"{self.address} has not taken {self._unsent_bytes} bytes yet")
            if waiting is not None:
                self._pending[opaque] = waiting
                new_step = self._expire_with_others(opaque, timeout_ms)
            is_first = not self._unsent
            rest = self._send_directly(frame) if is_first else memoryview(frame)
            if rest:
                self._unsent.append(rest)
                self._unsent_bytes += len(rest)
        if new_step is not None:
            due_ms = new_step * EXPIRY_STEP_MS - monotonic() * 1000
            self._later(due_ms, lambda: self._expire(new_step))
        if rest and is_first:  # else it was told already and is not done
            self._on_changed(self)

    def _send_directly(self, frame: bytes) -> memoryview:
        """What is left of it."""
        rest = memoryview(frame)
        if not self.is_open or isinstance(self.socket, TlsSocket):
            return rest  # OpenSSL takes no calls from two threads at once
        sock = self.socket
        if len(self._pending) <= DIRECT_SENDS_MAX:
            with suppress(OSError):  # full, or broken: the I/O thread finds out which
                rest = rest[sock.send(rest) :]
        return rest

    def _expire_with_others(self, opaque: int, timeout_ms: float) -> int | None:
        """The step in which it ends, if it is the first one of that."""
        step = ceil((monotonic() * 1000 + timeout_ms) / EXPIRY_STEP_MS)
        expiring = self._expiring.get(step)
        if expiring is not None:
            expiring.append(opaque)
            return None
        self._expiring[step] = [opaque]
        return step

    def _expire(self, step: int) -> None:
        """Gives up on the answers that have not come."""
        with self._lock:
            expiring = self._expiring.pop(step)
        for opaque in expiring:
            waiting = self._pending.pop(opaque, None)
            if waiting is not None:
                state = "not" if self.is_open else "no connection and not"
                waiting.set_exception(RequestTimeout(f"{self.address} did {state} answer in time"))

    # --- the I/O thread

    def wanted(self) -> int:
        """The selector events that this connection waits for; 0 once it is broken."""
        if self.broken_by is not None or not self._has_socket:
            return 0
        if not self.is_open:
            return self._opens_on
        write = EVENT_WRITE if self._unsent else 0
        return write | EVENT_READ  # without the lock: who adds to what is unsent tells us after it

    def ready(self, events: int) -> None:
        """Takes what came and sends what waits. Raises ConnectionFailed when it is over."""
        if not self.is_open and not self._opened():
            return
        if events & EVENT_READ:
            self._receive()
        if events & EVENT_WRITE:
            self._send()

    def _opened(self) -> bool:
        """Goes on with the opening; whether that is over. Raises ConnectionFailed."""
        sock = self.socket
        if isinstance(sock, socket) and (status := sock.getsockopt(SOL_SOCKET, SO_ERROR)):
            raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")
        if self._tls is not None:
            try:
                if not isinstance(sock, TlsSocket):
                    host, _ = split_address(self.address)
                    sock = self.socket = TlsSocket(sock, self._tls, server_hostname=host)
                sock.do_handshake()
            except SSLWantReadError:
                self._opens_on = EVENT_READ
                return False
            except SSLWantWriteError:
                self._opens_on = EVENT_WRITE
                return False
            except OSError as error:
                raise ConnectionFailed(f"{self.address}: {reason_of_tls(error)}") from None
            except ValueError as error:  # a name that no certificate can have
                raise ConnectionFailed(f"{self.address}: {error}") from None
        self.is_open = True
        return True

    def _receive(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise ConnectionFailed(f"{self.address} closed the connection{self._perhaps_tls()}")
        self._has_heard = True
        try:
            for command in self._frames.receive(data):
                if not command.is_response:
                    self._on_command(self, command)
                elif (waiting := self._pending.pop(command.opaque, None)) is not None:
                    waiting.set_result(command)
        except FrameError as error:
            raise ConnectionFailed(f"{self.address} sent a broken frame: {error}") from None

    def _send(self) -> None:
        while self._unsent:  # what is on its way stays there: nobody sends past it
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

    def answer(self, response: RemotingCommand) -> None:
        """Answers a request of the other side."""
        try:
            self.submit(encode(response), response.opaque, None)
        except ClientError:
            return  # the asker is gone, or does not read

    def fail(self, reason: ClientError) -> None:
        """Closes the socket and tells everyone who waits for an answer."""
        with self._lock:
            self.broken_by = str(reason).removeprefix(f"{self.address}: ")
            self._unsent.clear()
        if self._has_socket:
            self.socket.close()
        while self._pending:
            _, waiting = self._pending.popitem()
            waiting.set_exception(type(reason)(*reason.args))  # their own: errors take notes

    def _lost(self, error: OSError) -> ConnectionFailed:
        text = reason_of_tls(error)
        text = text if isinstance(error, SSLError) else text.lower()
        return ConnectionFailed(f"{self.address}: connection lost, {text}{self._perhaps_tls()}")

    def _perhaps_tls(self) -> str:
        if self._has_heard or self._tls is not None:
            return ""
        return f" before it answered anything{WANTS_TLS}, or --tls"


def _resolved(host: str, port: int, flags: int = 0) -> tuple[AddressFamily, Any]:
    """Return the first address of a host, with its family. Raises gaierror, UnicodeError."""
    family, _, _, _, target = getaddrinfo(host, port, type=SOCK_STREAM, flags=flags)[0]
    return family, target


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises ConnectionFailed for other texts."""
    try:
        return host_and_port(address)
    except ValueError as error:
        raise ConnectionFailed(str(error)) from None
