"""Requests on their way through the broker, and the actors that answer them.

A Request carries its connection and opaque, so that every actor that holds it can answer it. If
that actor fails, the request is answered with an error.

A Sends has sends on their way to the commit log, and their answers on the way back. One holds all
sends of one read of a socket, so that a hundred producer threads cost one message. It counts its
unanswered sends. The connection thus knows its in-flight bytes, and if the actor of the message
fails, the rest can be answered.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from actors.access.grant import Grant
from actors.engine.actor import Actor, handles
from actors.engine.histogram import RPC_BOUNDS_MS, ClassCounts
from actors.engine.messages import Message
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.headers.fields import Header
from protocol.send_values import Send

SHORT_BODY_BYTES_MAX = 1 << 20
"""Maximum body decoded on the loop: 5,000 subscriptions of a heartbeat, 40 ms."""

WAITING_BYTES_MAX = 16 << 20
"""Bytes of all requests that wait for one actor if they are alike; 170 MiB if none is."""
_REQUEST_BYTES = 1 << 10
"""Memory of a request without body and fields."""

ANSWERS_MAX = 4096
"""Maximum pairs of request and response code; further pairs are not counted."""


class AnswerStats:
    """Response times of one server, by request and response code, and counts of bad frames.

    Sends and pulls are counted elsewhere. The loop and actors on threads write it: of two
    simultaneous counts one may be missing.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], ClassCounts] = {}
        self.bad_frames: dict[str, int] = {}
        """Connections closed for what they sent, by reason."""

    def note(self, code: int, response_code: int, took_ms: float) -> None:
        key = code, response_code
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= ANSWERS_MAX:
                return
            found = self._found[key] = ClassCounts(RPC_BOUNDS_MS)
        found.note(took_ms)

    def note_bad_frame(self, reason: str) -> None:
        self.bad_frames[reason] = self.bad_frames.get(reason, 0) + 1

    def all(self) -> Iterator[tuple[int, int, ClassCounts]]:
        """Yield request code, response code, and response times in ms. Any thread."""
        for (code, response_code), found in self._found.copy().items():
            yield code, response_code, found


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


Handler = TypeVar("Handler", bound=Callable[..., RemotingCommand | None])


def serves(*codes: RequestCode) -> Callable[[Handler], Handler]:
    """Mark a method of a Responder as the one that answers these request codes."""

    def mark(method: Handler) -> Handler:
        method.serves = codes  # type: ignore[attr-defined]
        return method

    return mark


class Responder(Actor):
    """Actor that answers requests, with one method per request code."""

    serves_codes: ClassVar[dict[int, Callable[[Any, Request], RemotingCommand | None]]] = {}
    request_types: ClassVar[frozenset[type]]
    """Message types with handlers that only pass a request to `on_request`."""
    _is_changing = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            int(code): method
            for method in vars(cls).values()
            for code in getattr(method, "serves", ())
        }
        cls.serves_codes = {**cls.serves_codes, **own}

    @handles(Request)
    def on_request(self, request: Request) -> None:
        self._is_changing = False
        try:
            response = self.serves_codes[request.command.code](self, request)
        except RemoteError as error:
            self.tell_of(error, request)
            request.answer(error.code, remark=error.remark)
            if request.command.is_oneway:
                self.on_refused_oneway(request, error.remark)
            return
        if response is not None:
            request.respond(response)

    def begin_change(self) -> None:
        """Declare that a request's handler changes this actor's state from here on.

        A failure before it fails the request alone; a failure after it restarts the actor.
        """
        self._is_changing = True

    def survives(self, message: object) -> bool:
        """Return whether the handler failed before it changed anything."""
        if type(message) in self.request_types:
            return not self._is_changing
        return super().survives(message)

    def tell_of(self, error: RemoteError, request: Request) -> None:
        if isinstance(error, LimitReached):
            peer = request.peer.remote
            self.system.rarely.warn(
                error.kind, peer=peer, code=int(request.command.code), why=error.remark
            )

    def on_refused_oneway(self, request: Request, remark: str) -> None:
        """Handle the refusal of a one-way request, which has no answer; for actors that log it."""


Responder.request_types = frozenset((Request,))


def short_body(command: RemotingCommand) -> bytes | memoryview | None:
    """Return a body to decode on the loop. Raises LimitReached for a long one."""
    if len(command.body or b"") > SHORT_BODY_BYTES_MAX:
        remark = f"the body is longer than {SHORT_BODY_BYTES_MAX} bytes"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a body is too long")
    return command.body


def check_waiting(waiting: int, command: RemotingCommand, held_bytes: int = 0) -> None:
    """Raise LimitReached if a request may not wait behind as many others as `waiting`.

    The more there are, the shorter it must be; `held_bytes` is what it holds besides itself.
    """
    if not waiting:
        return
    fields = (command.fields or {}).items()
    size = _REQUEST_BYTES + held_bytes + len(command.body or b"")
    size += sum(len(name) + len(value) for name, value in fields)
    if size * (waiting + 1) > WAITING_BYTES_MAX:
        remark = f"{waiting} requests wait already: ask again later"
        raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "too many requests wait")


Responders: TypeAlias = Sequence[tuple[str, type[Responder]]]
"""Names of addresses, and the actor class behind each."""


def codes_of(responders: Responders) -> dict[int, str]:
    """Return the name of the address that serves each request code."""
    return {code: name for name, responder in responders for code in responder.serves_codes}


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
