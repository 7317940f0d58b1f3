"""The TLS handshakes of a server, on a thread: each takes up to a millisecond of CPU time.

Owns: the TLS contexts and the watch of their files; each socket between StepHandshake and
HandshakeStepped.
Receives: StepHandshake (from TlsNegotiator), its tick.
Sends: HandshakeStepped (to TlsNegotiator).

Source of the watch: srvutil/FileWatchService.java.
"""

from dataclasses import dataclass
from select import EPOLLIN, EPOLLOUT
from ssl import SSLWantReadError, SSLWantWriteError
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.messages import HandshakeStepped, StepHandshake
from actors.network.tls_contexts import TlsContexts
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket

WATCH_MS = 1000


@dataclass(frozen=True, slots=True)
class _Look:
    pass


class Handshakes(Actor):
    where: ClassVar[Where] = "thread"

    def __init__(self, contexts: TlsContexts) -> None:
        super().__init__()
        self._contexts = contexts

    def on_start(self) -> None:
        self.every(WATCH_MS, _Look())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Reload changed files, for new handshakes."""
        self._contexts.look()

    @handles(StepHandshake)
    def on_shake(self, message: StepHandshake) -> None:
        sock = message.sock
        if message.is_over:
            message.reply_to.tell(HandshakeStepped(message.number, sock, 0, "too late"))
            return
        events, failure = 0, ""
        try:
            if not isinstance(sock, TlsSocket):
                assert self._contexts.server is not None
                sock = TlsSocket(sock, self._contexts.server)
            sock.do_handshake()
        except SSLWantReadError:
            events = EPOLLIN
        except SSLWantWriteError:
            events = EPOLLOUT
        except OSError as error:
            failure = reason_of_tls(error)
        message.reply_to.tell(HandshakeStepped(message.number, sock, events, failure))
