"""Service of a listening port: which actor serves a request code, after its authorization.

Connections and callers in this process use it after the frames are cut, before any actor or body
decoder sees the request. Authorized requests pass, others get an error answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from actors.access.access_state import AccessState
from actors.access.authorizer import Authorizer, TooManyFailures
from actors.access.rights import Administration
from actors.engine.actor_address import ActorAddress
from actors.network.messages import ClientAnswer
from actors.network.request import AnswerStats, Peer, Request, StreamPeer, check_waiting, failure
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.frame import FRAME_BYTES_MAX, RESPONSE_FLAG, RemotingCommand
from protocol.headers.fields import Header
from protocol.send_values import Heads, Send


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
