"""A connection of the client with TLS; a module of its own, since OpenSSL takes 8 ms to load."""

from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE
from socket import socket
from ssl import SSLContext, SSLError, SSLWantReadError, SSLWantWriteError

from protocol.frame import RemotingCommand
from remoting.tls import plain_hint, reason_of_tls
from remoting.tls_socket import TlsSocket
from troupemq.client.connection.connection import ServerConnection, split_address
from troupemq.client.connection.pending import Later
from troupemq.client.errors import ConnectionFailed


class TlsConnection(ServerConnection):
    """A connection that is open after its handshake; only the I/O thread uses its socket."""

    def __init__(
        self,
        address: str,
        on_command: Callable[[ServerConnection, RemotingCommand], None],
        on_changed: Callable[[ServerConnection], None],
        later: Later,
        tls: SSLContext,
    ) -> None:
        self._tls = tls
        super().__init__(address, on_command, on_changed, later)

    def _opened(self) -> bool:
        sock = self.socket
        self._check_connected(sock)
        try:
            if isinstance(sock, socket):
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
            reason = reason_of_tls(error) + plain_hint(error)
            raise ConnectionFailed(f"{self.address}: {reason}") from None
        except ValueError as error:  # a host name that no certificate can have
            raise ConnectionFailed(f"{self.address}: {error}") from None
        self.is_open = True
        return True

    def _lost(self, error: OSError) -> ConnectionFailed:
        if not isinstance(error, SSLError):
            return super()._lost(error)
        return ConnectionFailed(f"{self.address}: connection lost, {reason_of_tls(error)}")

    def _perhaps_tls(self) -> str:
        return ""
