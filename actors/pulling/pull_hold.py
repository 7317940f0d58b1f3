"""Long polling: pulls that found nothing wait here for a message or their deadline.

Owns: the held pulls, by topic and queue.
Told by: PullMessage (`Hold`), Reput (`Arrived`, `CaughtUp`), the scrubber (`UnitVerified`),
connections (`PeerClosed`), its own tick.
Tells: PullMessage (`Woken`: process it again, but do not hold it again; `BarrierForHolds`, when the
broker stops).

A pull that filters by properties waits for a record whose properties match: for such pulls alone
the record is read. One whose first message is in doubt waits here too: for the scrubber, not for a
message.

4.9.7 looks at deadlines every 5 s; here a pull is answered within a tick of its deadline.

Source: PullRequestHoldService.
"""

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from actors.dispatching.reput import Arrived, CaughtUp
from actors.dispatching.verify_unit import UnitVerified
from actors.engine.actor import Actor, handles
from actors.engine.address import Address
from actors.network.request import PeerClosed, Request
from actors.pulling.property_filters import Matches, is_true
from protocol.codes import ResponseCode
from protocol.message import RecordError
from protocol.properties import parse
from storage.errors import OffsetError
from storage.log.reader import head_of

TICK_MS = 100
HELD_MAX = 200_000
"""Past this many a pull is answered at once, empty; the client comes again."""

HELD_OF_PEER_MAX = 10_000
"""The same of one connection: a consumer has one for each of its queues."""

WOKEN_PER_ROUND = 4
"""Pulls that are looked at again before sockets are: some 0.15 ms, for one message may wake all."""

TAKEN_PER_ROUND = 32
"""Of those whose time is over, or whose peer has gone: some 0.2 ms. It may be over for all at once,
and a peer may have had 10,000."""
assert TAKEN_PER_ROUND > WOKEN_PER_ROUND  # so that another round follows while there are more

Key = TypeVar("Key")
NEVER = 1 << 63
"""Beyond every queue: no message that arrives wakes a pull that waits for this offset."""


