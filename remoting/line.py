"""One blocking connection to a server: a request goes out, and its answer is waited for.

For programs that ask one thing after the other, such as the tasks of a Spark job. The client of
applications (`troupemq/client/connection/remoting.py`) has many requests under way at once, and a
thread.
"""

from itertools import count
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from ssl import SSLError
from time import monotonic, time_ns
from types import TracebackType
from typing import Self

from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import FrameError
from protocol.frame import encode
from protocol.signature import Credentials
from protocol.stream import CommandStream
from remoting.address import split_address
from remoting.tls import TlsUnusable, reason_of_tls
from remoting.tls_options import WANTS_TLS, Tls, tls_of_environment

CONNECT_TIMEOUT_MS = 3000
TIMEOUT_MS = 30_000
"""For an answer: a broker may have to read old messages from its disk first."""

_RECEIVE_BYTES = 256 << 10
_ACCESS_CONTROL = "AclException"


class RemotingFailed(Exception):
    """A request without the answer that was asked for; the text begins with the address."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"{address}: {why}")
        self.address = address


class ConnectionBroken(RemotingFailed):
    """No connection, or it broke before the answer came. The request may have been carried out."""


class NoAnswer(RemotingFailed):
    """No answer in time. The request may have been carried out."""


class Refused(RemotingFailed):
    """The server answered that it would not; `code` and `remark` are its own."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        known = ResponseCode._value2member_map_.get(code)
        name = known.name if isinstance(known, ResponseCode) else f"code {code}"
        super().__init__(address, f"answered {name}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark or ""

    @property
    def is_denial(self) -> bool:
        """Whether access control said it: it says the same the next time."""
        return _ACCESS_CONTROL in self.remark


class Line:
    """Connects with the first request. Not shared between threads."""

    def __init__(
        self,
        address: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """With `credentials` every request is signed; `tls`: else as the environment says. Raises
        ValueError for a text that is no address."""
        self.address = address
        self._host_and_port = split_address(address)
        self._timeout_s = timeout_ms / 1000
        self._credentials = credentials
        self._opaques = count(1)
        self._socket: socket | None = None
        self._tls = tls or tls_of_environment()
        self._frames = CommandStream()
        self._has_heard = False

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
        """Closes the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._frames = CommandStream()
        self._has_heard = False

    def ask(self, command: RemotingCommand, *, repeats: bool = False) -> RemotingCommand:
        """The answer, if it is a success. Raises Refused for any other code, and what `call` does.

        `repeats`: see `call`.
        """
        answer = self.call(command, repeats=repeats)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(self.address, answer.code, answer.remark)
        return answer

    def call(self, command: RemotingCommand, *, repeats: bool = False) -> RemotingCommand:
        """The answer, whatever its code. Raises ConnectionBroken or NoAnswer.

        `repeats`: over a new connection once more if the first one breaks, which is right for
        requests that change nothing.
        """
        try:
            return self._exchange(command)
        except ConnectionBroken:
            if not repeats:
                raise
        return self._exchange(command)

    def _exchange(self, command: RemotingCommand) -> RemotingCommand:
        command.opaque = next(self._opaques)
        if self._credentials is not None:
            self._credentials.sign(command, time_ns() // 1_000_000)
        try:
            connected = self._connected()
            deadline_s = monotonic() + self._timeout_s
            connected.settimeout(self._timeout_s)
            connected.sendall(encode(command))
            return self._answer_to(command.opaque, connected, deadline_s)
        except TimeoutError:
            self.close()
            waited = f"no answer in {self._timeout_s * 1000:.0f} ms"
            raise NoAnswer(self.address, waited) from None
        except OSError as error:
            broken = (error.strerror or str(error)) + self._perhaps_tls()
            self.close()
            raise ConnectionBroken(self.address, broken) from None
        except FrameError as error:
            self.close()
            raise ConnectionBroken(self.address, error.remark) from None

    def _perhaps_tls(self) -> str:
        is_unanswered = self._socket is not None and not self._has_heard
        return WANTS_TLS if is_unanswered and self._tls is None else ""

    def _connected(self) -> socket:
        """Raises OSError, ConnectionBroken if nobody takes the connection in time."""
        if self._socket is None:
            try:
                made = create_connection(self._host_and_port, CONNECT_TIMEOUT_MS / 1000)
            except TimeoutError:
                waited = f"no connection in {CONNECT_TIMEOUT_MS} ms"
                raise ConnectionBroken(self.address, waited) from None
            made.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            self._socket = made if self._tls is None else self._with_tls(made, self._tls)
        return self._socket

    def _with_tls(self, made: socket, tls: Tls) -> socket:
        try:
            return tls.context().wrap_socket(made, server_hostname=self._host_and_port[0])
        except TlsUnusable as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no TLS handshake in {CONNECT_TIMEOUT_MS} ms"
        except SSLError as error:
            reason = reason_of_tls(error)
        except OSError:
            made.close()
            raise
        except ValueError as error:  # a name that no certificate can have
            reason = str(error)
        made.close()
        raise ConnectionBroken(self.address, reason)

    def _answer_to(self, opaque: int, connected: socket, deadline_s: float) -> RemotingCommand:
        """Requests of the other side are not answered: whoever has only a line serves nothing."""
        while True:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError
            connected.settimeout(left_s)
            data = connected.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the connection was closed before the answer was whole")
            self._has_heard = True
            for command in self._frames.receive(data):
                if command.is_response and command.opaque == opaque:
                    return command
