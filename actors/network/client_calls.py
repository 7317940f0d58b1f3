"""Requests of the broker to its clients that need an answer.

Owns: the pending calls, by client and opaque.
Receives: CallClient (from actors that ask a client), ClientAnswer and PeerClosed (from
connections), its timers.
Sends: the request (to the client), CallDone (to the caller).

Each side of a connection numbers its own requests, so one opaque may be in use in both directions.
Only answers are looked up here. Every call ends with exactly one CallDone: answered, timed out,
closed, or not asked. The pending calls survive this actor, so a restart ends them with CallDone.

Source: NettyRemotingAbstract.invokeSyncImpl, Broker2Client.callClient.
"""

from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass
from itertools import count

from actors.engine.actor import Actor, TimerHandle, handles
from actors.engine.server_log import get_logger
from actors.network.messages import (
    CallClient,
    CallEnd,
    ClientAnswer,
    PeerClosed,
)

log = get_logger(__name__)


WAITING_MAX = 4096
"""Maximum pending calls; a further call fails at once."""

CALLED_PER_ROUND = 500
"""Calls in a round of the loop: 10 ms. One question about a group may ask thousands."""

_OPAQUE_MASK = 0x7FFF_FFFF
_opaques = count(1)


def next_opaque() -> int:
    """Return an opaque for a request to a client; no pending request has it. Any thread."""
    return next(_opaques) & _OPAQUE_MASK


Waiting = MutableMapping[tuple[int, int], tuple[CallClient, TimerHandle]]
"""Pending calls by peer_id and opaque."""


@dataclass(frozen=True, slots=True)
class _CallOn:
    """Make the next calls."""


@dataclass(frozen=True, slots=True)
class _TooLate:
    key: tuple[int, int]


class ClientCalls(Actor):
    """Table of pending calls. Runs on the loop; `waiting` outlives the actor."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self._waiting = waiting
        self._calls: deque[CallClient] = deque()
        """Calls for the next rounds."""
        self._round, self._left = -1, 0

    def on_start(self) -> None:
        for call, _ in self._waiting.values():
            call.done(CallEnd.NOT_ASKED, "the broker's calls to clients have been restarted")
        self._waiting.clear()

    @handles(CallClient)
    def on_call(self, message: CallClient) -> None:
        """Call the client, now or in a next round."""
        if (now := self.system.loop.round_count) != self._round:
            self._round, self._left = now, CALLED_PER_ROUND
        self._calls.append(message)
        if len(self._calls) == 1 and not self._left:
            self.system.loop.tell_in_next_round(self.address, _CallOn())
        elif len(self._calls) == 1:
            self._call_next()

    @handles(_CallOn)
    def on_call_on(self, _: _CallOn) -> None:
        """Make the next calls, in order."""
        self._round, self._left = self.system.loop.round_count, CALLED_PER_ROUND
        while self._calls and self._left:
            self._call_next()
        if self._calls:
            self.system.loop.tell_in_next_round(self.address, _CallOn())

    def _call_next(self) -> None:
        self._left -= 1
        message = self._calls.popleft()
        peer = message.peer
        if not peer.is_open:
            message.done(CallEnd.CLOSED, f"send request to <{peer.remote}> failed")
            return
        if len(self._waiting) >= WAITING_MAX:
            self.system.rarely.warn("client call rejected", waiting=WAITING_MAX, peer=peer.remote)
            message.done(CallEnd.NOT_ASKED, f"more than {WAITING_MAX} calls to clients are pending")
            return
        message.command.opaque = next_opaque()
        key = peer.peer_id, message.command.opaque
        self._waiting[key] = message, self.after(message.timeout_ms, _TooLate(key))
        peer.send(message.command)

    @handles(ClientAnswer)
    def on_answer(self, message: ClientAnswer) -> None:
        found = self._waiting.pop((message.peer.peer_id, message.answer.opaque), None)
        if found is None:
            log.debug("answer without a call", peer=message.peer.remote)
            return
        call, timer = found
        timer.cancel()
        if call.room is None or call.room.take(len(message.answer.body or b"")):
            call.done(CallEnd.ANSWERED, "", message.answer)
        else:
            self.system.rarely.warn("client answer dropped", peer=call.peer.remote)
            call.done(CallEnd.NOT_ASKED, "too many bytes of clients' answers wait")

    @handles(_TooLate)
    def on_too_late(self, message: _TooLate) -> None:
        found = self._waiting.pop(message.key, None)
        if found is not None:
            call, _ = found
            remote, limit = call.peer.remote, round(call.timeout_ms)
            call.done(
                CallEnd.TIMED_OUT, f"wait response on the channel <{remote}> timeout, {limit}(ms)"
            )

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        for key in [key for key in self._waiting if key[0] == message.peer.peer_id]:
            call, timer = self._waiting.pop(key)
            timer.cancel()
            call.done(CallEnd.CLOSED, f"send request to <{call.peer.remote}> failed")

    def on_failure(self, *_: object) -> None:
        while self._calls:
            self._calls.popleft().on_undelivered(self.remark())

    def on_stop(self) -> None:
        while self._calls:
            self._calls.popleft().on_undelivered("the broker is stopping")
        for call, _ in self._waiting.values():
            call.done(CallEnd.NOT_ASKED, "the broker is stopping")
        self._waiting.clear()
