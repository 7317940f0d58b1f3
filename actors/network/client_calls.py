"""Requests of the broker to its clients that want an answer.

Owns: the calls that wait, each by its client and its opaque.
Told by: whoever asks (`CallClient`), connections (`ClientAnswer`, `PeerClosed`), its own timers.
Tells: the client; whoever asked (`CallDone`: the answer, or why there is none).

Both sides of a connection number their requests by themselves, so that the same opaque may be on
its way in both directions: answers come here, and only requests of ours are looked for.  Every call
ends with exactly one `CallDone`: answered, too late, its connection closed, too many at once, or
this actor restarted (what waits is handed to it, so that a restart knows what to give up).

Source: NettyRemotingAbstract.invokeSyncImpl, Broker2Client.callClient.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Any

from structlog import get_logger

from actors.engine.actor import Actor, TimerHandle, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import refuse
from actors.network.request import ClientAnswer, Peer, PeerClosed
from protocol.command import RemotingCommand

log = get_logger(__name__)

CALL_MS = 10_000
"""How long 4.9.7 waits for a client whose answer somebody wants to have."""

WAITING_MAX = 4096
"""Calls that wait at a time; one more fails at once."""

_OPAQUE_MASK = 0x7FFF_FFFF
_opaques = count(1)


def next_opaque() -> int:
    """The number of our next request to a client: no other that waits has it. Any thread."""
    return next(_opaques) & _OPAQUE_MASK


class CallEnd(Enum):
    """How a call ended."""

    ANSWERED = auto()
    TIMED_OUT = auto()
    CLOSED = auto()
    """The connection went, before the answer or before the question."""
    NOT_ASKED = auto()
    """Too many wait already, or nobody is there to ask for us."""


@dataclass(slots=True)
class CallDone:
    """Told to who asked: `answer` is there when the call was ANSWERED, whatever its code.

    `context` is that of the call. `why` is a sentence for remarks and logs.
    """

    context: Any
    peer: Peer
    end: CallEnd
    answer: RemotingCommand | None = None
    why: str = ""

    def refuse(self, remark: str) -> None:
        """Who asked is gone: so is who waits for that, unless the context can be refused."""
        refuse = getattr(self.context, "refuse", None)
        if refuse is not None:
            refuse(remark)


@dataclass(slots=True)
class CallClient:
    """Ask `peer`, and tell `then` how it ended (`CallDone`, with this `context`).

    The command's opaque is chosen here. `timeout_ms` counts from the question.
    """

    peer: Peer
    command: RemotingCommand
    then: ActorAddress
    context: Any = None
    timeout_ms: float = CALL_MS

    def done(self, end: CallEnd, why: str, answer: RemotingCommand | None = None) -> None:
        """Tells who asked."""
        self.then.tell(CallDone(self.context, self.peer, end, answer, why))

    def refuse(self, remark: str) -> None:
        """Nobody is there to ask the client."""
        self.done(CallEnd.NOT_ASKED, remark)


Waiting = MutableMapping[tuple[int, int], tuple[CallClient, TimerHandle]]
"""By peer_id and opaque."""


@dataclass(frozen=True, slots=True)
class _TooLate:
    """The time of a call is over."""

    key: tuple[int, int]


@dataclass(slots=True)
class NoProducer:
    """There is no producer with the clientId of an AskProducer; this is its context."""

    context: object

    def refuse(self, remark: str) -> None:
        """Who asked is gone: so is who waits for that, unless the context can be refused."""
        refuse(self.context, remark)


@dataclass(slots=True)
class AskProducer:
    """Ask the producer with this clientId; `then` is told CallDone, or NoProducer."""

    client_id: str
    command: RemotingCommand
    then: ActorAddress
    context: object

    def refuse(self, _remark: str) -> None:
        """Nobody knows any producer."""
        self.then.tell(NoProducer(self.context))


class ClientCalls(Actor):
    """Lives on the loop. `waiting` outlives it."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self._waiting = waiting

    def on_start(self) -> None:
        for call, _ in self._waiting.values():
            call.done(CallEnd.NOT_ASKED, "the broker's calls to clients have been restarted")
        self._waiting.clear()

    @handles(CallClient)
    def on_call(self, message: CallClient) -> None:
        """Asks, if the client is there and there is room."""
        peer = message.peer
        if not peer.is_open:
            message.done(CallEnd.CLOSED, f"send request to <{peer.remote}> failed")
            return
        if len(self._waiting) >= WAITING_MAX:
            self.system.rarely.warn(
                "too many calls to clients wait", waiting=WAITING_MAX, peer=peer.remote
            )
            message.done(CallEnd.NOT_ASKED, f"more than {WAITING_MAX} calls to clients wait")
            return
        message.command.opaque = next_opaque()
        key = peer.peer_id, message.command.opaque
        self._waiting[key] = message, self.after(message.timeout_ms, _TooLate(key))
        peer.send(message.command)

    @handles(ClientAnswer)
    def on_answer(self, message: ClientAnswer) -> None:
        """An answer; one that nobody waits for any more is dropped."""
        found = self._waiting.pop((message.peer.peer_id, message.answer.opaque), None)
        if found is None:
            log.debug("answer without a call", peer=message.peer.remote)
            return
        call, timer = found
        timer.cancel()
        call.done(CallEnd.ANSWERED, "", message.answer)

    @handles(_TooLate)
    def on_too_late(self, message: _TooLate) -> None:
        """The client has had its time."""
        found = self._waiting.pop(message.key, None)
        if found is not None:
            call, _ = found
            remote, limit = call.peer.remote, round(call.timeout_ms)
            call.done(
                CallEnd.TIMED_OUT, f"wait response on the channel <{remote}> timeout, {limit}(ms)"
            )

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """A client that is gone answers nothing."""
        for key in [key for key in self._waiting if key[0] == message.peer.peer_id]:
            call, timer = self._waiting.pop(key)
            timer.cancel()
            call.done(CallEnd.CLOSED, f"send request to <{call.peer.remote}> failed")

    def on_stop(self) -> None:
        for call, _ in self._waiting.values():
            call.done(CallEnd.NOT_ASKED, "the broker is stopping")
        self._waiting.clear()
