"""Listening sockets, and all connections accepted on them.

Connections owns the live connections. It starts them, closes idle ones, and lets them send their
answers when the server stops. It starts first and stops last.
Receives: Accepted (from Acceptor, TlsNegotiator), PeerLeft and PeerClosed (from connections),
CopyOut (from CleanFiles), AskFigures (from MetricsPort), Started and Exited, its ticks.
Sends: CopyOut, StopReading, Close (to connections).

Acceptor owns the listening sockets. It starts last and stops first, so that no connection is
accepted while the server stops.
Sends: Accepted (to Connections or TlsNegotiator).
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM
from select import EPOLLIN
from socket import (
    IPPROTO_TCP,
    TCP_NODELAY,
    socket,
)

from actors.engine.actor import Actor, AskFigures, BatchEnd, Exited, Started, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.engine.server_log import RateLimitedLog, get_logger
from actors.network.bind_address import bound_to
from actors.network.connection import Connection
from actors.network.limits import (
    ConnectionSlots,
    Limits,
    descriptors_for_peers,
    new_limits,
)
from actors.network.messages import (
    Close,
    ConnectionFigures,
    CopyOut,
    PeerClosed,
    PeerLeft,
    StopReading,
)
from actors.network.request import Service
from protocol.host import host_port
from remoting.tls_socket import TlsSocket


@dataclass(slots=True)
class Accepted(Message):
    """A new socket for `service`, sent by an acceptor or a TlsNegotiator to the port's server."""

    sock: socket | TlsSocket
    remote: tuple[str, int]
    service: Service
    places: ConnectionSlots | None = None
    """Slots from which one was taken for it; the receiver keeps the slot or gives it back."""

    def takes_place(self, places: ConnectionSlots, rarely: RateLimitedLog) -> bool:
        """Return whether it has a slot or gets one; else close and log it."""
        if self.places is not None:
            return True
        host = self.remote[0]
        if (setting := places.take(host)) is not None:
            self.sock.close()
            rarely.warn(f"connection rejected: {setting} reached", address=host)
            return False
        self.places = places
        return True

    def give_back_place(self) -> None:
        """Give the slot back; later calls do nothing."""
        places, self.places = self.places, None
        if places is not None:
            places.leave(self.remote[0])

    def on_undelivered(self, _remark: str) -> None:
        self.sock.close()
        self.give_back_place()


log = get_logger(__name__)

IDLE_TICK_MS = 10_000
COPY_OUT_AGAIN_MS = 1000
ENDS_AT_ONCE = 2
"""Connections ended at once after their peers have gone; each takes 0.1 ms."""
ENDS_REST_MS = 1
"""Pause before the next ones: ending ten thousand at once would block the loop for seconds."""
ACCEPTS_PER_ROUND = 1
"""Connections accepted in a round: each costs some 0.2 ms, with its actor."""
ACCEPT_AGAIN_MS = 500
"""Pause after the system has no socket left: the port stays ready, so a retry would spin."""

_USED_UP = {
    EMFILE: "too many open files",
    ENFILE: "too many open files on this machine",
    ENOBUFS: "out of socket memory",
    ENOMEM: "out of memory",
}


class PortTaken(Exception):
    """The address cannot be listened on; the text tells the operator what to do."""


@dataclass(slots=True)
class _Tick:
    pass


@dataclass(slots=True)
class _NextTurn:
    """Tick: give the next connection with pending requests its turn."""


@dataclass(slots=True)
class _EndMore:
    pass


@dataclass(slots=True)
class _CopyOutAgain:
    """Timer tick: repeat CopyOut for answers that were on their way to their connections."""

    first: CopyOut


