"""Long polling: pulls without a result wait here for a message or their deadline.

Owns: the held pulls, by topic and queue.
Receives: Hold and LastAnswered from PullMessage; Arrived, CaughtUp and QueuesEmptied from Reput;
UnitVerified from the scrubber; PeerClosed from connections; AskFigures from MetricsPort; its own
tick.
Sends: Woken to PullMessage, which processes the pull again; BarrierForHolds to PullMessage when the
broker stops.

A pull with a property filter waits for a record with matching properties; only such pulls require a
read of the record. A pull with its first message in doubt also waits here, for the scrubber.

4.9.7 checks deadlines every 5 s; here a pull is answered within a tick of its deadline.

Source: PullRequestHoldService.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.dispatching.messages import Arrived, CaughtUp, QueuesEmptied, UnitVerified
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.network.messages import PeerClosed, Request
from actors.pulling.held_pulls import TICK_MS, TOO_MANY_HELD, HoldTable
from actors.pulling.messages import BarrierForHolds, Hold, HoldFigures, LastAnswered, Woken
from protocol.codes import ResponseCode
from storage.queues.dispatch_entry import DispatchEntry, single_entries

WOKEN_PER_ROUND = 4
"""Pulls processed between rounds of socket events: 0.15 ms, because one message can wake all."""

TAKEN_PER_ROUND = 32
"""Expired or abandoned pulls taken per round: some 0.2 ms.

All can expire at once, and a connection can have 10,000.
"""
TAKEN_AT_ONCE = 2_000
"""Pulls taken for new messages before other events have their turn: 6 ms.

