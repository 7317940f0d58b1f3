"""Requests at a listening port: their way to the actor of their code, and actors that answer them.

Connections and callers in this process pass requests to the `Service` of a port after the frames
are cut, before any actor or body decoder sees them. Authorized requests go on, others get an error
answer. A `Responder` is an actor with a method for each request code that it serves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, TypeAlias, TypeVar

from actors.access.access_state import AccessState
from actors.access.authorizer import Authorizer, TooManyFailures
from actors.access.rights import Administration
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import AnswerStats
from actors.network.messages import ClientAnswer, Peer, Request, StreamPeer, failure
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import FRAME_BYTES_MAX, RESPONSE_FLAG, RemotingCommand
from protocol.headers.fields import Header
from protocol.send_values import Heads, Send

SHORT_BODY_BYTES_MAX = 1 << 20
"""Maximum body decoded on the loop: 5,000 subscriptions of a heartbeat, 40 ms."""

WAITING_BYTES_MAX = 16 << 20
"""Bytes of all requests that wait for one actor if they are alike; 170 MiB if none is."""
_REQUEST_BYTES = 1 << 10
"""Memory of a request without body and fields."""

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


@dataclass(frozen=True)
class Service:
    """Routes of a listening port, and the handling of all other codes."""

    routes: Mapping[int, ActorAddress]
    sends_to: ActorAddress | None = None
    """Actor that receives sends; None if they are not served (name server)."""

    answer_unknown: bool = True
    """Whether an unknown code is answered, as a broker does; a name server stays silent."""

    is_fast: bool = False
    """Whether clients with vipChannelEnabled use it, to commit offsets apart from heartbeats."""

    tell_closed: Sequence[ActorAddress] = field(default_factory=tuple)
    answers_to: ActorAddress | None = None
    """Actor that receives answers of clients; None if clients are never asked."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    cure: str = ""
    """Advice to the operator about longer frames."""
    guard: AccessState | None = None
    """State of access control; None without it."""
    stats: AnswerStats | None = None
    administration: Administration | None = None
    """Addresses from which administrators may ask; None: all."""

    heads: Heads = field(default_factory=Heads)
    """Headers of sends that its connections have learnt."""

    def pass_on(
        self,
        command: RemotingCommand,
        peer: Peer,
        gate: Authorizer | None = None,
        header: Header | None = None,
    ) -> bool:
        """Send a request to the actor that serves it, or an answer to the actor that tracks it.

        Returns False if the code is not served and the sender is authorized. Raises TooManyFailures
        if `gate` requires the connection to be closed.
        """
        if command.flag & RESPONSE_FLAG:
            if self.answers_to is not None:
                self.answers_to.tell(ClientAnswer(command, peer))
            return True
        address = self.routes.get(command.code)
        if address is not None:
            began_s = perf_counter()
            request = Request(command, peer, None, header, None, self.stats, began_s)
            try:
                if self.administration is not None and command.code in self.administration.codes:
                    self.administration.check(command.code, peer.remote)
                check_waiting(address.waiting, command)
            except RemoteError as error:
                request.answer(error.code, remark=error.remark)
                return True
            if gate is None or admits(gate, request):
                address.tell(request)
            return True
        if gate is not None and not admits(gate, Request(command, peer), is_served=False):
            return True
        if self.answer_unknown:
            remark = f" request type {command.code} not supported"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            Request(command, peer).answer(code, remark=remark)
        return False


def admits(gate: Authorizer, request: Request, *, is_served: bool = True) -> bool:
    """Authorize a request and set its grant; else answer it and return False.

    A code that is not served needs a known sender only. Raises TooManyFailures if the connection
    must be closed.
    """
    try:
        request.grant = (gate.grant if is_served else gate.identify)(request.command)
    except TooManyFailures:
        raise
    except RemoteError as error:
        request.answer(error.code, remark=error.remark)
        return False
    return True


def admitted(gate: Authorizer, peer: StreamPeer, sends: list[Send]) -> list[Send]:
    """Return the authorized sends; answer the others.

    Raises TooManyFailures if the connection must be closed.
    """
    refused = gate.refused(sends)
    if not refused:
        return sends
    for place, error in refused.items():
        frame = failure(sends[place], error.code, remark=error.remark)
        if frame is not None:
            peer.write((frame,))
    return [send for place, send in enumerate(sends) if place not in refused]
