"""One TCP connection: passes requests to the actors that serve them, and sends the answers.

Owns: its socket (Transport), its stream (protocol/stream.py), the count of in-flight bytes.
Receives: Write (from answering actors), CopyOut, StopReading and Close (from Connections).
Sends: Sends (to PutMessage, all sends of one read); Request (to the actor of its code); PeerLeft
(to Connections, when the peer has gone); PeerClosed (at its end, to actors that may know the peer).

A bad frame closes the connection, as in 4.9.7, with one log line. A frame is bad if it is too long,
has contradictory lengths, or a header that cannot be decoded. Other connections are not affected.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from select import EPOLLIN, EPOLLOUT
from socket import socket

from actors.access.authorizer import Authorizer, TooManyFailures
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.network.limits import (
    HEAVY_REQUEST_BYTES,
    LIGHT_REQUEST_BYTES,
    MEMBER_REQUEST_BYTES,
    MEMBER_REQUESTS,
    REQUESTS_OF_READ,
    REQUESTS_PER_TURN,
    ROUND_BYTES,
    Limits,
    half_frame_ms,
)
from actors.network.messages import (
    Buffer,
    Close,
    CopyOut,
    PeerClosed,
    PeerLeft,
    Request,
    Sends,
    StopReading,
)
from actors.network.request import Service, admits, admitted
from protocol.codes import RequestCode
from protocol.end_wire import DecodedEnd, EndDecoder
from protocol.errors import FrameError, FrameTooLong
from protocol.frame import RemotingCommand, encode
from protocol.host import host_port, pack_host
from protocol.send_wire import SendDecoder
from protocol.stream import ENDS_OF_EVENT, Event, SendGroup, Stream, UnreadableSend
from remoting.tls import HANDSHAKE_BYTE, reason_of_tls
from remoting.tls_socket import TlsSocket

log = get_logger(__name__)

IN_FLIGHT_BYTES_MAX = 32 << 20
"""Limit for unanswered sends of one connection; beyond it, its socket is not read."""

UNSENT_BYTES_MAX = 64 << 20
"""Limit for answers that the peer does not take; beyond it, its socket is not read."""

COPIED_BYTES_MAX = 8 << 20
"""Limit for unsent answers in a log file that is deleted; beyond it, the connection is closed."""

RECEIVE_BYTES = 256 << 10
"""Maximum bytes of one read: a few hundred small sends, or a part of a large one."""

BUFFERS_PER_SEND = 512
SEND_BYTES = 1 << 20
"""Bytes offered to the socket in one call."""

KEPT_BYTES_MAX = 256 << 10
"""Maximum copied bytes of output that the socket did not take, for each of many slow peers."""

JOINED_BYTES_MAX = 1 << 10
"""Buffers of a smaller average size cost more one by one than the copy that joins them."""

REQUEST_FAILURES_MAX = 5
REQUEST_FAILURES_WITHIN_MS = 60_000.0
"""A peer with more failed requests than this within that time loses its connection."""

peer_ids = count(1)
"""Ids for peers of every kind: connections and callers in this process."""


@dataclass(slots=True)
class Write:
    frames: Sequence[Buffer]
    released_bytes: int = 0


@dataclass(slots=True)
class RequestFailed:
    """A handler failed on what this peer sent."""


class Connection(Actor):
    """Actor of one socket. Runs on the loop."""

    def __init__(
        self,
        sock: socket | TlsSocket,
        remote: tuple[str, int],
        service: Service,
        owner: ActorAddress,
        limits: Limits,
    ) -> None:
        super().__init__()
        self.peer_id = next(peer_ids)
        self.remote_host = remote[0]
        self.remote = host_port(remote[0], remote[1])
        self.host = pack_host(remote[0], remote[1])
        self.is_fast = service.is_fast
        self.last_traffic_ms = 0.0
        self.has_tls = isinstance(sock, TlsSocket)
        self._transport = TlsTransport(sock) if self.has_tls else Transport(sock)
        self._stream = Stream(
            service.frame_bytes_max,
            SendDecoder(service.heads) if service.sends_to is not None else None,
            REQUESTS_OF_READ,
            # the gate of a connection wants the fields of what it checks
            EndDecoder()
            if service.guard is None and RequestCode.END_TRANSACTION in service.routes
            else None,
        )
        self._service = service
        self._owner = owner
        self._limits = limits
        self._half_since_ms = 0.0
        self._is_half_noted = self._is_unsent_noted = False
        self._gate = None
        if service.guard is not None:
            self._gate = Authorizer(service.guard, remote[0], is_encrypted=self.has_tls)
        self._in_flight_bytes = 0
        self._watched = 0
        self._stopping = False
        self._close_reason: str | None = None
        self._waits_for_turn = False
        self._held: Sequence[Event] = ()
        """Events that wait for a turn."""
        self._has_left = False
        self._closed = False
        self._failures_ms: tuple[float, ...] = ()

    # --- the peer's side

    def on_start(self) -> None:
        self.last_traffic_ms = self.system.clock.monotonic_ms()
        self._watch()

    def on_readable(self) -> None:
        """Read the socket and pass on every complete request.

        Long frames and TLS sockets with short records are read one piece in a round, over all
        connections, so that other connections are served meanwhile; requests that may take
        milliseconds, and reads of many short ones, share a round, too.
        """
        if self._waits_for_turn:  # it has hung up: serve first what was read
            return
        stream, turns, work_bytes = self._stream, self._limits.turns, ROUND_BYTES
        if not (
            (stream.half_bytes and stream.wanted_bytes > RECEIVE_BYTES)
            or (self.has_tls and self._transport.is_laborious)
        ) or turns.may_pass(self.system.loop.round_count, ROUND_BYTES):
            events = self._read()
            work_bytes = self._work_bytes() if events else 0
            if not work_bytes or turns.may_pass(self.system.loop.round_count, work_bytes):
                self._take_events(events)
            else:
                self._held = events
                self._limits.held.note(self, stream.heavy_bytes or work_bytes, is_moving=False)
            if not (stream.has_more or self._held):
                return
        self._waits_for_turn = True
        turns.wait(self, work_bytes if self._held else ROUND_BYTES)
        self._watch()

    def _work_bytes(self) -> int:
        """Return the work of the last read's events; 0 for a few short ones."""
        if self._stream.heavy_bytes:
            is_member = self._stream.heavy_code in MEMBER_REQUESTS
            more_bytes = MEMBER_REQUEST_BYTES if is_member else HEAVY_REQUEST_BYTES
            return self._stream.heavy_bytes + more_bytes
        requests = self._stream.weight // ENDS_OF_EVENT
        return LIGHT_REQUEST_BYTES * requests if requests > REQUESTS_PER_TURN else 0

    def _read(self) -> Sequence[Event]:
        try:
            data = self._transport.receive()
        except OSError as error:
            self._leave(f"read failed: {reason_of_tls(error)}")
            return ()
        if data is None:
            return ()
        if not data:
            self._leave("closed by peer")
            return ()
        self.last_traffic_ms = self.system.clock.monotonic_ms()
        return self._stream.receive(data)

    def take_turn(self) -> bool:
        """Do some of the pending work; return whether more is left. No new reads meanwhile."""
        if self._closed or self._has_left:
            return False
        if self._held:
            events, self._held = self._held, ()
            self._limits.held.note(self, 0, is_moving=True)
            self._take_events(events)
        elif self._stream.has_more:
            self._take_events(self._stream.more(REQUESTS_PER_TURN))
        elif not self._stopping:
            self._take_events(self._read())
        self._waits_for_turn = self._stream.has_more
        if not self._waits_for_turn:
            self._watch()
        return self._waits_for_turn

    def _take_events(self, events: Sequence[Event]) -> None:
        if self._stream.half_bytes or self._is_half_noted:
            self._note_half(is_another=bool(events))
            if self._closed:
                return
        try:
            for event in events:
                if isinstance(event, SendGroup):
                    self._tell_sends(event)
                elif isinstance(event, DecodedEnd):
                    self._service.pass_on(event.command, self, header=event.header)
                else:
                    self._take(event)
        except TooManyFailures as error:
            self.end(error.text)

    def _leave(self, reason: str) -> None:
        """Ask the owner to end this connection in its turn: thousands of peers may go at once."""
        self._has_left = True
        self._unwatch()
        self._owner.tell(PeerLeft(self, reason))

    def _note_half(self, *, is_another: bool) -> None:
        """Record an incomplete frame; `is_another` means that a new one may have begun."""
        half_bytes = self._stream.half_bytes
        if is_another or not self._is_half_noted:
            self._half_since_ms = self.last_traffic_ms
        self._is_half_noted = half_bytes > 0
        self._limits.half.note(self, half_bytes, is_moving=is_another)

    def look_at_clock(self, now_ms: float) -> None:
        """Close the connection if a frame takes too long, unless the delay is this side's."""
        if not self._is_half_noted:
            return
        if not self._watched & EPOLLIN:
            self._half_since_ms = now_ms
        elif now_ms - self._half_since_ms > half_frame_ms(self._stream.wanted_bytes):
            self._limits.rarely.warn("frame timed out", peer=self.remote)
            self.end("frame timed out")

    def _take(self, event: RemotingCommand | UnreadableSend | FrameError) -> None:
        if isinstance(event, RemotingCommand):
            if not self._service.pass_on(event, self, gate=self._gate):
                self._limits.rarely.warn("unsupported request", peer=self.remote, code=event.code)
        elif isinstance(event, UnreadableSend):
            request = Request(event.command, self)
            if self._gate is None or admits(self._gate, request):
                request.answer(event.error.code, remark=event.error.remark)
        else:
            self._refuse(event)

    def _tell_sends(self, group: SendGroup) -> None:
        assert self._service.sends_to is not None
        sends = group.sends
        if self._gate is not None and not (sends := admitted(self._gate, self, sends)):
            return
        self._in_flight_bytes += group.frame_bytes
        self._service.sends_to.tell(Sends(self, sends, group.frame_bytes))
        if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._watch()

    def _refuse(self, error: FrameError) -> None:
        if isinstance(error, FrameTooLong) and error.frame_bytes >> 24 == HANDSHAKE_BYTE:
            self.end("TLS handshake on a port without TLS: this server has no certificate")
            return
        if isinstance(error, FrameTooLong) and self._service.cure:
            size, most = error.frame_bytes, self._service.frame_bytes_max
            self._limits.rarely.warn(
                "frame too long", peer=self.remote, bytes=size, most=most, cure=self._service.cure
            )
        if self._service.stats is not None:
            self._service.stats.note_bad_frame("long" if isinstance(error, FrameTooLong) else "bad")
        self.end(f"bad frame: {error.remark}")

    # --- the server's side

    def send(self, command: RemotingCommand) -> None:
        if command.body is not None and isinstance(command.body, memoryview):
            command.body = bytes(command.body)
        self.address.tell(Write((encode(command),)))

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        self.address.tell(Write(frames, released_bytes))

    @handles(Write)
    def on_write(self, message: Write) -> None:
        if message.released_bytes:
            self._in_flight_bytes -= message.released_bytes
        self._transport.queue(message.frames)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        if not self._closed:
            self._flush(may_write=not self._watched & EPOLLOUT)  # else on_writable sends them

    def on_writable(self) -> None:
        self._flush()

    def _flush(self, *, may_write: bool = True) -> None:
        try:
            sent_bytes = self._transport.flush() if may_write else 0
        except OSError as error:
            self.end(f"write failed: {reason_of_tls(error)}")
            return
        if sent_bytes:  # a peer that takes little at a time is not idle
            self.last_traffic_ms = self.system.clock.monotonic_ms()
        unsent_bytes = self._transport.unsent_bytes
        if unsent_bytes or self._is_unsent_noted:
            self._is_unsent_noted = unsent_bytes > 0
            self._limits.unsent.note(self, unsent_bytes, is_moving=sent_bytes > 0)
        if self._close_reason is not None and not unsent_bytes:
            self.end(self._close_reason)
        elif unsent_bytes or self._watched != EPOLLIN:  # else the watch is right as it is
            self._watch()

    @handles(CopyOut)
    def on_copy_out(self, message: CopyOut) -> None:
        """Copy unsent parts of that map, or close a connection with too many of them."""
        copied_bytes = self._transport.copy_out(message.view.obj, COPIED_BYTES_MAX)
        if copied_bytes > COPIED_BYTES_MAX:
            self.end("answers not taken before their log file was deleted")
        elif copied_bytes:
            log.info("answers copied out of a deleted log file", peer=self.remote)

    @handles(StopReading)
    def on_stop_reading(self, _: StopReading) -> None:
        self._stopping = True
        self._watch()

    @handles(Close)
    def on_close(self, message: Close) -> None:
        self._close_reason = message.reason
        if not self._closed:
            self._flush()

    def note_failure(self) -> None:
        self.address.tell(RequestFailed())

    @handles(RequestFailed)
    def on_request_failed(self, _: RequestFailed) -> None:
        """Close the connection, after its answers, if too many of its requests fail."""
        now_ms = self.system.clock.monotonic_ms()
        oldest_ms = now_ms - REQUEST_FAILURES_WITHIN_MS
        recent = [each for each in self._failures_ms if each > oldest_ms]
        self._failures_ms = (*recent[-REQUEST_FAILURES_MAX:], now_ms)
        if len(self._failures_ms) > REQUEST_FAILURES_MAX:
            self._stopping = True  # data that has arrived meanwhile is not read
            self.on_close(Close("too many requests failed"))

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def unsent_bytes(self) -> int:
        return self._transport.unsent_bytes

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def _watch(self) -> None:
        """Watch for reads unless a limit is reached, and for writes while frames are unsent."""
        if self._closed or self._has_left:
            return
        reading = (
            not self._stopping
            and not self._waits_for_turn
            and self._in_flight_bytes <= IN_FLIGHT_BYTES_MAX
            and self._transport.unsent_bytes <= UNSENT_BYTES_MAX
        )
        events = (EPOLLIN if reading else 0) | (EPOLLOUT if self._transport.unsent_bytes else 0)
        if events != self._watched:
            self.system.loop.watch(self._transport.sock, events, self)
            self._watched = events

    def end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._limits.closings.tell(self.remote_host, self.remote, reason)
        self._release()
        for address in (*self._service.tell_closed, self._owner):
            address.tell(PeerClosed(self))
        self.stop()

    def _unwatch(self) -> None:
        if self._watched:
            self.system.loop.unwatch(self._transport.sock)
            self._watched = 0

    def _release(self) -> None:
        self._unwatch()
        self._transport.close()
        self._stream.clear()
        if self._is_half_noted:
            self._limits.half.note(self, 0, is_moving=True)
        if self._held:
            self._limits.held.note(self, 0, is_moving=True)
        if self._is_unsent_noted:
            self._limits.unsent.note(self, 0, is_moving=True)

    def on_stop(self) -> None:
        if not self._closed:
            self.end("server stopped")