class Connections(Actor):
    def __init__(
        self, idle_ms: float, places: ConnectionSlots | None = None, frame_bytes_max: int = 0
    ) -> None:
        """`frame_bytes_max`: longest frame of its ports, if longer than the default."""
        super().__init__()
        self._frame_bytes_max = frame_bytes_max
        self._idle_ms = idle_ms
        self._live: dict[int, Connection] = {}
        self._closing = False
        self._left: deque[PeerLeft] = deque()
        self._is_resting = False
        self._turn_began_ms, self._ended_in_turn = 0.0, 0
        self._places = places or ConnectionSlots()
        self._limits: Limits | None = None

    @property
    def limits(self) -> Limits:
        if self._limits is None:
            self._limits = new_limits(
                self.system.clock.monotonic_ms,
                self._turn_later,
                self._places,
                self._frame_bytes_max,
            )
        return self._limits

    def on_start(self) -> None:
        self.every(min(IDLE_TICK_MS, max(self._idle_ms / 4, 1)), _Tick())

    def _turn_later(self) -> None:
        self.system.loop.tell_in_next_round(self.address, _NextTurn())

    @handles(_NextTurn)
    def on_next_turn(self, _: _NextTurn) -> None:
        self.limits.turns.next()

    @property
    def count(self) -> int:
        return len(self._live)

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        """Reply with ConnectionFigures; ten thousand connections take 3 ms, in generators 10."""
        live = self._live.values()
        message.reply(
            ConnectionFigures(
                Counter([(each.is_fast, each.has_tls) for each in live]),
                dict(self._places.refused),
                sum([each.unsent_bytes for each in live]),
            )
        )

    @handles(Accepted)
    def on_accepted(self, message: Accepted) -> None:
        if self._closing:
            message.on_undelivered("server stopping")
            return
        if not message.takes_place(self._places, self.limits.rarely):
            return
        connection = Connection(
            message.sock, message.remote, message.service, self.address, self.limits
        )
        self._live[connection.peer_id] = connection
        message.places = None  # the connection keeps the slot from here on
        name = f"connection {connection.remote}"
        self.system.spawn(connection, name, parent=self.address)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        connection = self._live.pop(message.peer.peer_id, None)
        if connection is not None:
            self._places.leave(connection.remote_host)

    @handles(PeerLeft)
    def on_peer_left(self, message: PeerLeft) -> None:
        self._left.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        if self._left and not self._is_resting:
            self._end_some()

    @handles(_EndMore)
    def on_end_more(self, _: _EndMore) -> None:
        self._is_resting = False
        self._end_some()

    def _end_some(self) -> None:
        now_ms = self.system.clock.monotonic_ms()
        if now_ms - self._turn_began_ms >= ENDS_REST_MS:
            self._turn_began_ms, self._ended_in_turn = now_ms, 0
        while self._left and self._ended_in_turn < ENDS_AT_ONCE:
            left = self._left.popleft()
            left.connection.end(left.reason)
            self._ended_in_turn += 1
        if self._left:
            self._is_resting = True
            self.after(ENDS_REST_MS, _EndMore())

    @handles(Started)
    def on_child_started(self, _: Started) -> None: ...

    @handles(Exited)
    def on_child_exited(self, message: Exited) -> None:
        """Close the socket of a failed connection, so that its peer learns of it at once."""
        if message.failure is None:
            return
        for connection in [*self._live.values()]:
            if connection.address is message.address:
                connection.end(f"failed: {message.failure!r}")

    @handles(CopyOut)
    def on_copy_out(self, message: CopyOut) -> None:
        """Forward to connections with unsent answers; repeat it once for answers on their way."""
        self._copy_out(message)
        self.after(COPY_OUT_AGAIN_MS, _CopyOutAgain(message))

    @handles(_CopyOutAgain)
    def on_copy_out_again(self, message: _CopyOutAgain) -> None:
        self._copy_out(message.first)

    def _copy_out(self, message: CopyOut) -> None:
        for connection in self._live.values():
            if connection.unsent_bytes:
                connection.address.tell(message)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        now_ms = self.system.clock.monotonic_ms()
        oldest_ms = now_ms - self._idle_ms
        is_known = bool(self._left)  # those found idle by the last tick may be queued still
        for connection in [*self._live.values()]:
            if connection.last_traffic_ms > oldest_ms:
                connection.look_at_clock(now_ms)
            elif not is_known:  # a peer that has taken nothing until now never will
                self._left.append(PeerLeft(connection, "idle"))
        self.limits.closings.tell_old()

    def on_drain(self) -> None:
        for connection in self._live.values():
            connection.address.tell(StopReading())

    def can_stop(self) -> bool:
        """Return whether every connection has sent its answers or lost its peer."""
        if not self._closing:
            self._closing = True
            for connection in self._live.values():
                connection.address.tell(Close("server stopped"))
        return not self._live

    def on_stop(self) -> None:
        for connection in [*self._live.values()]:
            connection.end("server stopped before the peer took its answers")

    def on_failure(self, *_: object) -> None:
        """Close all connections: otherwise they would stay open without an owner."""
        for connection in [*self._live.values()]:
            connection.end("connections restarted")
            self._places.leave(connection.remote_host)  # the next incarnation does not know it


