"""Messages of the network actors, in the order of a connection's life; then calls to clients.

A Request carries its connection and opaque, so that every actor that holds it can answer it. If
that actor fails, the request is answered with an error.

A Sends has sends on their way to the commit log, and their answers on the way back. One holds all
sends of one read of a socket, so that a hundred producer threads cost one message. It counts its
unanswered sends. The connection thus knows its in-flight bytes, and if the actor of the message
fails, the rest can be answered.

Accepted, which closes its socket if it is undelivered, is in connections.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from socket import socket
from time import perf_counter
from typing import Any, Protocol

from actors.access.grant import Grant
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import AnswerStats
from actors.engine.messages import Message
from actors.network.limits import QuotaHolder
from protocol.codes import ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.headers.fields import Header
from protocol.send_values import Send
from remoting.tls_socket import TlsSocket


@dataclass(slots=True)
class StepHandshake(Message):
    """Request to continue a handshake as far as it goes without waiting."""

    number: int
    """Id of the connection, chosen by the TlsNegotiator."""
    sock: socket | TlsSocket
    """A TlsSocket if the handshake has begun."""
    reply_to: ActorAddress
    is_over: bool = False
    """Set by the requester if the handshake timed out while this message waited."""

    def on_undelivered(self, remark: str) -> None:
        self.reply_to.tell(HandshakeStepped(self.number, self.sock, 0, remark))


@dataclass(slots=True)
class HandshakeStepped(Message):
    """Answer to StepHandshake: the progress of the handshake."""

    number: int
    sock: socket | TlsSocket
    events: int
    """Socket events that it waits for; 0 if it has ended."""
    failure: str = ""

    def on_undelivered(self, _remark: str) -> None:
        self.sock.close()


class Peer(Protocol):
    """Sender of a request: a connection, or a caller in this process. Lives on the loop."""

    peer_id: int
    """Unique in this process, never reused."""

    remote: str
    """`ip:port` of the other side, for remarks and logs."""

    host: bytes
    """The other side as stored in a record: 8 bytes for IPv4, 20 for IPv6."""

    @property
    def is_fast(self) -> bool:
        """Whether it came through a broker's fast port."""

    @property
    def is_open(self) -> bool:
        """Whether the peer is still connected, as far as this side knows."""

    def send(self, command: RemotingCommand) -> None:
        """Queue one command for this peer: a response, or a request of this server. Any thread."""

    def note_failure(self) -> None:
        """Count a handler's failure on what this peer sent; too many close it. Any thread."""


@dataclass(slots=True)
class Request(Message):
    """One decoded request and its sender."""

    command: RemotingCommand
    peer: Peer
    seen_as: object = None
    """Context of the hooks, if there are hooks."""
    header: Header | None = None
    """Header decoded together with the command, which then has no fields."""
    grant: Grant | None = None
    """Permissions of its sender; None without access control."""
    stats: AnswerStats | None = None
    """Counter of its answer; None for pulls, which are counted where they are read."""
    began_s: float = 0.0
    read: object = None
    """Value of its long body, read on a thread; None: its body is read where it is served."""

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        fields: dict[str, str] | None = None,
        *,
        remark: str | None = None,
        body: bytes | None = None,
    ) -> None:
        """Send the response, unless the request was one-way."""
        if self.command.flag & ONEWAY_FLAG:  # most ends of transactions are one-way: saves 0.7 µs
            self._note(code)
        else:
            self.respond(self.command.answer(code, fields, remark=remark, body=body))

    def respond(self, response: RemotingCommand) -> None:
        """Send a response made with `command.answer`, unless the request was one-way."""
        self._note(response.code)
        if not self.command.is_oneway:
            self.peer.send(response)

    def _note(self, code: int) -> None:
        if self.stats is not None:
            took_ms = (perf_counter() - self.began_s) * 1000
            self.stats.note(self.command.code, code, took_ms)

    def refuse(self, remark: str) -> None:
        """Answer with an error."""
        self.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    def on_undelivered(self, remark: str) -> None:
        self.refuse(remark)


class RequestMessage(Message):
    """Message about a request, which is refused if the message is undelivered."""

    __slots__ = ()

    request: Request

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


Buffer = bytes | memoryview


class StreamPeer(Peer, Protocol):
    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Queue whole frames, in order; `released_bytes` of its requests have been answered."""


@dataclass(slots=True, eq=False)
class Sends(Message):
    """Sends of one peer, in the order of its stream, for PutMessage."""

    peer: StreamPeer
    sends: list[Send]
    request_bytes: int
    owed: int = -1
    """Number of unanswered sends; below 0 until PutMessage has taken the message."""

    frames: list[bytes] = field(default_factory=list)

    def done(self, frame: bytes | None) -> None:
        """Record the answer of one send; None for a one-way send."""
        self.owed -= 1
        if frame is not None:
            self.frames.append(frame)

    def hand_over(self) -> None:
        released = 0
        if self.owed == 0:
            released, self.request_bytes = self.request_bytes, 0
        if self.frames or released:
            self.peer.write((b"".join(self.frames),) if self.frames else (), released)
            self.frames = []

    def on_undelivered(self, remark: str) -> None:
        """Answer everything with an error: the actor of this message has failed."""
        self.owed = 0
        self.frames = [
            frame for send in self.sends if (frame := failure(send, remark=remark)) is not None
        ]
        self.hand_over()


def answer_of(send: Send) -> RemotingCommand:
    """Return a command with this send's header values, to make a response from."""
    shape = send.shape
    return RemotingCommand(
        shape.code, opaque=send.opaque, flag=send.flag, serialize_type=shape.serialize_type
    )


