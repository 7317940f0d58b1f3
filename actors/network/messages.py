"""Messages of the network actors, in the order of a connection's life; then calls to clients.

Three messages have modules of their own: Accepted, Request and Sends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from socket import socket
from typing import Any, Protocol

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.limits import QuotaHolder
from actors.network.request import Peer, Request
from protocol.frame import RemotingCommand
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
class CallClient(Message):
    """Request to ask `peer` and to send CallDone to `then`, with this `context`.

    The receiver sets the command's opaque. `timeout_ms` counts from the sending of the request.
    """

    peer: Peer
    command: RemotingCommand
    then: ActorAddress
    context: Any = None
    timeout_ms: float = CALL_MS

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