class Transport:
    """Received, sent and unsent bytes of a connection, which decides when to read."""

    __slots__ = ("_has_waited", "_unsent", "sock", "unsent_bytes")

    def __init__(self, sock: socket | TlsSocket) -> None:
        self.sock = sock
        self.unsent_bytes = 0
        self._unsent: deque[Buffer] = deque()
        self._has_waited = False

    @property
    def is_laborious(self) -> bool:
        """Whether a read may take long and bring little."""
        return False

    def receive(self) -> bytes | None:
        """Return the received bytes, None without any, b"" at the end. Raises OSError."""
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def queue(self, buffers: Sequence[Buffer]) -> None:
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    def flush(self) -> int:
        """Send until the socket takes no more; return the number of bytes sent. Raises OSError."""
        taken = 0
        buffers: Sequence[Buffer]
        while unsent := self._unsent:
            if len(unsent) == 1:  # nearly always
                buffers, offered = (unsent.popleft(),), self.unsent_bytes
            else:
                buffers, offered = self._next()
            try:
                sent = self.sock.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            taken += sent
            self.unsent_bytes -= sent
            if sent < offered:
                self._put_back(buffers, sent)
                return taken
        self._has_waited = False
        return taken

    def _next(self) -> tuple[Sequence[Buffer], int]:
        """Remove and return the buffers for one call, and their total size."""
        unsent = self._unsent
        if self.unsent_bytes <= SEND_BYTES and len(unsent) <= BUFFERS_PER_SEND:
            buffers, offered = [*unsent], self.unsent_bytes
            unsent.clear()
        else:
            buffers, offered = [], 0
            while unsent and offered < SEND_BYTES and len(buffers) < BUFFERS_PER_SEND:
                buffers.append(unsent.popleft())
                offered += len(buffers[-1])
        if len(buffers) > 1 and offered < JOINED_BYTES_MAX * len(buffers) and not self._has_waited:
            # Output that has waited may have to be read from the disk, where only the kernel may
            # meet an error. All other output was in memory a moment ago.
            return (b"".join(buffers),), offered
        return buffers, offered

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Requeue what the socket did not take: the first bytes as copies, the rest unchanged.

        A slow peer thus costs the memory of one call, not of all its output.
        """
        left: list[Buffer] = []
        kept = 0
        for buffer in buffers:
            if sent >= len(buffer):
                sent -= len(buffer)
            else:
                rest = _behind(buffer, sent) if sent else buffer
                kept += len(rest)
                left.append(bytes(rest) if kept <= KEPT_BYTES_MAX else rest)
                sent = 0
        self._unsent.extendleft(reversed(left))
        self._has_waited = True

    def copy_out(self, file: object, bytes_max: int) -> int:
        """Copy queued views of this map, unless they exceed `bytes_max`.

        Returns the bytes in such views, copied or not.
        """
        views = [
            number
            for number, buffer in enumerate(self._unsent)
            if isinstance(buffer, memoryview) and buffer.obj is file
        ]
        view_bytes = sum(len(self._unsent[number]) for number in views)
        if view_bytes <= bytes_max:
            for number in views:
                self._unsent[number] = bytes(self._unsent[number])
        return view_bytes

    def close(self) -> None:
        self.sock.close()
        self._unsent.clear()
        self.unsent_bytes = 0


class TlsTransport(Transport):
    """TLS socket; this process reads its output from memory, not the kernel."""

    __slots__ = ()

    def queue(self, buffers: Sequence[Buffer]) -> None:
        """Queue output; copy it if earlier output waits.

        Parts of the commit log may leave the page cache before they are sent, and a disk error on a
        mapped page would kill this process.
        """
        if self._has_waited:
            buffers = [bytes(buffer) for buffer in buffers]
        self._unsent += buffers
        self.unsent_bytes += sum(map(len, buffers))

    @property
    def is_laborious(self) -> bool:
        return isinstance(self.sock, TlsSocket) and self.sock.short_reads > 0

    def _put_back(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Requeue what the socket did not take; copy all of it when the peer begins to lag.

        The reason is that of `queue`. Output that has waited is not copied again.
        """
        begins = not self._has_waited
        super()._put_back(buffers, sent)
        if begins:
            self._unsent = deque(bytes(buffer) for buffer in self._unsent)


def _behind(buffer: Buffer, sent: int) -> Buffer:
    """Return the rest of a buffer, copied once more than half of it is sent, to free the whole."""
    rest = memoryview(buffer)[sent:]
    whole = rest.obj
    return bytes(rest) if isinstance(whole, bytes) and 2 * len(rest) < len(whole) else rest
