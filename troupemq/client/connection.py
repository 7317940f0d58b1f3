"""One TCP connection of the client: requests out, answers back to whoever waits for them.

Requests come from any thread and go out on it, as long as the socket takes them; what it does not
take waits for the I/O thread (`remoting.py`), which alone reads, closes and talks to the selector.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from errno import EINPROGRESS
from os import strerror
from selectors import EVENT_READ, EVENT_WRITE
from socket import (
    IPPROTO_TCP,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    gaierror,
    getaddrinfo,
    socket,
)
from threading import Lock

from protocol.command import RemotingCommand
from protocol.errors import FrameError
from protocol.frame import FrameBuffer, encode
from troupemq.client.errors import ClientBusy, ClientError, ConnectionFailed, RequestTimeout

RECEIVE_BYTES = 256 << 10

UNSENT_BYTES_MAX = 64 << 20
"""Requests that the other side does not take; past it new ones are refused at once."""

Answer = Future[RemotingCommand]


class Connection:
    """A connection to `address`, opened in the background; requests may be given before it is."""

    def __init__(
        self,
        address: str,
        on_command: Callable[["Connection", RemotingCommand], None],
        on_changed: Callable[["Connection"], None],
    ) -> None:
        """`on_command` gets the other side's requests, on the I/O thread; `on_changed` is told, on
        any thread, that the I/O thread must look at this connection again."""
        self.address = address
        self.watched = 0
        self.is_open = False
        self.broken_by: str | None = None
        self._on_command = on_command
        self._on_changed = on_changed
        self._frames = FrameBuffer()
        self._lock = Lock()
        self._pending: dict[int, Answer] = {}
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self.socket = self._connect()

    def _connect(self) -> socket:
        host, port = split_address(self.address)
        try:
            family, _, _, _, target = getaddrinfo(host, port, type=SOCK_STREAM)[0]
        except gaierror as error:
            raise ConnectionFailed(f"{self.address}: {error.strerror}") from None
        sock = socket(family, SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        status = sock.connect_ex(target)
        if status not in (0, EINPROGRESS):
            sock.close()
            raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")
        return sock

    # --- any thread

    def submit(self, frame: bytes, opaque: int, answer: Answer | None) -> None:
        """Sends a request, or keeps it until it can be sent; `answer` is None for one-way.

        Raises ConnectionFailed and ClientBusy, and then nothing was sent.
        """
        with self._lock:
            if self.broken_by is not None:
                raise ConnectionFailed(f"{self.address}: {self.broken_by}")
            if self._unsent_bytes + len(frame) > UNSENT_BYTES_MAX:
                raise ClientBusy(f"{self.address} has not taken {self._unsent_bytes} bytes yet")
            if answer is not None:
                self._pending[opaque] = answer
            rest = memoryview(frame)
            if self.is_open and not self._unsent:
                with suppress(OSError):  # full, or broken: the I/O thread finds out which
                    rest = rest[self.socket.send(rest) :]
            if not rest:
                return
            self._unsent.append(rest)
            self._unsent_bytes += len(rest)
        self._on_changed(self)

    def expire(self, opaque: int, timeout_ms: float) -> None:
        """Gives up on the answer to one request, if it has not come."""
        answer = self._take(opaque)
        if answer is not None:
            state = "not" if self.is_open else "no connection and not"
            answer.set_exception(
                RequestTimeout(f"{self.address} did {state} answer in {timeout_ms:.0f} ms")
            )

    def _take(self, opaque: int) -> Answer | None:
        with self._lock:
            return self._pending.pop(opaque, None)

    # --- the I/O thread

    def wanted(self) -> int:
        """The selector events that this connection waits for; 0 once it is broken."""
        if self.broken_by is not None:
            return 0
        with self._lock:
            write = EVENT_WRITE if self._unsent or not self.is_open else 0
        return write | EVENT_READ

    def ready(self, events: int) -> None:
        """Takes what came and sends what waits. Raises ConnectionFailed when it is over."""
        if not self.is_open:
            status = self.socket.getsockopt(SOL_SOCKET, SO_ERROR)
            if status:
                raise ConnectionFailed(f"{self.address}: {strerror(status).lower()}")
            self.is_open = True
        if events & EVENT_READ:
            self._receive()
        if events & EVENT_WRITE:
            self._send()

    def _receive(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise ConnectionFailed(f"{self.address} closed the connection")
        try:
            for command in self._frames.receive(data):
                if not command.is_response:
                    self._on_command(self, command)
                elif (answer := self._take(command.opaque)) is not None:
                    answer.set_result(command)
        except FrameError as error:
            raise ConnectionFailed(f"{self.address} sent a broken frame: {error}") from None

    def _send(self) -> None:
        with self._lock:
            while self._unsent:
                try:
                    sent = self.socket.send(self._unsent[0])
                except BlockingIOError:
                    return
                except OSError as error:
                    raise self._lost(error) from None
                self._unsent_bytes -= sent
                rest = self._unsent.popleft()[sent:]
                if rest:
                    self._unsent.appendleft(rest)

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
            pending = list(self._pending.values())
            self._pending.clear()
            self._unsent.clear()
        self.socket.close()
        for answer in pending:
            answer.set_exception(reason)

    def _lost(self, error: OSError) -> ConnectionFailed:
        text = (error.strerror or str(error)).lower()
        return ConnectionFailed(f"{self.address}: connection lost, {text}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises ConnectionFailed for other texts."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConnectionFailed(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
