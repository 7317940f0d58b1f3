"""A request on its way through the broker, and the actors that answer requests.

A `Request` carries its connection and opaque wherever it goes, so that whoever holds it can answer
it, and so that it is answered with an error, never left silent, when the actor that holds it dies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from actors.access.grant import Grant
from actors.engine.actor import Actor, handles
from actors.network.answer_stats import AnswerStats
from protocol.codes import RequestCode, ResponseCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.errors import LimitReached, RemoteError
from protocol.headers.fields import Header

SHORT_BODY_BYTES_MAX = 1 << 20
"""Some 5,000 subscriptions in a heartbeat: 40 ms. What is built to take long has fewer values."""


class Peer(Protocol):
    """Whoever asked: a connection, or a caller in this process. Lives on the loop."""

    peer_id: int
    """Unique in this process for as long as it runs; never reused."""

    remote: str
    """`ip:port` of the other side, for remarks and logs."""

    host: bytes
    """The other side as it is stored in a record: 8 bytes for IPv4, 20 for IPv6."""

    @property
    def is_fast(self) -> bool:
        """Whether it came through a broker's fast port."""

    @property
    def is_open(self) -> bool:
        """Whether there is still somebody to send to, as far as this side knows."""

    def send(self, command: RemotingCommand) -> None:
        """Queues one command for this peer (a response, or a request of ours). Any thread."""

    def note_failure(self) -> None:
        """Count a handler's failure on what this peer sent; too many close it. Any thread."""


@dataclass(slots=True)
class Request:
    """One decoded request and who asked it."""

    command: RemotingCommand
    peer: Peer
    seen_as: object = None
    """What the hooks see of it, where they see it."""
    header: Header | None = None
    """Its fields, where they were decoded with the command (which has none then)."""
    grant: Grant | None = None
    """What its sender may do; None where there is no access control."""
    stats: AnswerStats | None = None
    """Where its answer is counted; None for pulls, which are counted where they are read."""
    began_s: float = 0.0

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        fields: dict[str, str] | None = None,
        *,
        remark: str | None = None,
        body: bytes | None = None,
    ) -> None:
        """Sends the response, unless the request was one-way."""
        if self.command.flag & ONEWAY_FLAG:  # ends of transactions mostly are: 0.7 µs less
            self._note(code)
        else:
            self.respond(self.command.answer(code, fields, remark=remark, body=body))

    def respond(self, response: RemotingCommand) -> None:
        """Sends a response made with `command.answer`, unless the request was one-way."""
        self._note(response.code)
        if not self.command.is_oneway:
            self.peer.send(response)

    def _note(self, code: int) -> None:
        if self.stats is not None:
            took_ms = (perf_counter() - self.began_s) * 1000
            self.stats.note(self.command.code, code, took_ms)

    def refuse(self, remark: str) -> None:
        """Answers that we failed; called for requests whose actor died."""
        self.answer(ResponseCode.SYSTEM_ERROR, remark=remark)


@dataclass(slots=True)
class PeerClosed:
    """The connection is gone; told to every actor that may know something of the peer."""

    peer: Peer


@dataclass(slots=True)
class ClientAnswer:
    """A peer has answered a request of ours; told to who keeps track of those."""

    answer: RemotingCommand
    peer: Peer


Handler = TypeVar("Handler", bound=Callable[..., RemotingCommand | None])


def serves(*codes: RequestCode) -> Callable[[Handler], Handler]:
    """Marks a method of a Responder as the one that answers these request codes."""

    def mark(method: Handler) -> Handler:
        method.serves = codes  # type: ignore[attr-defined]
        return method

    return mark


class Responder(Actor):
    """An actor that answers requests: one method per request code."""

    serves_codes: ClassVar[dict[int, Callable[[Any, Request], RemotingCommand | None]]] = {}
    request_types: ClassVar[frozenset[type]]
    """The messages whose handlers only pass a request to `on_request`."""
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
        """Answers one request; the peer's mistakes become responses here."""
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

        Until then a failure is the request's alone; afterwards it restarts the actor.
        """
        self._is_changing = True

    def survives(self, message: object) -> bool:
        """Return whether a handler failed before it changed anything."""
        if type(message) in self.request_types:
            return not self._is_changing
        return super().survives(message)

    def tell_of(self, error: RemoteError, request: Request) -> None:
        """Tells the operator where a limit refuses."""
        if isinstance(error, LimitReached):
            peer = request.peer.remote
            self.system.rarely.warn(
                error.kind, peer=peer, code=int(request.command.code), why=error.remark
            )

    def on_refused_oneway(self, request: Request, remark: str) -> None:
        """Nobody hears of this refusal; for those who have to tell the operator."""


Responder.request_types = frozenset((Request,))


def short_body(command: RemotingCommand) -> bytes | memoryview | None:
    """A body that is read on the loop, None without one. Raises RemoteError for one that is so long
    that it would hold the loop up."""
    if len(command.body or b"") > SHORT_BODY_BYTES_MAX:
        remark = f"the body is longer than {SHORT_BODY_BYTES_MAX} bytes"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a body is too long")
    return command.body


Responders: TypeAlias = Sequence[tuple[str, type[Responder]]]
"""Addresses, and what is behind each."""


def codes_of(responders: Responders) -> dict[int, str]:
    """Which address serves which request code: the table of a server's abilities."""
    return {code: name for name, responder in responders for code in responder.serves_codes}
