"""A small blocking client for one name server, on one connection that stays open.

A name server forgets a broker when its connection closes, so the connection is kept; it is opened
anew when it turns out to be gone.  Used by actors on threads only.
"""

from collections.abc import Callable
from itertools import count
from socket import (
    IPPROTO_TCP,
    MSG_PEEK,
    TCP_NODELAY,
    create_connection,
    socket,
)
from ssl import SSLContext, SSLError, SSLSocket, SSLWantReadError
from time import monotonic, time_ns

from actors.network.tls_contexts import ToCallWith
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.errors import FrameError
from protocol.frame import encode
from protocol.host import host_of
from protocol.signature import Credentials
from protocol.stream import CommandStream
from remoting.tls import reason_of_tls
from storage.errors import reason_of

CONNECT_TIMEOUT_S = 3.0
"""As 4.9.7: a name server that is down must not hold up the others for long."""

RECEIVE_BYTES = 64 << 10
LEFT_BYTES_MAX = 1 << 20
"""Read at a time of what nobody waits for: late answers are not that long."""

LOOK_UP_S = 0.25
"""How long a wait for an answer goes on before it is seen whether anybody still wants it."""


class NamesrvUnreachable(Exception):
    """No answer from the name server; the text says why."""


class ConnectionChanged(NamesrvUnreachable):
    """The connection that a request was meant for is gone; it was not sent over another."""


class NamesrvClient:
    """Calls one name server. Not for several threads at once; `close` it."""

    def __init__(
        self,
        address: str,
        gives_up: Callable[[], bool] = lambda: False,
        credentials: Credentials | None = None,
        tls: ToCallWith = lambda: None,
    ) -> None:
        """`gives_up` is asked while an answer is waited for; with `credentials` all is signed."""
        self.address = address
        self._host_port = (host_of(address), int(address.rpartition(":")[2]))
        self._socket: socket | None = None
        self._frames = CommandStream()
        self._gives_up = gives_up
        self._credentials = credentials
        self._tls = tls
        self._opaques = count(1)
        self.connection_count = 0
        """How many connections it took so far."""

    def call(
        self, request: RemotingCommand, timeout_s: float, *, over: int | None = None
    ) -> RemotingCommand:
        """The response. Raises NamesrvUnreachable.

        With `over`, the request goes over the connection of this number only: raises
        ConnectionChanged when there is another, or none.
        """
        request.opaque = next(self._opaques)
        deadline = monotonic() + timeout_s
        try:
            return self._exchange(request, deadline, over)
        except OSError as error:
            self.close()
            raise _unreachable(error) from error
        except FrameError as error:
            self.close()
            raise NamesrvUnreachable(str(error)) from error

    def tell(self, request: RemotingCommand, timeout_s: float) -> None:
        """Sends without waiting for an answer. Raises NamesrvUnreachable."""
        request.opaque = next(self._opaques)
        request.flag |= ONEWAY_FLAG
        try:
            self._drop_if_closed()
            self._send(self._signed(request), monotonic() + timeout_s)
        except OSError as error:
            self.close()
            raise _unreachable(error) from error
        except FrameError as error:
            self.close()
            raise NamesrvUnreachable(str(error)) from error

    def is_connected(self) -> bool:
        """Whether there is a connection that the other end has not closed, as far as it is known
        here. Raises NamesrvUnreachable where it had to be closed for what came over it."""
        try:
            self._drop_if_closed()
        except FrameError as error:
            self.close()
            raise NamesrvUnreachable(str(error)) from error
        return self._socket is not None

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _signed(self, request: RemotingCommand) -> bytes:
        if self._credentials is not None:
            self._credentials.sign(request, time_ns() // 1_000_000)
        return encode(request)

    def _drop_if_closed(self) -> None:
        """A write to a connection that its other end has closed would be lost without a word.

        Raises FrameError.
        """
        if self._socket is None:
            return
        try:
            self._socket.setblocking(False)  # with a timeout, recv would wait for data first
            if isinstance(self._socket, SSLSocket):
                closed = not self._frames_left(self._socket)
            else:
                closed = not self._socket.recv(1, MSG_PEEK)
        except (BlockingIOError, SSLWantReadError):
            closed = False
        except OSError:
            closed = True
        if closed:
            self.close()

    def _frames_left(self, sock: SSLSocket) -> bool:
        """Reads what nobody waits for: with TLS there is no looking without reading. False at the
        end; whoever never comes to one is read on the next time. Raises SSLWantReadError,
        FrameError."""
        left_bytes = LEFT_BYTES_MAX
        while left_bytes > 0:
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                return False
            left_bytes -= len(data)
            for _ in self._frames.receive(data):
                pass
        return True

    def _exchange(
        self, request: RemotingCommand, deadline: float, over: int | None
    ) -> RemotingCommand:
        frame = self._signed(request)
        self._drop_if_closed()
        if over is not None and (self._socket is None or self.connection_count != over):
            raise ConnectionChanged("the connection was closed")
        reused = self._socket is not None
        try:
            self._send(frame, deadline)
            return self._response_to(request.opaque, deadline)
        except ConnectionError as error:
            if not reused:
                raise
            if over is not None:
                self.close()
                raise ConnectionChanged("the connection was closed") from error
        self.close()  # it had been closed since the last call: the server was started again
        self._send(frame, deadline)
        return self._response_to(request.opaque, deadline)

    def _send(self, frame: bytes, deadline: float) -> None:
        if self._socket is None:
            timeout_s = min(CONNECT_TIMEOUT_S, _left(deadline))
            try:
                self._socket = create_connection(self._host_port, timeout_s)
            except UnicodeError:  # longer than any name
                raise OSError(f"no host is called {self._host_port[0]}") from None
            self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            context = self._tls()
            if context is not None:
                self._socket.settimeout(min(CONNECT_TIMEOUT_S, _left(deadline)))
                self._socket = self._with_tls(context, self._socket)
            self._frames = CommandStream()
            self.connection_count += 1
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(frame)

    def _with_tls(self, context: SSLContext, sock: socket) -> SSLSocket:
        host = self._host_port[0]
        try:
            return context.wrap_socket(sock, server_hostname=host)
        except SSLError:
            raise
        except ValueError as error:  # a name that no certificate can have
            raise OSError(f"no certificate names {host}: {error}") from None

    def _response_to(self, opaque: int, deadline: float) -> RemotingCommand:
        assert self._socket is not None
        while True:
            self._socket.settimeout(min(LOOK_UP_S, _left(deadline)))
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                if self._gives_up():
                    raise
                continue
            if not data:
                raise ConnectionResetError("closed by the other side")
            for command in self._frames.receive(data):
                # answers to calls that were given up on may still arrive
                if command.is_response and command.opaque == opaque:
                    return command


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _unreachable(error: OSError) -> NamesrvUnreachable:
    text = reason_of_tls(error) if isinstance(error, SSLError) else reason_of(error)
    return NamesrvUnreachable(text or type(error).__name__)
