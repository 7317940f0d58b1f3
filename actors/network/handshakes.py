"""The TLS handshakes of a server, apart from the loop: each costs up to a millisecond of computing.

Owns: the TLS contexts, whose files it watches, and each socket from `StepHandshake` to
`HandshakeStepped`.
Told by: TlsNegotiator (`StepHandshake`), its tick.   Tells: it (`HandshakeStepped`).

Source of the watch: srvutil/FileWatchService.java.
"""

from dataclasses import dataclass
from select import EPOLLIN, EPOLLOUT
from socket import socket
from ssl import SSLWantReadError, SSLWantWriteError
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.network.tls_contexts import TlsContexts
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket

WATCH_MS = 1000


@dataclass(slots=True)
class StepHandshake:
    """Go on with a handshake as far as it goes without waiting."""

    number: int
    """The entrance's own."""
    sock: socket | TlsSocket
    """TlsSocket: it has begun."""
    reply_to: ActorAddress
    is_over: bool = False
    """Set by who asked, whose time was over while this waited."""

    def refuse(self, remark: str) -> None:
        """Nobody goes on with it."""
        self.reply_to.tell(HandshakeStepped(self.number, self.sock, 0, remark))


@dataclass(slots=True)
class HandshakeStepped:
    """How far it is."""

    number: int
    sock: socket | TlsSocket
    events: int
    """For what it waits; 0: it is over."""
    failure: str = ""
    """Why it came to nothing."""

    def refuse(self, _remark: str) -> None:
        """Whoever asked is gone."""
        self.sock.close()


@dataclass(frozen=True, slots=True)
class _Look:
    """Have the files changed?"""


class Handshakes(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    def __init__(self, contexts: TlsContexts) -> None:
        super().__init__()
        self._contexts = contexts

    def on_start(self) -> None:
        self.every(WATCH_MS, _Look())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Reads what is new; it holds for handshakes that begin from now on."""
        self._contexts.look()

    @handles(StepHandshake)
    def on_shake(self, message: StepHandshake) -> None:
        """One step."""
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
