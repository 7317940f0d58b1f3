"""Listening sockets, and all connections that came in through them.

Connections owns the live connections: it starts them, closes the idle ones, and lets them send what
is left when the server stops. It is started first and stopped last.
Told by: acceptors (`Accepted`), connections (`PeerLeft`, `PeerClosed`), CleanFiles (`CopyOut`), its
own tick.

Acceptor owns the listening sockets. It is started last and stopped first: nothing new comes in
while the rest is stopping.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM
from select import EPOLLIN
from socket import (
    IPPROTO_TCP,
    TCP_NODELAY,
    socket,
)

from structlog import get_logger

from actors.engine.actor import Actor, BatchEnd, Exited, Started, handles
from actors.engine.actor_address import ActorAddress
from actors.network.accepted import Accepted
from actors.network.bind_address import bound_to
from actors.network.connection import Close, Connection, CopyOut, PeerLeft, StopReading
from actors.network.limits import (
    ConnectionSlots,
    Limits,
    descriptors_for_peers,
    new_limits,
)
from actors.network.request import PeerClosed
from actors.network.service import Service
from protocol.host import host_port

log = get_logger(__name__)

IDLE_TICK_MS = 10_000
COPY_OUT_AGAIN_MS = 1000
ENDS_AT_ONCE = 2
"""Of connections whose peers have gone: what each is known by is forgotten, which takes 0.1 ms."""
ENDS_REST_MS = 1
"""Then the others are served: ten thousand clients that go at once held them up for seconds."""
ACCEPTS_PER_ROUND = 1
"""Each costs some 0.2 ms, with the actor that is made of it; then others have their turn."""
ACCEPT_AGAIN_MS = 500
"""Pause after the machine gave no socket: the port stays ready, asking at once would not end."""

_USED_UP = {
    EMFILE: "too many open files",
    ENFILE: "too many open files on this machine",
    ENOBUFS: "out of socket memory",
    ENOMEM: "out of memory",
}


class PortTaken(Exception):
    """Nobody can listen there: the port is in use, or not ours; the text says what to do."""


@dataclass(slots=True)
class _Tick:
    """Look for idle connections."""


@dataclass(slots=True)
class _NextTurn:
    """It is the turn of the next connection that has brought much."""


@dataclass(slots=True)
class _EndMore:
    """End some more of the connections whose peers have gone."""


@dataclass(slots=True)
class _CopyOutAgain:
    """Answers from a deleted file were on their way to their connections; now they are there."""

    first: CopyOut


class Connections(Actor):
    """Lives on the loop."""

    def __init__(
        self, idle_ms: float, places: ConnectionSlots | None = None, frame_bytes_max: int = 0
    ) -> None:
        """`frame_bytes_max`: the longest that its ports take, if that is more than usual."""
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
    def refused(self) -> Mapping[str, int]:
        """Connections that were one too many, by the setting that was in the way."""
        return self._places.refused

    @property
    def limits(self) -> Limits:
        """Of this server."""
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
        """One connection that has more to do does some of it."""
        self.limits.turns.next()

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._live)

    def open(self) -> list[Connection]:
        """Those that are open. Any thread."""
        return [*self._live.values()]

    @handles(Accepted)
    def on_accepted(self, message: Accepted) -> None:
        """Starts the connection's actor."""
        if self._closing:
            message.refuse("the server stops")
            return
        if not message.takes_place(self._places, self.limits.rarely):
            return
        connection = Connection(
            message.sock, message.remote, message.service, self.address, self.limits
        )
        self._live[connection.peer_id] = connection
        message.places = None  # it is the connection's from here on
        name = f"connection {connection.remote}"
        self.system.spawn(connection, name, parent=self.address)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """Forgets a connection that has closed."""
        connection = self._live.pop(message.peer.peer_id, None)
        if connection is not None:
            self._places.leave(connection.remote_host)

    @handles(PeerLeft)
    def on_peer_left(self, message: PeerLeft) -> None:
        """Keeps it for the end of the batch, or until those before it are ended."""
        self._left.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Ends the first ones."""
        if self._left and not self._is_resting:
            self._end_some()

    @handles(_EndMore)
    def on_end_more(self, _: _EndMore) -> None:
        """Ends the next ones."""
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
    def on_child_started(self, _: Started) -> None:
        """A connection's actor is up; nothing to do."""

    @handles(Exited)
    def on_child_exited(self, message: Exited) -> None:
        """A connection that failed closes its socket: its peer learns of it at once."""
        if message.failure is None:
            return
        for connection in [*self._live.values()]:
            if connection.address is message.address:
                connection.end(f"failed: {message.failure!r}")

    @handles(CopyOut)
    def on_copy_out(self, message: CopyOut) -> None:
        """Tells every connection on which something waits; once more for what was on its way."""
        self._copy_out(message)
        self.after(COPY_OUT_AGAIN_MS, _CopyOutAgain(message))

    @handles(_CopyOutAgain)
    def on_copy_out_again(self, message: _CopyOutAgain) -> None:
        """The last time: nobody can get a view of the file any more."""
        self._copy_out(message.first)

    def _copy_out(self, message: CopyOut) -> None:
        for connection in self._live.values():
            if connection.unsent_bytes:
                connection.address.tell(message)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Closes connections without traffic for too long, or with a frame that takes too long."""
        now_ms = self.system.clock.monotonic_ms()
        oldest_ms = now_ms - self._idle_ms
        is_known = bool(self._left)  # those that were idle the last time may be among them
        for connection in [*self._live.values()]:
            if connection.last_traffic_ms > oldest_ms:
                connection.look_at_clock(now_ms)
            elif not is_known:  # what it has not taken until now it will never take
                self._left.append(PeerLeft(connection, "idle"))
        self.limits.closings.tell_old()

    def on_drain(self) -> None:
        for connection in self._live.values():
            connection.address.tell(StopReading())

    def can_stop(self) -> bool:
        """Once every connection has sent what it owed, or its peer went away."""
        if not self._closing:
            self._closing = True
            for connection in self._live.values():
                connection.address.tell(Close("server stopped"))
        return not self._live

    def on_stop(self) -> None:
        for connection in [*self._live.values()]:
            connection.end("server stopped before the peer took its answers")

    def on_failure(self, *_: object) -> None:
        """Nobody would close them when they are idle, or let them finish at a stop."""
        for connection in [*self._live.values()]:
            connection.end("connections restarted")
            self._places.leave(connection.remote_host)  # the next one does not know it


@dataclass(slots=True)
class _AcceptAgain:
    """The machine may have sockets again."""


@dataclass(frozen=True)
class Listener:
    """One open port and what it serves."""

    name: str
    host: str
    port: int
    service: Service


class Acceptor(Actor):
    """Lives on the loop; the sockets are opened before it starts, so that a taken port is told."""

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
                self._rarely.warn("too many connections: open files", cure="raise ulimit -n")
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
        """Goes on; who has connected meanwhile waits in the backlog."""
        self._watch()

    def on_drain(self) -> None:
        """Nothing new comes in from here on."""
        self._close()

    def on_stop(self) -> None:
        self._close()

    def on_failure(self, *_: object) -> None:
        """The sockets stay open for the actor that replaces this one."""

    def _close(self) -> None:
        for listening in self._listening:
            self.system.loop.unwatch(listening.sock)
            listening.sock.close()
        self._listening = []


class _Listening:
    """One listening socket, as the loop sees it."""

    def __init__(
        self, sock: socket, service: Service, accept: Callable[[socket, Service], None]
    ) -> None:
        self.sock = sock
        self._service = service
        self._accept = accept

    def on_readable(self) -> None:
        self._accept(self.sock, self._service)

    def on_writable(self) -> None:
        """Never asked for."""


def plain_address(remote: tuple[str, int]) -> tuple[str, int]:
    """Address and port; an IPv4 peer on an IPv6 socket as IPv4."""
    host = remote[0].partition("%")[0]
    return (host.removeprefix("::ffff:") if "." in host else host, remote[1])


def open_listener(host: str, port: int, name: str, setting: str = "bindAddress") -> socket:
    """Binds and listens. Raises PortTaken with a sentence for the operator.

    `setting` is where `host` stands: an address, `*` for all IPv4 and IPv6 addresses, or `::` for
    the same on a machine that must have IPv6.
    """
    where = f"Cannot listen on {host_port(host, port)} ({name})"
    advice = f"write an address of this machine as {setting}, or * for all of them."
    try:
        sock = bound_to(host, port)
    except UnicodeError:  # no name at all
        raise PortTaken(f"{where}: nobody knows this host; {advice}") from None
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise PortTaken(
                f"Port {port} ({name}) is in use: stop what listens there, or choose another port."
            ) from None
        code = error.errno or 0
        reason = os.strerror(abs(code))
        if code < 0:  # the resolver's, which create_server passes on as any other
            reason = f"nobody knows this host; {advice}"
        elif code == EADDRNOTAVAIL:
            reason = f"this machine has no such address; {advice}"
        elif code == EACCES:
            reason = f"{reason}; choose a port from 1024 on, or run it with CAP_NET_BIND_SERVICE."
        raise PortTaken(f"{where}: {reason}") from None
    sock.setblocking(False)
    return sock
