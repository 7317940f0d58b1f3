"""Opens connections to other brokers, off the loop.

Name lookup, an unreachable peer and the TLS handshake would block the loop.

Owns: nothing; the opened socket belongs to the requester.
Receives: Dial (from HaSlave).
Sends: Dialed (to HaSlave).
"""

from select import POLLIN, POLLOUT, poll
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from ssl import SSLError, SSLWantReadError, SSLWantWriteError
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.messages import Dial, Dialed
from actors.network.tls_contexts import ToCallWith
from protocol.host import host_of
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket
from storage.errors import reason_of

DIAL_TIMEOUT_S = 3.0


class Dialler(Actor):
    where: ClassVar[Where] = "thread"

    def __init__(self, tls: ToCallWith = lambda: None) -> None:
        super().__init__()
        self._tls = tls

    @handles(Dial)
    def on_dial(self, message: Dial) -> None:
        host, port = host_of(message.address), message.address.rpartition(":")[2]
        try:
            sock = self._opened(host, int(port))
        except SSLError as error:
            message.reply_to.tell(Dialed(None, reason_of_tls(error)))
        except OSError as error:
            message.reply_to.tell(Dialed(None, reason_of(error)))
        except ValueError as error:  # the port is missing or invalid
            message.reply_to.tell(Dialed(None, str(error)))
        else:
            message.reply_to.tell(Dialed(sock))

    def _opened(self, host: str, port: int) -> socket | TlsSocket:
        sock = create_connection((host, port), DIAL_TIMEOUT_S)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        sock.setblocking(False)
        context = self._tls()
        if context is None:
            return sock
        try:
            with_tls = TlsSocket(sock, context, server_hostname=host)
            self._shake(with_tls)
        except (OSError, ValueError):
            sock.close()
            raise
        return with_tls

    def _shake(self, sock: TlsSocket) -> None:
        """Do the whole handshake within DIAL_TIMEOUT_S, even if bytes come one by one."""
        now_ms = self.system.clock.monotonic_ms
        end_ms = now_ms() + DIAL_TIMEOUT_S * 1000
        while True:
            try:
                sock.do_handshake()
                return
            except SSLWantReadError:
                events = POLLIN
            except SSLWantWriteError:
                events = POLLOUT
            waits = poll()
            waits.register(sock.fileno(), events)
            left_ms = end_ms - now_ms()
            if left_ms <= 0 or not waits.poll(left_ms):
                raise TimeoutError(f"no TLS handshake in {DIAL_TIMEOUT_S:g} s")
