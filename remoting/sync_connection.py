"""A blocking connection to a server: a request is sent, and the call waits for its answer.

The name server links of a broker, a slave that copies its master's tables, and the tasks of a Spark
job use it. The client of applications (`troupemq/client/connection/remoting.py`) has many requests
in flight at once, on a thread of its own.
"""

from collections.abc import Callable
from itertools import count
from socket import IPPROTO_TCP, MSG_PEEK, TCP_NODELAY, create_connection, socket
from ssl import SSLContext, SSLError, SSLSocket, SSLWantReadError
from time import monotonic, time_ns
from types import TracebackType
from typing import Self

from protocol.codes import ResponseCode
from protocol.errors import FrameError
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.signature import Credentials
from protocol.stream import CommandStream
from remoting.address import split_address
from remoting.tls import TlsUnusable, plain_hint, reason_of_tls
from remoting.tls_options import WANTS_TLS, Tls, tls_of_environment

CONNECT_TIMEOUT_MS = 3000
"""Timeout of 4.9.7; a server that is down must not delay requests to others for long."""
TIMEOUT_MS = 30_000
"""Default time for an answer: a broker may first have to read old messages from its disk."""
CANCEL_CHECK_S = 0.25
"""Interval at which a wait for an answer checks whether it was cancelled."""
RECEIVE_BYTES = 256 << 10
UNREAD_BYTES_MAX = 1 << 20
"""Maximum bytes of late answers read before a request; they are not that long."""

_ACCESS_CONTROL = "AclException"


