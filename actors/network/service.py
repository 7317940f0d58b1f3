"""The service of a listening port: which actor takes which request; what becomes of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from actors.access.access_state import AccessState
from actors.access.administration import Administration
from actors.access.authorizer import Authorizer
from actors.engine.actor_address import ActorAddress
from actors.network.answer_stats import AnswerStats
from actors.network.gatekeeping import admits
from actors.network.request import ClientAnswer, Peer, Request
from protocol.codes import ResponseCode
from protocol.command import RESPONSE_FLAG, RemotingCommand
from protocol.errors import RemoteError
from protocol.frame import FRAME_BYTES_MAX
from protocol.headers.fields import Header
from protocol.send_values import Heads


@dataclass(frozen=True)
class Service:
    """What a listening port serves: request code → address, and what happens to the rest."""

    routes: Mapping[int, ActorAddress]
    sends_to: ActorAddress | None = None
    """Who takes sends; None where they are not served (the name server)."""

    answer_unknown: bool = True
    """Whether an unknown code is answered (a broker does, a name server stays silent)."""

    is_fast: bool = False
    """Whether it is a broker's fast port, where clients with vipChannelEnabled bring their offsets
    over another connection than that of their heartbeats."""

    tell_closed: Sequence[ActorAddress] = field(default_factory=tuple)
    answers_to: ActorAddress | None = None
    """Who takes the answers of clients; None where clients are never asked."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    cure: str = ""
    """What its operator can do about a longer one."""
    guard: AccessState | None = None
    """Who sees to it that everybody may what he asks; None where there is no access control."""
    stats: AnswerStats | None = None
    """Where answers are counted."""
    administration: Administration | None = None
    """From where administrators ask; None: from everywhere."""

    heads: Heads = field(default_factory=Heads)
    """What its connections have learnt of sends."""

    def pass_on(
        self,
        command: RemotingCommand,
        peer: Peer,
        gate: Authorizer | None = None,
        header: Header | None = None,
    ) -> bool:
        """Tell a request, with its header if that is known, to its actor; an answer, too.

        Return False where none does, though its sender is known here. Raises TooManyFailures where
        `gate` wants the connection closed.
        """
        if command.flag & RESPONSE_FLAG:
            if self.answers_to is not None:
                self.answers_to.tell(ClientAnswer(command, peer))
            return True
        address = self.routes.get(command.code)
        if address is not None:
            began_s = perf_counter()
            request = Request(command, peer, None, header, None, self.stats, began_s)
            if self.administration is not None and command.code in self.administration.codes:
                try:
                    self.administration.check(command.code, peer.remote)
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