def failure(
    send: Send,
    code: int = ResponseCode.SYSTEM_ERROR,
    *,
    remark: str | None,
    fields: dict[str, str] | None = None,
) -> bytes | None:
    """Return the frame of an error answer; None for a one-way send."""
    if send.flag & ONEWAY_FLAG:
        return None
    return encode(answer_of(send).answer(code, fields, remark=remark))


@dataclass(slots=True)
class ClientAnswer:
    """Answer of a peer to a request of this server, for ClientCalls."""

    answer: RemotingCommand
    peer: Peer


class Encodable(Protocol):
    def encode(self) -> bytes: ...


@dataclass(slots=True)
class LongAnswer(Message):
    """Request to answer with this body, which must not change any more."""

    request: Request
    body: Encodable
    done: Callable[[], None] | None = None
    """Called after the answer, also after an error. Any thread."""
    remark: str | None = None
    """Remark of the answer."""

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)
        if self.done is not None:
            self.done()


@dataclass(slots=True)
class CopyOut:
    """Copy unsent answers out of this map, so that they do not keep its deleted file."""

    view: memoryview


@dataclass(slots=True)
class PeerLeft:
    """Request to `end` this connection, after its peer has gone, for this reason."""

    connection: QuotaHolder
    reason: str


@dataclass(slots=True)
class PeerClosed:
    """Report that the connection has closed, sent to every actor that may know the peer."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """Figures of Connections."""

    open: Mapping[tuple[bool, bool], int] = field(default_factory=dict)
    """Open connections, by whether they came to the fast port and whether they use TLS."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Connections that a limit refused, by its setting."""
    unsent_bytes: int = 0
    """Bytes of answers that clients have not read."""


@dataclass(slots=True)
class StopReading:
    """Take no new requests but send all answers: the server is stopping."""


@dataclass(slots=True)
class Close:
    """Close the connection once all queued frames have been sent; the reason is logged."""

    reason: str


CALL_MS = 10_000
"""Timeout in 4.9.7 for a client's answer that a caller waits for."""


class CallEnd(Enum):
    ANSWERED = auto()
    TIMED_OUT = auto()
    CLOSED = auto()
    """The connection closed before the request or before the answer."""
    NOT_ASKED = auto()
    """Too many calls were pending, or no actor was up to send the request."""


@dataclass(slots=True)
class AnswerRoom:
    """Bytes of answers that may wait for an actor on a thread; the loop counts what arrives."""

    bytes_max: int
    arrived_bytes: int = 0
    read_bytes: int = 0
    """Counted by the thread alone."""

    def take(self, size: int) -> bool:
        """Return whether an answer of `size` bytes has room, and count it. Only on the loop."""
        if self.arrived_bytes - self.read_bytes + size > self.bytes_max:
            return False
        self.arrived_bytes += size
        return True


@dataclass(slots=True)
class CallClient(Message):
    """Request to ask `peer` and to send CallDone to `then`, with this `context`.

    The receiver sets the command's opaque. `timeout_ms` counts from the sending of the request.
    """

    peer: Peer
    command: RemotingCommand
    then: ActorAddress
    context: Any = None
    timeout_ms: float = CALL_MS
    room: AnswerRoom | None = None
    """Limit of the answers to all calls with the same room; None for callers on the loop."""

    def done(self, end: CallEnd, why: str, answer: RemotingCommand | None = None) -> None:
        self.then.tell(CallDone(self.context, self.peer, end, answer, why))

    def on_undelivered(self, remark: str) -> None:
        self.done(CallEnd.NOT_ASKED, remark)


@dataclass(slots=True)
class CallDone(Message):
    """Result of a CallClient, with its `context`.

    `answer` is set if `end` is ANSWERED, with any response code. `why` is a sentence for remarks
    and logs.
    """

    context: Any
    peer: Peer
    end: CallEnd
    answer: RemotingCommand | None = None
    why: str = ""

    def on_undelivered(self, remark: str) -> None:
        """Refuse the context if it can be refused: the caller has stopped."""
        if isinstance(self.context, Message):
            self.context.on_undelivered(remark)


@dataclass(slots=True)
class AskProducer(Message):
    """Request to ask the producer with this clientId; `then` gets CallDone or NoProducer."""

    client_id: str
    command: RemotingCommand
    then: ActorAddress
    context: object

    def on_undelivered(self, _remark: str) -> None:
        self.then.tell(NoProducer(self.context))


@dataclass(slots=True)
class NoProducer(Message):
    """Answer to AskProducer, with its context: no producer has this clientId."""

    context: object

    def on_undelivered(self, remark: str) -> None:
        """Refuse the context if it can be refused: the caller has stopped."""
        if isinstance(self.context, Message):
            self.context.on_undelivered(remark)


@dataclass(slots=True)
class Dial(Message):
    """Request to connect to `address` (`host:port`) and send Dialed to `reply_to`."""

    address: str
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        self.reply_to.tell(Dialed(None, remark))


@dataclass(slots=True)
class Dialed(Message):
    """Answer to Dial: an open non-blocking socket, or the reason why there is no connection."""

    sock: socket | TlsSocket | None
    failure: str = ""

    def on_undelivered(self, _remark: str) -> None:
        if self.sock is not None:
            self.sock.close()