@dataclass(slots=True)
class _AcceptAgain:
    pass


@dataclass(frozen=True)
class Listener:
    name: str
    host: str
    port: int
    service: Service


class Acceptor(Actor):
    """Actor of the listening sockets, which are opened before it so that errors fail the start."""

    def __init__(
        self, listeners: Sequence[tuple[Listener, socket]], connections: ActorAddress
    ) -> None:
        super().__init__()
        self._listening = [
            _Listening(sock, listener.service, self._accept) for listener, sock in listeners
        ]
        self._connections = connections
        self._first_kept: int | None = None

    def on_start(self) -> None:
        self._rarely = self.system.rarely
        self._first_kept = descriptors_for_peers()
        self._watch()

    def _watch(self) -> None:
        for listening in self._listening:
            self.system.loop.watch(listening.sock, EPOLLIN, listening, owner=self)

    def _accept(self, sock: socket, service: Service) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                peer, remote = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                reason = _USED_UP.get(error.errno or 0)
                if reason is not None:
                    log.error("no connection accepted", reason=reason, again_ms=ACCEPT_AGAIN_MS)
                    self._pause()
                return
            if self._first_kept is not None and peer.fileno() >= self._first_kept:
                peer.close()
                self._rarely.warn(
                    "connection rejected: open file limit reached", cure="raise ulimit -n"
                )
                continue
            peer.setblocking(False)
            peer.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            self._connections.tell(Accepted(peer, plain_address(remote), service))

    def _pause(self) -> None:
        for listening in self._listening:
            self.system.loop.unwatch(listening.sock)
        self.after(ACCEPT_AGAIN_MS, _AcceptAgain())

    @handles(_AcceptAgain)
    def on_accept_again(self, _: _AcceptAgain) -> None:
        self._watch()

    def on_drain(self) -> None:
        self._close()

    def on_stop(self) -> None:
        self._close()

    def on_failure(self, *_: object) -> None:
        """Keep the sockets open for the next incarnation."""

    def _close(self) -> None:
        for listening in self._listening:
            self.system.loop.unwatch(listening.sock)
            listening.sock.close()
        self._listening = []


class _Listening:
    def __init__(
        self, sock: socket, service: Service, accept: Callable[[socket, Service], None]
    ) -> None:
        self.sock = sock
        self._service = service
        self._accept = accept

    def on_readable(self) -> None:
        self._accept(self.sock, self._service)

    def on_writable(self) -> None: ...


def plain_address(remote: tuple[str, int]) -> tuple[str, int]:
    """Return address and port; an IPv4 peer on an IPv6 socket as IPv4."""
    host = remote[0].partition("%")[0]
    return (host.removeprefix("::ffff:") if "." in host else host, remote[1])


def open_listener(host: str, port: int, name: str, setting: str = "bindAddress") -> socket:
    """Bind and listen. Raises PortTaken with a sentence for the operator.

    `setting` is the setting that holds `host`: an address, `*` for all IPv4 and IPv6 addresses, or
    `::` for the same on a machine that must have IPv6.
    """
    where = f"Cannot listen on {host_port(host, port)} ({name})"
    advice = f"write an address of this machine as {setting}, or * for all of them."
    try:
        sock = bound_to(host, port)
    except UnicodeError:  # invalid as a name
        raise PortTaken(f"{where}: host not found; {advice}") from None
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise PortTaken(
                f"Port {port} ({name}) is in use: stop what listens there, or choose another port."
            ) from None
        code = error.errno or 0
        reason = os.strerror(abs(code))
        if code < 0:  # the resolver's code, which create_server passes on like any other
            reason = f"host not found; {advice}"
        elif code == EADDRNOTAVAIL:
            reason = f"this machine has no such address; {advice}"
        elif code == EACCES:
            reason = f"{reason}; choose a port from 1024 on, or run it with CAP_NET_BIND_SERVICE."
        raise PortTaken(f"{where}: {reason}") from None
    sock.setblocking(False)
    return sock
