"""Long polling: pulls that found nothing wait here for a message or their deadline.

Owns: the held pulls, by topic and queue.
Told by: PullMessage (`Hold`), Reput (`Arrived`, `CaughtUp`, `QueuesEmptied`), the scrubber
(`UnitVerified`), connections (`PeerClosed`), its own tick.
Tells: PullMessage (`Woken`: process it again, but do not hold it again; `BarrierForHolds`, when the
broker stops).

A pull that filters by properties waits for a record whose properties match: for such pulls alone
the record is read. One whose first message is in doubt waits here too: for the scrubber, not for a
message.

4.9.7 looks at deadlines every 5 s; here a pull is answered within a tick of its deadline.

Source: PullRequestHoldService.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actors.dispatching.messages import Arrived, CaughtUp, QueuesEmptied, UnitVerified
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.network.messages import PeerClosed
from actors.network.request import Request
from actors.pulling.held_pulls import TICK_MS, TOO_MANY_HELD, Hold, HoldTable
from protocol.codes import ResponseCode
from storage.queues.dispatch_entry import single_entries

WOKEN_PER_ROUND = 4
"""Pulls that are looked at again before sockets are: some 0.15 ms, for one message may wake all."""

TAKEN_PER_ROUND = 32
"""Of those whose time is over, or whose peer has gone: some 0.2 ms. It may be over for all at once,
and a peer may have had 10,000."""
assert TAKEN_PER_ROUND > WOKEN_PER_ROUND  # so that another round follows while there are more


@dataclass(slots=True)
class Woken:
    """Process a held pull again."""

    hold: Hold
    is_verified: bool = False
    """The doubt that it waited for has been looked into."""
    is_over: bool = False
    """Its time is over: it is answered, whatever is still in doubt."""

    def refuse(self, remark: str) -> None:
        """Answers the held pull with an error."""
        self.hold.refuse(remark)


@dataclass(slots=True)
class BarrierForHolds:
    """Tell PullHold `LastAnswered`, behind all pulls that it has woken."""


@dataclass(slots=True)
class LastAnswered:
    """No pull that was held is without its answer."""


@dataclass(slots=True)
class _Tick:
    """Look at the deadlines."""


@dataclass(slots=True)
class _WakeMore:
    """Wake some more of those that are to be woken."""


@dataclass(slots=True)
class _ForgetMore:
    """Forget some more pulls of peers that are gone."""


class PullHold(Actor):
    """Lives on the loop."""

    def __init__(
        self,
        pull_message: ActorAddress,
        max_offset: Callable[[bytes, int], int],
        table: HoldTable,
    ) -> None:
        """Nobody else changes the table; PullMessage looks whether it has room."""
        super().__init__()
        self._pull_message = pull_message
        self._max_offset = max_offset
        self._table = table
        self._waking: deque[Woken] = deque()
        """Out of the table, and not woken yet: others have their turn in between."""
        self._is_more_due = False
        self._gone: deque[int] = deque()
        """Peers whose pulls are not all forgotten."""
        self._draining = False
        self._owes_answers = False

    @property
    def count(self) -> int:
        """Pulls that are held."""
        return self._table.count

    def on_start(self) -> None:
        self.every(TICK_MS, _Tick())

    @handles(Hold)
    def on_hold(self, message: Hold) -> None:
        """Keeps a pull, unless the broker is stopping or holds too many.

        A message may have arrived while this one was under way: then it goes straight back.
        """
        arrived = self._max_offset(*message.queue) > message.offset
        if self._draining:
            self._wake([message], is_over=True)
        elif not self._table.has_room(message.peer.peer_id):
            peer, held = message.peer.remote, self._table.count
            self.system.rarely.warn(TOO_MANY_HELD, peer=peer, held=held)
            self._wake([message], is_over=True)
        elif arrived:
            self._wake([message])
        else:
            self._table.add(message)

    @handles(Arrived)
    def on_arrived(self, message: Arrived) -> None:
        """Wakes whoever waits for one of these records."""
        if not self._table.count:
            return
        arrived = self._table.arrived
        for entry in single_entries(message.entries):
            woken = arrived(
                entry.topic,
                entry.queue_id,
                entry.queue_offset,
                entry.tags_code,
                entry.physical_offset,
                entry.record_bytes,
            )
            if woken:
                self._wake(woken)

    @handles(CaughtUp)
    def on_caught_up(self, _: CaughtUp) -> None:
        """Wakes whoever waits for a record that was dispatched without a word, or for a unit."""
        self._wake(self._table.behind(self._max_offset))
        self._wake(self._table.doubtful())

    @handles(QueuesEmptied)
    def on_queues_emptied(self, message: QueuesEmptied) -> None:
        """Wake everyone who waits at them: their places are gone with the messages."""
        for topic, queue_id in message.queues:
            self._wake(self._table.of_queue(topic.encode("utf-8", "surrogateescape"), queue_id))

    @handles(UnitVerified)
    def on_unit_verified(self, message: UnitVerified) -> None:
        """Wakes whoever waits for this unit."""
        topic = message.topic.encode("utf-8", "surrogateescape")
        self._wake(
            self._table.verified(topic, message.queue_id, message.queue_offset), verified=True
        )

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Answers those whose time is over."""
        if not self._is_more_due:
            self._wake_due()

    def _wake_due(self) -> None:
        due = self._table.due(self.system.clock.monotonic_ms(), TAKEN_PER_ROUND)
        self._is_more_due = len(due) == TAKEN_PER_ROUND
        self._wake(due, is_over=True)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """Forgets the pulls of a peer that is gone."""
        self._gone.append(message.peer.peer_id)
        if len(self._gone) == 1:
            self._forget_some()

    @handles(_ForgetMore)
    def on_forget_more(self, _: _ForgetMore) -> None:
        """Forgets the next ones."""
        self._forget_some()

    def _forget_some(self) -> None:
        rest = TAKEN_PER_ROUND
        while self._gone and rest:
            taken = len(self._table.of_peer(self._gone[0], rest))
            if taken < rest:
                self._gone.popleft()
            rest -= taken
        if self._gone:
            self.system.loop.tell_in_next_round(self.address, _ForgetMore())

    def on_drain(self) -> None:
        """The broker stops: held pulls are answered now."""
        self._draining = self._owes_answers = True
        self._wake(self._table.all(), is_over=True)
        self._wake_some(len(self._waking))
        self._pull_message.tell(BarrierForHolds())

    @handles(LastAnswered)
    def on_last_answered(self, _: LastAnswered) -> None:
        """PullMessage may stop now, and so may this actor, after which it does."""
        self._owes_answers = False

    def can_stop(self) -> bool:
        """Once those that were woken are answered: PullMessage is stopped behind this actor."""
        return not self._owes_answers

    def on_stop(self) -> None:
        for request in self._waiting_requests():
            request.answer(ResponseCode.PULL_NOT_FOUND, remark="broker stopped")

    def on_failure(self, *_: object) -> None:
        """Nobody is left silent, and the table begins anew."""
        for request in self._waiting_requests():
            request.refuse("pull hold restarted")
        self._table.clear()

    def _waiting_requests(self) -> list[Request]:
        holds = [*(woken.hold for woken in self._waking), *self._table.all()]
        return [hold.request() for hold in holds]

    def _wake(self, holds: list[Hold], *, verified: bool = False, is_over: bool = False) -> None:
        waking = self._waking
        is_first = not waking
        for hold in holds:
            waking.append(Woken(hold, verified, is_over))
        if is_first and waking:
            self._wake_some(WOKEN_PER_ROUND)

    @handles(_WakeMore)
    def on_wake_more(self, _: _WakeMore) -> None:
        """Wakes the next ones."""
        self._wake_some(WOKEN_PER_ROUND)
        if self._is_more_due:
            self._wake_due()

    def _wake_some(self, most: int) -> None:
        waking = self._waking
        for _ in range(min(most, len(waking))):
            self._pull_message.tell(waking.popleft())
        if waking:
            self.system.loop.tell_in_next_round(self.address, _WakeMore())