class RemotingFailed(Exception):
    """A request without the expected answer; the text is the address and the reason."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionBroken(RemotingFailed):
    """A connection that failed to open, or broke before the answer.

    The server may have acted on the request.
    """


class ConnectionLost(ConnectionBroken):
    """The server closed a connection that had been opened."""


class NoAnswer(RemotingFailed):
    """No answer in time. The server may have acted on the request."""


class Refused(RemotingFailed):
    """The server refused the request with this `code` and `remark`."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        known = ResponseCode._value2member_map_.get(code)
        name = known.name if isinstance(known, ResponseCode) else f"code {code}"
        super().__init__(address, f"answered {name}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark or ""

    @property
    def is_denial(self) -> bool:
        """Whether access control refused it: a repetition gets the same answer."""
        return _ACCESS_CONTROL in self.remark


class SyncConnection:
    """Connects with the first request, and again after a failure. Not shared between threads."""

    def __init__(
        self,
        address: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        context: Callable[[], SSLContext | None] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raise ValueError for a text that is no address.

        `credentials` sign every request. `context` returns the TLS context of a new connection;
        without it `tls` does, by default that of the environment. `is_cancelled` is called while an
        answer is awaited; when it returns True the call ends with NoAnswer.
        """
        self.address = address
        self._host_and_port = split_address(address)
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._opaques = count(1)
        self._socket: socket | None = None
        self._tls = tls or tls_of_environment() if context is None else None
        self._context = self._context_of_tls if context is None else context
        self._hints_at_tls = context is None and self._tls is None
        self._is_cancelled = is_cancelled
        self._frames = CommandStream()
        self._has_heard = False
        self.connection_count = 0
        """Connections opened so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def ask(self, request: RemotingCommand, *, repeats: bool = False) -> RemotingCommand:
        """Return a successful answer.

        Raise Refused for any other code, and what `call` raises.
        """
        answer = self.call(request, repeats=repeats)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(self.address, answer.code, answer.remark)
        return answer

    def call(
        self,
        request: RemotingCommand,
        *,
        timeout_ms: int | None = None,
        repeats: bool = False,
        over: int | None = None,
    ) -> RemotingCommand:
        """Return the answer, whatever its code. Raise ConnectionBroken or NoAnswer.

        With `repeats` the request is sent once more over a new connection if the server closed the
        first one: right for requests that change nothing. With `over` it is sent over the
        connection of this number only; if that one is closed, the call raises ConnectionLost.
        """
        deadline_s = monotonic() + (timeout_ms or self._timeout_ms) / 1000
        self._drop_if_closed()
        if over is not None and (self._socket is None or self.connection_count != over):
            raise ConnectionLost(self.address, "the connection was closed")
        try:
            return self._exchange(request, deadline_s)
        except ConnectionLost:
            if not repeats or over is not None:
                raise
        return self._exchange(request, deadline_s)

    def send(self, request: RemotingCommand, *, timeout_ms: int | None = None) -> None:
        """Send a one-way request. Raise ConnectionBroken or NoAnswer."""
        request.flag |= ONEWAY_FLAG
        self._drop_if_closed()
        self._exchange(request, monotonic() + (timeout_ms or self._timeout_ms) / 1000)

    def is_connected(self) -> bool:
        """Return whether a connection is open, as far as is known without a request.

        Raise ConnectionBroken where it had to be closed for invalid data.
        """
        self._drop_if_closed()
        return self._socket is not None

    def _drop_if_closed(self) -> None:
        """Close a connection that the server has closed: what is written to it would be lost.

        Raise ConnectionBroken for invalid data.
        """
        if self._socket is None:
            return
        try:
            self._socket.setblocking(False)  # with a timeout, recv would wait for data first
            if isinstance(self._socket, SSLSocket):
                is_closed = not self._read_late_answers(self._socket)
            else:
                is_closed = not self._socket.recv(1, MSG_PEEK)
        except (BlockingIOError, SSLWantReadError):
            is_closed = False
        except OSError:
            is_closed = True
        except FrameError as error:
            self.close()
            raise ConnectionBroken(self.address, error.remark) from None
        if is_closed:
            self.close()

    def _read_late_answers(self, sock: SSLSocket) -> bool:
        """Read and drop late answers, for TLS has no peek; return False at the end of the stream.

        Raise SSLWantReadError, FrameError.
        """
        left_bytes = UNREAD_BYTES_MAX
        while left_bytes > 0:
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                return False
            left_bytes -= len(data)
            for _ in self._frames.receive(data):
                pass
        return True

    def _exchange(self, request: RemotingCommand, deadline_s: float) -> RemotingCommand:
        """Send a request and return its answer; return a one-way request itself."""
        request.opaque = next(self._opaques)
        if self._credentials is not None:
            self._credentials.sign(request, time_ns() // 1_000_000)
        timeout_ms = (deadline_s - monotonic()) * 1000
        try:
            frame = encode(request)
            connected = self._connected(deadline_s)
            connected.settimeout(left_s(deadline_s))
            connected.sendall(frame)
            if request.is_oneway:
                return request
            return self._answer_to(request.opaque, connected, deadline_s)
        except TimeoutError:
            self.close()
            raise NoAnswer(self.address, f"no answer in {timeout_ms:.0f} ms") from None
        except OSError as error:
            is_unanswered = self._socket is not None and not self._has_heard
            hint = WANTS_TLS if is_unanswered and self._hints_at_tls else ""
            kind = ConnectionBroken if self._socket is None else ConnectionLost
            self.close()
            text = reason_of_tls(error) if isinstance(error, SSLError) else error.strerror
            raise kind(self.address, (text or str(error)) + hint) from None
        except FrameError as error:
            self.close()
            raise ConnectionBroken(self.address, error.remark) from None

    def _connected(self, deadline_s: float) -> socket:
        """Return the socket, connected. Raise OSError, TimeoutError, ConnectionBroken."""
        if self._socket is None:
            timeout_s = min(CONNECT_TIMEOUT_MS / 1000, left_s(deadline_s))
            try:
                made = create_connection(self._host_and_port, timeout_s)
            except TimeoutError:
                waited = f"no connection in {timeout_s * 1000:.0f} ms"
                raise ConnectionBroken(self.address, waited) from None
            except UnicodeError:  # longer than any name
                reason = f"no host is called {self._host_and_port[0]}"
                raise ConnectionBroken(self.address, reason) from None
            made.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            self._socket = self._with_tls(made)
            self._frames = CommandStream()
            self._has_heard = False
            self.connection_count += 1
        return self._socket

    def _context_of_tls(self) -> SSLContext | None:
        return None if self._tls is None else self._tls.context()

    def _with_tls(self, made: socket) -> socket:
        try:
            context = self._context()
            if context is None:
                return made
            return context.wrap_socket(made, server_hostname=self._host_and_port[0])
        except TlsUnusable as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no TLS handshake in {CONNECT_TIMEOUT_MS} ms"
        except SSLError as error:
            reason = reason_of_tls(error) + plain_hint(error)
        except OSError:
            made.close()
            raise
        except ValueError as error:  # a name that no certificate can have
            reason = f"no certificate names {self._host_and_port[0]}: {error}"
        made.close()
        raise ConnectionBroken(self.address, reason)

    def _answer_to(self, opaque: int, connected: socket, deadline_s: float) -> RemotingCommand:
        """Wait for the answer. Late answers and requests of the server are dropped."""
        while True:
            connected.settimeout(min(CANCEL_CHECK_S, left_s(deadline_s)))
            try:
                data = connected.recv(RECEIVE_BYTES)
            except TimeoutError:
                if self._is_cancelled():
                    raise
                continue
            if not data:
                raise ConnectionResetError("the connection was closed before the answer was whole")
            for command in self._frames.receive(data):
                self._has_heard = True
                if command.is_response and command.opaque == opaque:
                    return command


def left_s(deadline_s: float) -> float:
    """Return the seconds until the deadline; raise TimeoutError if it has passed."""
    if (left := deadline_s - monotonic()) <= 0:
        raise TimeoutError
    return left