@dataclass(slots=True, eq=False)
class Hold:
    """Keep this pull until queue (topic, queue_id) holds more than `offset` messages."""

    request: Request
    topic: bytes
    queue_id: int
    offset: int
    codes: Set[int] | None
    """Tags codes that the consumer wants; None: all."""

    timeout_ms: float
    doubtful: int = -1
    """The queue offset of the unit that has to be verified first; `offset` is NEVER then."""
    deadline_ms: float = 0.0
    """By the monotonic clock; 0: `timeout_ms` from now."""
    matches: Matches | None = None
    """Asked with the properties of a record whose tags code is wanted; None: nothing else is."""

    def refuse(self, remark: str) -> None:
        """Answers the held pull with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class Woken:
    """Process a held pull again."""

    request: Request
    verified: int = -1
    """The queue offset of the unit whose doubt it waited for, if that has been looked into."""
    deadline_ms: float = 0.0
    """When its time is over, by the monotonic clock; if it has to wait again, until then."""
    is_over: bool = False
    """Its time is over: it is answered, whatever is still in doubt."""

    def refuse(self, remark: str) -> None:
        """Answers the held pull with an error."""
        self.request.refuse(remark)


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


class HoldTable:
    """The held pulls; plain, for tests without an actor."""

    def __init__(self, view: Callable[[int, int], memoryview] | None = None) -> None:
        """`view` gives bytes of the log, by offset and count; None: filters are not asked."""
        self._view = view
        self._held: dict[tuple[bytes, int], dict[int, Hold]] = {}
        self._by_peer: dict[int, dict[int, Hold]] = {}
        """Nobody looks through 200,000 for each peer that goes, nor, by the tick of their deadline,
        ten times a second."""
        self._by_tick: dict[int, dict[int, Hold]] = {}
        self.count = 0

    def add(self, hold: Hold) -> None:
        """Keeps one."""
        number = id(hold)
        self._held.setdefault((hold.topic, hold.queue_id), {})[number] = hold
        self._by_peer.setdefault(hold.request.peer.peer_id, {})[number] = hold
        self._by_tick.setdefault(_tick_of(hold), {})[number] = hold
        self.count += 1

    def has_room(self, peer_id: int) -> bool:
        """Whether one more of this peer may be kept."""
        return self.count < HELD_MAX and len(self._by_peer.get(peer_id, ())) < HELD_OF_PEER_MAX

    def arrived(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        code: int,
        physical_offset: int = 0,
        size: int = 0,
    ) -> list[Hold]:
        """Takes out those that may want the record just dispatched at `queue_offset`."""
        holds = self._held.get((topic, queue_id))
        if holds is None:
            return []
        low = code & 0xFFFFFFFF
        signed = low - (1 << 32) if low >> 31 else low
        wanting = [
            hold
            for hold in holds.values()
            if hold.offset <= queue_offset and (hold.codes is None or signed in hold.codes)
        ]
        if self._view is not None and any(hold.matches is not None for hold in wanting):
            wanting = self._matching(wanting, physical_offset, size)
        return self._take(wanting)

    def _matching(self, holds: list[Hold], physical_offset: int, size: int) -> list[Hold]:
        """Those of them whose filter lets the record pass; one that cannot be read passes."""
        assert self._view is not None
        try:
            properties = parse(
                head_of(self._view(physical_offset, size), physical_offset).properties
            )
        except (OffsetError, RecordError):
            return holds
        return [hold for hold in holds if hold.matches is None or is_true(hold.matches, properties)]

    def due(self, now_ms: float, most: int = HELD_MAX) -> list[Hold]:
        """Takes out those whose time is over, at most so many, those first that were over first."""
        ticks = sorted(tick for tick in self._by_tick if tick * TICK_MS <= now_ms)
        holds = (hold for tick in ticks for hold in self._by_tick[tick].values())
        return self._take([*islice((hold for hold in holds if hold.deadline_ms <= now_ms), most)])

    def behind(self, max_offset: Callable[[bytes, int], int]) -> list[Hold]:
        """Takes out those whose queue holds more than they have seen."""
        return self._take_where(lambda hold: max_offset(hold.topic, hold.queue_id) > hold.offset)

    def verified(self, topic: bytes, queue_id: int, queue_offset: int) -> list[Hold]:
        """Takes out those that waited for this unit."""
        holds = self._held.get((topic, queue_id), {})
        return self._take([hold for hold in holds.values() if hold.doubtful == queue_offset])

    def doubtful(self) -> list[Hold]:
        """Takes out those that wait for any unit to be verified."""
        return self._take_where(lambda hold: hold.doubtful >= 0)

    def of_peer(self, peer_id: int, most: int = HELD_OF_PEER_MAX) -> list[Hold]:
        """Takes out those of a peer that is gone, at most so many."""
        return self._take([*islice(self._by_peer.get(peer_id, {}).values(), most)])

    def all(self) -> list[Hold]:
        """Takes out everything."""
        return self._take_where(lambda _: True)

    def _take_where(self, wanted: Callable[[Hold], bool]) -> list[Hold]:
        holds = [hold for held in self._held.values() for hold in held.values() if wanted(hold)]
        return self._take(holds)

    def _take(self, taken: list[Hold]) -> list[Hold]:
        self.count -= len(taken)
        for hold in taken:
            number = id(hold)
            _drop(self._held, (hold.topic, hold.queue_id), number)
            _drop(self._by_peer, hold.request.peer.peer_id, number)
            _drop(self._by_tick, _tick_of(hold), number)
        return taken


def _drop(table: dict[Key, dict[int, Hold]], key: Key, number: int) -> None:
    holds = table[key]
    del holds[number]
    if not holds:
        del table[key]


def _tick_of(hold: Hold) -> int:
    return int(hold.deadline_ms // TICK_MS)


class PullHold(Actor):
    """Lives on the loop."""

    def __init__(
        self,
        pull_message: Address,
        max_offset: Callable[[bytes, int], int],
        view: Callable[[int, int], memoryview],
    ) -> None:
        """`view` gives bytes of the log, by offset and count (CommitLog.view)."""
        super().__init__()
        self._pull_message = pull_message
        self._max_offset = max_offset
        self._table = HoldTable(view)
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
        if not message.deadline_ms:
            message.deadline_ms = self.system.clock.monotonic_ms() + message.timeout_ms
        arrived = self._max_offset(message.topic, message.queue_id) > message.offset
        if self._draining or not self._table.has_room(message.request.peer.peer_id):
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
        for entry in message.entries:
            woken = arrived(entry[0], entry[1], entry[2], entry[5], entry[3], entry[4])
            if woken:
                self._wake(woken)

    @handles(CaughtUp)
    def on_caught_up(self, _: CaughtUp) -> None:
        """Wakes whoever waits for a record that was dispatched without a word, or for a unit."""
        self._wake(self._table.behind(self._max_offset))
        self._wake(self._table.doubtful())

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
        """Nobody is left silent."""
        for request in self._waiting_requests():
            request.refuse("pull hold restarted")

    def _waiting_requests(self) -> list[Request]:
        held = [hold.request for hold in self._table.all()]
        return [*(woken.request for woken in self._waking), *held]

    def _wake(self, holds: list[Hold], *, verified: bool = False, is_over: bool = False) -> None:
        waking = self._waking
        is_first = not waking
        for hold in holds:
            doubtful = hold.doubtful if verified else -1
            waking.append(Woken(hold.request, doubtful, hold.deadline_ms, is_over))
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
