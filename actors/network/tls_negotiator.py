"""TLS negotiation of new connections: looks at the first byte, decodes nothing.

Owns: sockets without a first byte, and sockets during their handshake.
Receives: Accepted (from Acceptor), HandshakeStepped (from Handshakes), its tick.
Sends: StepHandshake (to Handshakes), Accepted with a TLS socket (to the server of the port).

A TLS connection begins with 0x16. No frame begins so, nor does a slave's first report, so one port
serves both. A plain connection to a port that enforces TLS is closed before a byte is read. 4.9.7
still serves the requests of the first read.

Source: NettyRemotingServer.java (HandshakeHandler).

Handshakes carries them out on a thread: each takes up to a millisecond of CPU time.

Owns: the TLS contexts and the watch of their files; each socket between StepHandshake and
HandshakeStepped.
Receives: StepHandshake (from TlsNegotiator), its tick.
Sends: HandshakeStepped (to TlsNegotiator).

Source of the watch: srvutil/FileWatchService.java.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, islice
from select import EPOLLIN, EPOLLOUT
from socket import MSG_PEEK, socket
from ssl import SSLWantReadError, SSLWantWriteError
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.network.connections import Accepted
from actors.network.limits import ConnectionSlots
from actors.network.messages import HandshakeStepped, StepHandshake
from actors.network.tls_contexts import TlsContexts
from protocol.host import network_of
from remoting.tls import HANDSHAKE_BYTE, reason_of_tls
from remoting.tls_socket import TlsSocket

TIME_MS = 10_000
"""Deadline from the accept to the end of the handshake; an official slave is silent for 5 s."""
TICK_MS = 1000
SHAKING_MAX = 256
"""Maximum simultaneous handshakes of one port; an unfinished one holds some 60 KiB."""
HOST_SHAKING_MAX = 32
WAITING_MAX = 1024
"""Maximum connections that wait for their handshake; each costs a descriptor."""
HOST_MAX = 256
"""Maximum waiting and running handshakes of one address."""
CLOSED_PER_TURN = 256
"""Timed-out connections closed in a turn: some 5 ms of the loop."""

SUCCESS, FAILED, TOO_LATE, TOO_MANY, PLAIN = HANDSHAKE_RESULTS = (
    *("success", "failed", "too_late", "too_many"),
    "plain",  # a connection without TLS where TLS is enforced
)


@dataclass(frozen=True, slots=True)
class _Tick:
    pass


@dataclass(frozen=True, slots=True)
class _GoOn:
    pass


class _State(Enum):
    SILENT = "no data received"
    WAITING = "TLS handshake not begun"
    SHAKING = "TLS handshake unfinished"


_numbers = count(1)
"""Ids of all pending connections; unique because a step may return to the next incarnation."""


class _PendingConnection:
    """An accepted connection before the end of its TLS handshake."""

    __slots__ = (
        "_entrance",
        "accepted",
        "host",
        "network",
        "number",
        "shake",
        "since_ms",
        "sock",
        "state",
    )

    def __init__(
        self,
        entrance: "TlsNegotiator",
        number: int,
        accepted: Accepted,
        sock: socket,
        since_ms: float,
    ) -> None:
        self._entrance = entrance
        self.number = number
        self.accepted = accepted
        self.host = accepted.remote[0]
        self.network = network_of(self.host)
        self.sock: socket | TlsSocket | None = sock
        """None while Handshakes has it."""
        self.shake: StepHandshake | None = None
        self.since_ms = since_ms
        self.state = _State.SILENT

    def on_readable(self) -> None:
        self._entrance.ready(self)

    def on_writable(self) -> None:
        self._entrance.ready(self)


class TlsNegotiator(Actor):
    """Actor that negotiates TLS on one port. Runs on the loop."""

    def __init__(
        self,
        to: ActorAddress,
        handshakes: ActorAddress,
        *,
        takes_plain: bool,
        results: Counter[str] | None = None,
        places: ConnectionSlots | None = None,
        may_come: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`results` counts the results of TLS connections, by HANDSHAKE_RESULTS.

        A connection without a slot in `places`, or from an address for which `may_come` is False,
        is closed at once.
        """
        super().__init__()
        self._results: Counter[str] = Counter() if results is None else results
        self._to = to
        self._handshakes = handshakes
        self._takes_plain = takes_plain
        self._places, self._may_come = places, may_come
        self._newcomers: dict[int, _PendingConnection] = {}
        self._ending: dict[int, _PendingConnection] = {}
        """Timed-out connections with a handshake still on the thread; they keep their slots."""
        self._waiting: dict[int, _PendingConnection] = {}
        self._shaking = 0
        self._host_shaking: Counter[str] = Counter()
        self._of_host: Counter[str] = Counter()

    def on_start(self) -> None:
        self._rarely = self.system.rarely
        self.every(TICK_MS, _Tick())

    @property
    def shaking_count(self) -> int:
        return self._shaking

    # --- the first byte

    @handles(Accepted)
    def on_accepted(self, message: Accepted) -> None:
        assert isinstance(message.sock, socket)
        if not self._may_come(message.remote[0]):
            message.on_undelivered("address not allowed")
            return
        if self._places is not None and not message.takes_place(self._places, self._rarely):
            return
        now_ms = self.system.clock.monotonic_ms()
        newcomer = _PendingConnection(self, next(_numbers), message, message.sock, now_ms)
        self._newcomers[newcomer.number] = newcomer
        self._watch(newcomer, EPOLLIN)

    def ready(self, newcomer: _PendingConnection) -> None:
        if newcomer.state is _State.SHAKING:
            self._go_on(newcomer)
            return
        sock = newcomer.sock
        assert sock is not None
        try:
            first = sock.recv(1, MSG_PEEK) if isinstance(sock, socket) else b""
        except BlockingIOError:
            return
        except OSError:
            first = b""
        self.system.loop.unwatch(sock)
        if not first:
            self._close(newcomer)
        elif first[0] == HANDSHAKE_BYTE:
            self._take_tls(newcomer)
        elif self._takes_plain:
            del self._newcomers[newcomer.number]
            self._to.tell(newcomer.accepted)
        else:
            self._results[PLAIN] += 1
            self._close(newcomer)
            self._rarely.warn("connection without TLS rejected", address=newcomer.host)

    # --- handshakes

    def _take_tls(self, newcomer: _PendingConnection) -> None:
        if len(self._waiting) >= WAITING_MAX or self._of_host[newcomer.network] >= HOST_MAX:
            self._results[TOO_MANY] += 1
            self._close(newcomer)
            self._rarely.warn("TLS connection rejected: too many handshakes", address=newcomer.host)
            return
        self._of_host[newcomer.network] += 1
        newcomer.state = _State.WAITING
        self._waiting[newcomer.number] = newcomer
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin as many of the waiting handshakes as the limits allow, the oldest first."""
        for newcomer in [*self._waiting.values()]:
            if self._shaking >= SHAKING_MAX:
                return
            if self._host_shaking[newcomer.network] < HOST_SHAKING_MAX:
                del self._waiting[newcomer.number]
                newcomer.state = _State.SHAKING
                self._shaking += 1
                self._host_shaking[newcomer.network] += 1
                self._shake(newcomer)

    def _go_on(self, newcomer: _PendingConnection) -> None:
        assert newcomer.sock is not None
        self.system.loop.unwatch(newcomer.sock)
        self._shake(newcomer)

    def _shake(self, newcomer: _PendingConnection) -> None:
        sock, newcomer.sock = newcomer.sock, None
        assert sock is not None
        newcomer.shake = StepHandshake(newcomer.number, sock, self.address)
        self._handshakes.tell(newcomer.shake)

    @handles(HandshakeStepped)
    def on_shaken(self, message: HandshakeStepped) -> None:
        newcomer = self._newcomers.get(message.number)
        if newcomer is None:  # it has timed out, or belongs to the previous incarnation
            message.sock.close()
            if (ending := self._ending.pop(message.number, None)) is not None:
                ending.accepted.give_back_place()
                self._free(ending)
            return
        newcomer.sock = message.sock
        if message.failure:
            self._results[FAILED] += 1
            self._close(newcomer)
            reason = message.failure
            self._rarely.warn(
                "TLS handshake failed", of=reason, address=newcomer.host, reason=reason
            )
        elif message.events:
            self._watch(newcomer, message.events)
        else:
            assert isinstance(message.sock, TlsSocket)
            self._results[SUCCESS] += 1
            self._forget(newcomer)
            self._to.tell(replace(newcomer.accepted, sock=message.sock))

    # --- the end

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        oldest_ms = self.system.clock.monotonic_ms() - TIME_MS
        for newcomer in [*islice(self._newcomers.values(), CLOSED_PER_TURN)]:
            if newcomer.since_ms > oldest_ms:
                return
            if newcomer.sock is not None:
                self.system.loop.unwatch(newcomer.sock)
            if newcomer.state is not _State.SILENT:
                self._results[TOO_LATE] += 1
            self._close(newcomer)
            self._rarely.warn(
                f"connection timed out: {newcomer.state.value}",
                address=newcomer.host,
                after_s=TIME_MS // 1000,
            )
        if self._newcomers:
            self.address.tell(_GoOn())

    @handles(_GoOn)
    def on_go_on(self, _: _GoOn) -> None:
        self.on_tick(_Tick())

    def _watch(self, newcomer: _PendingConnection, events: int) -> None:
        assert newcomer.sock is not None
        self.system.loop.watch(newcomer.sock, events, newcomer, owner=self)

    def _close(self, newcomer: _PendingConnection) -> None:
        """Close a connection; a socket on the Handshakes thread is closed when it returns."""
        if newcomer.sock is not None:
            newcomer.sock.close()
            newcomer.accepted.give_back_place()
            self._forget(newcomer)
            return
        assert newcomer.shake is not None
        newcomer.shake.is_over = True
        self._ending[newcomer.number] = self._newcomers.pop(newcomer.number)

    def _forget(self, newcomer: _PendingConnection) -> None:
        del self._newcomers[newcomer.number]
        self._free(newcomer)

    def _free(self, newcomer: _PendingConnection) -> None:
        host = newcomer.network
        if newcomer.state is _State.SHAKING:
            self._shaking -= 1
            self._less(self._host_shaking, host)
            self._less(self._of_host, host)
        elif newcomer.state is _State.WAITING:
            del self._waiting[newcomer.number]
            self._less(self._of_host, host)
        if self._waiting:
            self._begin_some()

    @staticmethod
    def _less(counts: Counter[str], host: str) -> None:
        counts[host] -= 1
        if not counts[host]:
            del counts[host]

    def on_stop(self) -> None:
        self._close_all()

    def on_failure(self, *_: object) -> None:
        """Close all pending connections; clients reconnect."""
        self._close_all()

    def _close_all(self) -> None:
        self._waiting.clear()
        for newcomer in [*self._newcomers.values(), *self._ending.values()]:
            newcomer.accepted.give_back_place()
            if newcomer.sock is not None:
                self.system.loop.unwatch(newcomer.sock)
                newcomer.sock.close()
            elif newcomer.shake is not None:
                newcomer.shake.is_over = True
        self._newcomers.clear()
        self._ending.clear()


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