The last message may exceed it. Messages of many queues can wake all held pulls.
"""
assert TAKEN_PER_ROUND > WOKEN_PER_ROUND  # so that another round follows while there are more


@dataclass(slots=True)
class _Tick:
    """Timer tick: check the deadlines."""


@dataclass(slots=True)
class _WakeMore:
    """Wake more of the waiting pulls."""


@dataclass(slots=True)
class _LookOn:
    """Look at more of the messages that have arrived."""


@dataclass(slots=True)
class _ForgetMore:
    """Forget more pulls of closed connections."""


@dataclass(slots=True)
class _EmptyMore:
    """Wake more pulls at emptied queues."""


class PullHold(Actor):
    """Actor on the event loop."""

    def __init__(
        self,
        pull_message: ActorAddress,
        max_offset: Callable[[bytes, int], int],
        table: HoldTable,
    ) -> None:
        """Initialize the actor, the only one that changes the table."""
        super().__init__()
        self._pull_message = pull_message
        self._max_offset = max_offset
        self._table = table
        self._waking: deque[Woken] = deque()
        """Pulls removed from the table and not woken yet; other events are processed in between."""
        self._arrived: deque[Iterator[DispatchEntry]] = deque()
        """Messages that have arrived and may wake pulls, in batches."""
        self._is_more_due = False
        self._gone: deque[int] = deque()
        """Closed connections with pulls in the table."""
        self._emptied: deque[tuple[bytes, int]] = deque()
        """Emptied queues of which pulls may still wait."""
        self._draining = False
        self._owes_answers = False

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(HoldFigures(self._table.count))

    def on_start(self) -> None:
        self.every(TICK_MS, _Tick())

    @handles(Hold)
    def on_hold(self, message: Hold) -> None:
        """Hold a pull, unless the broker is stopping or holds too many.

        If a message has arrived meanwhile, wake the pull at once.
        """
        arrived = self._max_offset(*message.queue) > message.offset
        if self._draining:
            self._wake([message], is_over=True)
        elif not self._table.has_room(message.peer.peer_id, message.wanted, message.queue):
            peer, held = message.peer.remote, self._table.count
            self.system.rarely.warn(TOO_MANY_HELD, peer=peer, held=held)
            self._wake([message], is_over=True)
        elif arrived:
            self._wake([message])
        else:
            self._table.add(message)

    @handles(Arrived)
    def on_arrived(self, message: Arrived) -> None:
        if self._table.count:
            self._arrived.append(iter(single_entries(message.entries)))
            if len(self._arrived) == 1:
                self._look_at_arrived()

    @handles(_LookOn)
    def on_look_on(self, _: _LookOn) -> None:
        self._look_at_arrived()

    def _look_at_arrived(self) -> None:
        """Wake the pulls for messages, and continue in the next round after many pulls."""
        arrived, left = self._table.arrived, TAKEN_AT_ONCE
        self._table.begin_batch()
        while self._arrived:
            for entry in self._arrived[0]:
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
                    left -= len(woken)
                    if left <= 0:
                        self.system.loop.tell_in_next_round(self.address, _LookOn())
                        return
            self._arrived.popleft()

    @handles(CaughtUp)
    def on_caught_up(self, _: CaughtUp) -> None:
        """Wake the pulls with messages dispatched without Arrived, or with a unit in doubt."""
        self._wake(self._table.behind(self._max_offset))
        self._wake(self._table.doubtful())

    @handles(QueuesEmptied)
    def on_queues_emptied(self, message: QueuesEmptied) -> None:
        """Wake all pulls at emptied queues, in rounds: their offsets no longer exist."""
        is_first = not self._emptied
        for topic, queue_id in message.queues:
            self._emptied.append((topic.encode("utf-8", "surrogateescape"), queue_id))
        if is_first:
            self._wake_emptied()

    @handles(_EmptyMore)
    def on_empty_more(self, _: _EmptyMore) -> None:
        self._wake_emptied()

    def _wake_emptied(self) -> None:
        rest = TAKEN_AT_ONCE
        while self._emptied and rest:
            taken = self._table.of_queue(*self._emptied[0], rest)
            if len(taken) < rest:
                self._emptied.popleft()
            rest -= len(taken)
            self._wake(taken)
        if self._emptied:
            self.system.loop.tell_in_next_round(self.address, _EmptyMore())

    @handles(UnitVerified)
    def on_unit_verified(self, message: UnitVerified) -> None:
        topic = message.topic.encode("utf-8", "surrogateescape")
        self._wake(
            self._table.verified(topic, message.queue_id, message.queue_offset), verified=True
        )

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        if not self._is_more_due:
            self._wake_due()

    def _wake_due(self) -> None:
        due = self._table.due(self.system.clock.monotonic_ms(), TAKEN_PER_ROUND)
        self._is_more_due = len(due) == TAKEN_PER_ROUND
        self._wake(due, is_over=True)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        self._gone.append(message.peer.peer_id)
        if len(self._gone) == 1:
            self._forget_some()

    @handles(_ForgetMore)
    def on_forget_more(self, _: _ForgetMore) -> None:
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
        """Answer all held pulls now: the broker stops."""
        self._draining = self._owes_answers = True
        self._wake(self._table.all(), is_over=True)
        self._wake_some(len(self._waking))
        self._pull_message.tell(BarrierForHolds())

    @handles(LastAnswered)
    def on_last_answered(self, _: LastAnswered) -> None:
        """Note that PullMessage has answered all pulls; both actors may stop."""
        self._owes_answers = False

    def can_stop(self) -> bool:
        """Return whether all woken pulls are answered; PullMessage stops after this actor."""
        return not self._owes_answers

    def on_stop(self) -> None:
        for request in self._waiting_requests():
            request.answer(ResponseCode.PULL_NOT_FOUND, remark="broker stopped")

    def on_failure(self, *_: object) -> None:
        """Refuse all waiting pulls and clear the table."""
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
        self._wake_some(WOKEN_PER_ROUND)
        if self._is_more_due:
            self._wake_due()

    def _wake_some(self, most: int) -> None:
        waking = self._waking
        for _ in range(min(most, len(waking))):
            self._pull_message.tell(waking.popleft())
        if waking:
            self.system.loop.tell_in_next_round(self.address, _WakeMore())
