"""One TCP connection: bytes in, whole requests out to whoever serves their code; answers back.

Owns: its socket, its half-read frame, its unsent answers.
Told by: the selector (readable, writable); everybody who answers (Write).
Tells: PutMessage, all sends of one read in one message; the actor that serves a code, one Request
each; on its end, `PeerClosed` to those who may know the peer.

A frame that cannot be cut (too long, lying lengths, a header that is no header) closes the
connection, as in 4.9.7, with one log line; no other connection notices.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from select import EPOLLIN, EPOLLOUT
from socket import socket
from struct import Struct

from structlog import get_logger

from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.address import Address
from actors.network.request import ClientAnswer, PeerClosed, Request
from actors.network.sends import Buffer, Sends
from actors.network.service import Service
from actors.network.unsent import next_buffers, put_back
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.errors import FrameError, RemoteError
from protocol.frame import decode_frame, encode
from protocol.host import pack_host
from protocol.pull_wire import BINARY_PULLS, JSON_PULLS, PullDecoder
from protocol.send_wire import Send, SendDecoder, send_of

log = get_logger(__name__)

_FRAME = Struct(
    ">i"  # bytes after this field
    "I"  # serialise type in the high byte, header bytes in the low three
)
assert _FRAME.size == 8
RECEIVE_BYTES = 256 << 10
"""How much one read takes: a few hundred small sends, or a part of a large one."""

IN_FLIGHT_BYTES_MAX = 32 << 20
"""Sends taken from one connection and not answered yet; past it its socket is not read."""

UNSENT_BYTES_MAX = 64 << 20
"""Answers that the peer does not take; past it the socket is not read until it takes some."""

COPIED_BYTES_MAX = 8 << 20
"""Of answers that a peer has not taken when their log file is deleted; past it, it is closed."""

SEND_CODES = frozenset(
    (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
)
_JSON, _ROCKETMQ = int(SerializeType.JSON), int(SerializeType.ROCKETMQ)
_BINARY_SEND_CODES = (b"\x01\x36", b"\x01\x40")
assert [int.from_bytes(code) for code in _BINARY_SEND_CODES] == [310, 320]
_JSON_SEND_HEADS = (b'{"code":310,', b'{"code":320,')
peer_ids = count(1)
"""Numbers for peers of every kind, connections and callers in this process."""


@dataclass(slots=True)
class Write:
    """Frames for the peer, in order."""

    frames: Sequence[Buffer]
    released_bytes: int = 0


@dataclass(slots=True)
class Close:
    """Close the connection once what is queued has been sent; said why in the log."""

    reason: str


@dataclass(slots=True)
class CopyOut:
    """This file is being deleted: answers that wait for a slow peer must not keep its blocks."""

    view: memoryview


@dataclass(slots=True)
class StopReading:
    """The server is stopping: take no new requests, but send what is answered."""


class Connection(Actor):
    """Serves one socket. Lives on the loop."""

    def __init__(
        self, sock: socket, remote: tuple[str, int], service: Service, owner: Address
    ) -> None:
        super().__init__()
        self.peer_id = next(peer_ids)
        self.remote = f"{remote[0]}:{remote[1]}"
        self.host = pack_host(remote[0], remote[1])
        self.is_fast = service.is_fast
        self.last_traffic_ms = 0.0
        self._socket = sock
        self._service = service
        self._owner = owner
        self._decoder = SendDecoder()
        self._pulls = PullDecoder()
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _FRAME.size
        self._unsent: deque[Buffer] = deque()
        self._unsent_bytes = 0
        self._in_flight_bytes = 0
        self._watched = 0
        self._stopping = False
        self._close_reason: str | None = None
        self._closed = False

    # --- the peer's side

    def on_start(self) -> None:
        self.last_traffic_ms = self.system.clock.monotonic_ms()
        self._watch()

    def on_readable(self) -> None:
        """Takes what the socket has and hands on every whole request in it."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(f"read failed: {error.strerror}")
            return
        if not data:
            self.end("closed by peer")
            return
        self.last_traffic_ms = self.system.clock.monotonic_ms()
        self._have += len(data)
        if self._parts or self._have < self._need:
            self._parts.append(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            taken = self._take(data)
        except FrameError as error:
            self.end(f"bad frame: {error.remark}")
            return
        self._have = len(data) - taken
        if self._have:
            self._parts.append(data[taken:])

    def _take(self, data: bytes) -> int:
        """Cuts `data` into frames and passes the requests on; gives the bytes used up."""
        sends: list[Send] = []
        size, position, sends_bytes = len(data), 0, 0
        decoder, serves_sends = self._decoder, self._service.sends_to is not None
        frame_bytes_max = self._service.frame_bytes_max
        try:
            while size - position >= 8:
                total, mark = _FRAME.unpack_from(data, position)
                end = position + 4 + total
                header_end = position + 8 + (mark & 0xFFFFFF)
                if total < 4 or header_end > end or total + 4 > frame_bytes_max:
                    raise FrameError(ResponseCode.SYSTEM_ERROR, self._lies(total, mark))
                if end > size:
                    self._need = end - position
                    break
                start = position + 8
                send = None
                if serves_sends:
                    if mark >> 24 == _ROCKETMQ:
                        if data.startswith(_BINARY_SEND_CODES, start):
                            send = decoder.binary(data, start, header_end, end)
                    elif mark >> 24 == _JSON and data.startswith(_JSON_SEND_HEADS, start):
                        send = decoder.json(data, start, header_end, end)
                if send is None and not (
                    header_end == end and self._takes_pull(data, start, end, mark >> 24)
                ):
                    send = self._general(data[position + 4 : end])
                if send is not None:
                    sends.append(send)
                    sends_bytes += end - position
                position = end
            else:
                self._need = _FRAME.size
        finally:
            if sends:
                self._pass_on(sends, sends_bytes)
        return position

    def _lies(self, total: int, mark: int) -> str:
        text = f"a frame of {total} bytes with a header of {mark & 0xFFFFFF}"
        most, cure = self._service.frame_bytes_max, self._service.cure
        if cure and total + 4 > most:
            log.warning("frame too long", peer=self.remote, bytes=total + 4, most=most, cure=cure)
        return text

    def _pass_on(self, sends: list[Send], sends_bytes: int) -> None:
        assert self._service.sends_to is not None
        self._in_flight_bytes += sends_bytes
        self._service.sends_to.tell(Sends(self, sends, sends_bytes))
        if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._watch()

    def _takes_pull(self, data: bytes, start: int, end: int, kind: int) -> bool:
        """Passes on what begins at `start` if it is a pull of the usual form."""
        pull = None
        if kind == _ROCKETMQ:
            if data.startswith(BINARY_PULLS, start):
                pull = self._pulls.binary(data, start, end)
        elif kind == _JSON and data.startswith(JSON_PULLS, start):
            pull = self._pulls.json(data, start, end)
        if pull is None:
            return False
        command, header = pull
        address = self._service.routes.get(command.code)
        if address is None:
            return False
        address.tell(Request(command, self, None, header))
        return True

    def _general(self, frame: bytes) -> Send | None:
        """Decodes any frame; gives the send, if it is one, and passes others on itself."""
        command = decode_frame(frame)
        if command.is_response:
            if self._service.answers_to is not None:
                self._service.answers_to.tell(ClientAnswer(command, self))
            return None
        if command.code in SEND_CODES and self._service.sends_to is not None:
            try:
                return send_of(command)
            except RemoteError as error:
                self._answer(command, error.code, error.remark)
                return None
        address = self._service.routes.get(command.code)
        if address is not None:
            address.tell(Request(command, self))
        elif self._service.answer_unknown:
            remark = f" request type {command.code} not supported"
            self._answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            log.warning("unsupported request", peer=self.remote, code=command.code)
        else:
            log.warning("unsupported request, not answered", peer=self.remote, code=command.code)
        return None

    def _answer(self, command: RemotingCommand, code: int, remark: str) -> None:
        Request(command, self).answer(code, remark=remark)

    # --- the server's side

    def send(self, command: RemotingCommand) -> None:
        """Queues one command; any thread."""
        if command.body is not None and isinstance(command.body, memoryview):
            command.body = bytes(command.body)
        self.address.tell(Write((encode(command),)))

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Queues frames; any thread."""
        self.address.tell(Write(frames, released_bytes))

    @handles(Write)
    def on_write(self, message: Write) -> None:
        """Keeps the frames for the end of the batch."""
        if message.released_bytes:
            self._in_flight_bytes -= message.released_bytes
        self._unsent += message.frames
        self._unsent_bytes += sum(map(len, message.frames))

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Sends everything that was queued, in as few system calls as it takes."""
        if not self._closed:
            self._flush()

    def on_writable(self) -> None:
        """The peer takes data again."""
        self._flush()

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent:
            may_join = not self._watched & EPOLLOUT
            buffers, offered = next_buffers(unsent, self._unsent_bytes, may_join=may_join)
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.end(f"write failed: {error.strerror}")
                return
            self._unsent_bytes -= sent
            if sent:  # a peer that takes little at a time is not idle
                self.last_traffic_ms = self.system.clock.monotonic_ms()
            if sent < offered:
                put_back(unsent, buffers, sent)
                break
        else:
            if self._close_reason is not None:
                self.end(self._close_reason)
                return
        self._watch()

    @handles(CopyOut)
    def on_copy_out(self, message: CopyOut) -> None:
        """Copies what waits and is a part of that map; the map itself can go then.

        A peer for which too much would have to be copied is not worth it.
        """
        file = message.view.obj
        pinned = [
            number
            for number, buffer in enumerate(self._unsent)
            if isinstance(buffer, memoryview) and buffer.obj is file
        ]
        if sum(len(self._unsent[number]) for number in pinned) > COPIED_BYTES_MAX:
            self.end("too slow: its answers lie in a log file that was deleted")
            return
        if pinned:
            log.info("answers copied out of a deleted log file", peer=self.remote)
        for number in pinned:
            self._unsent[number] = bytes(self._unsent[number])

    @handles(StopReading)
    def on_stop_reading(self, _: StopReading) -> None:
        """Takes no new requests from here on."""
        self._stopping = True
        self._watch()

    @handles(Close)
    def on_close(self, message: Close) -> None:
        """Closes once everything queued is sent."""
        self._close_reason = message.reason
        if not self._closed:
            self._flush()

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def unsent_bytes(self) -> int:
        """Answers queued and not taken by the peer."""
        return self._unsent_bytes

    @property
    def in_flight_bytes(self) -> int:
        """Sends taken and not answered yet."""
        return self._in_flight_bytes

    def _watch(self) -> None:
        """Reads unless too much is in flight, waits for room to write where something is left."""
        if self._closed:
            return
        reading = (
            not self._stopping
            and self._in_flight_bytes <= IN_FLIGHT_BYTES_MAX
            and self._unsent_bytes <= UNSENT_BYTES_MAX
        )
        events = (EPOLLIN if reading else 0) | (EPOLLOUT if self._unsent else 0)
        if events != self._watched:
            self.system.loop.watch(self._socket, events, self)
            self._watched = events

    def end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        log.info("connection closed", peer=self.remote, reason=reason)
        self._release()
        for address in (*self._service.tell_closed, self._owner):
            address.tell(PeerClosed(self))
        self.stop()

    def _release(self) -> None:
        if self._watched:
            self.system.loop.unwatch(self._socket)
            self._watched = 0
        self._socket.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._parts.clear()

    def on_stop(self) -> None:
        if not self._closed:
            self.end("server stopped")
