"""Receives and notifications that wait for messages, and the table that finds them.

Plain classes on the event loop. A message wakes one receive of a group, not all of them: the woken
one wakes the next if it leaves messages.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice
from sys import intern
from typing import TypeAlias

from actors.access.grant import Grant
from actors.network.messages import Peer, Request
from actors.pulling.held_pulls import HELD_MAX, HELD_OF_PEER_MAX, TICK_MS, TagSets
from actors.pulling.messages import Origin
from protocol.frame import RemotingCommand
from protocol.headers.pop import ALL_QUEUES, NotificationHeader, PopMessageHeader
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.queues.message_filter import MessageFilter

Place: TypeAlias = tuple[str, str]
"""Group and topic."""

ReceiveHeader: TypeAlias = PopMessageHeader | NotificationHeader


@dataclass(slots=True, eq=False)
class HeldReceive:
    """One checked receive or notification."""

    peer: Peer
    header: ReceiveHeader
    place: Place
    wanted: MessageFilter | None
    """Filter of its messages; None for all."""
    deadline_ms: float
    """Monotonic time, ms."""
    opaque: int
    origin: Origin
    grant: Grant | None
    cold_reads: int = 0
    """Reads of cold pages since it last waited."""
    has_left: bool = False
    """Whether its client has signed off meanwhile."""
    turn: int = 0
    """Number that decides which queue is looked at first."""
    looked: int = 0
    """Queues that it has looked at since it last waited, if there are more."""

    def request(self) -> Request:
        """Return the request as received; its fields are in the header."""
        code, flag, language, version, kind = self.origin
        command = RemotingCommand(
            code, None, None, self.opaque, flag, None, language, version, kind
        )
        return Request(command, self.peer, None, self.header, self.grant)

    @property
    def queue_id(self) -> int:
        return max(ALL_QUEUES, self.header.queue_id)

    @property
    def takes(self) -> bool:
        """Whether it takes messages; a notification does not."""
        return isinstance(self.header, PopMessageHeader)


def interned(header: ReceiveHeader) -> Place:
    """Return the place of a receive; equal texts of receives share one object."""
    header.topic, header.consumer_group = intern(header.topic), intern(header.consumer_group)
    if isinstance(header, PopMessageHeader):
        if header.expression is not None:
            header.expression = intern(header.expression)
        if header.expression_type is not None:
            header.expression_type = intern(header.expression_type)
    if header.broker_name is not None:
        header.broker_name = intern(header.broker_name)
    return header.consumer_group, header.topic


_ByQueue: TypeAlias = dict[int, dict[HeldReceive, None]]


class WaitTable:
    """Waiting receives. Receipts changes it; Reput reads its count."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._waiting: dict[Place, _ByQueue] = {}
        self._places: dict[bytes, dict[Place, None]] = {}
        """Places by the topics that concern them: their own, and the retry topic of the group."""
        self._by_peer: dict[int, dict[HeldReceive, None]] = {}
        self._by_tick: dict[int, dict[HeldReceive, None]] = {}
        self._tag_sets = TagSets()
        self._gone: deque[int] = deque()
        """Closed connections with receives in the table."""
        self.count = 0

    @property
    def topics(self) -> Container[bytes]:
        """Topics whose messages wake a receive."""
        return self._places

    def has_room(self, peer_id: int, wanted: MessageFilter | None = None) -> bool:
        of_peer = len(self._by_peer.get(peer_id, ()))
        has_place = self.count < HELD_MAX and of_peer < HELD_OF_PEER_MAX
        return has_place and self._tag_sets.has_room(wanted)

    def add(self, receive: HeldReceive) -> None:
        by_queue = self._waiting.get(receive.place)
        if by_queue is None:
            by_queue = self._waiting[receive.place] = {}
            for topic in _topics(receive.place):
                self._places.setdefault(topic, {})[receive.place] = None
        by_queue.setdefault(receive.queue_id, {})[receive] = None
        self._by_peer.setdefault(receive.peer.peer_id, {})[receive] = None
        self._by_tick.setdefault(_tick_of(receive), {})[receive] = None
        self._tag_sets.add(receive.wanted)
        self.count += 1

    def arrived(self, topic: bytes, queue_id: int) -> Iterator[HeldReceive]:
        """Remove and yield the receives to wake for messages in this queue."""
        for place in [*self._places.get(topic, ())]:
            is_own = place[1].encode() == topic
            yield from self.next_of(place, queue_id) if is_own else self.first_of(place)

    def next_of(self, place: Place, queue_id: int) -> Iterator[HeldReceive]:
        """Remove and yield the first receive of any queue, and the first of this queue.

        Notifications before them come along.
        """
        for key in dict.fromkeys((ALL_QUEUES, queue_id)):
            held = self._waiting.get(place, {}).get(key, {})
            first = next(iter(held), None)
            for receive in (first,) if first is None or first.takes else [*held]:
                if receive is not None and receive in held:
                    self._take([receive])
                    yield receive
                    if receive.takes:
                        break

    def first_of(self, place: Place) -> Iterator[HeldReceive]:
        """Remove and yield the first receive, whatever its queue: all of them take retries.

        Notifications before it come along.
        """
        for queue_id in [*self._waiting.get(place, ())]:
            for receive in self.next_of(place, queue_id):
                yield receive
                if receive.takes:
                    return

    def next_after(
        self, place: Place, queue_id: int, *, with_retries: bool
    ) -> Iterator[HeldReceive]:
        """Remove and yield the receives for what a receive of this queue has left.

        Without another one of its queue, that is the first of all if retries are left.
        """
        is_found = False
        for receive in self.next_of(place, queue_id):
            is_found |= receive.takes
            yield receive
        if with_retries and not is_found:
            yield from self.first_of(place)

    def all_first(self) -> Iterator[HeldReceive]:
        """Remove and yield the first receives of all queues."""
        for place in [*self._waiting]:
            for queue_id in [*self._waiting.get(place, ())]:
                yield from self.next_of(place, queue_id)

    def some(self, first: int, most: int) -> list[tuple[Place, list[int]]]:
        """Return at most `most` places, from number `first` on, with their awaited queues."""
        found = islice(self._waiting.items(), first, first + most)
        return [(place, [*by_queue]) for place, by_queue in found]

    def due(self, now_ms: float, most: int) -> list[HeldReceive]:
        """Remove and return at most `most` receives past their deadline, the earliest first."""
        found: list[HeldReceive] = []
        for tick in sorted(tick for tick in self._by_tick if tick * TICK_MS <= now_ms):
            for receive in self._by_tick[tick]:
                if receive.deadline_ms <= now_ms:
                    found.append(receive)
                    if len(found) == most:
                        return self._take(found)
        return self._take(found)

    def of_peer(self, peer_id: int, group: str | None = None) -> list[HeldReceive]:
        """Remove and return the receives of a connection: those of one group, or all."""
        held = self._by_peer.get(peer_id, ())
        return self._take([each for each in held if group is None or each.place[0] == group])

    def forget(self, peer_id: int) -> None:
        """Have `forget_some` remove the receives of a closed connection, which may be many."""
        if peer_id in self._by_peer:
            self._gone.append(peer_id)

    def forget_some(self, most: int) -> None:
        """Remove at most `most` receives of closed connections."""
        while self._gone and most > 0:
            held = self._by_peer.get(self._gone[0], ())
            most -= len(self._take([*islice(held, most)]))
            if self._gone[0] not in self._by_peer:
                self._gone.popleft()

    def all(self) -> list[HeldReceive]:
        """Remove and return all receives."""
        return self._take([each for held in self._by_peer.values() for each in held])

    def _take(self, taken: list[HeldReceive]) -> list[HeldReceive]:
        for receive in taken:
            self.count -= 1
            self._tag_sets.drop(receive.wanted)
            by_queue = self._waiting[receive.place]
            _drop(by_queue, receive.queue_id, receive)
            if not by_queue:
                del self._waiting[receive.place]
                for topic in _topics(receive.place):
                    places = self._places[topic]
                    del places[receive.place]
                    if not places:
                        del self._places[topic]
            _drop(self._by_peer, receive.peer.peer_id, receive)
            _drop(self._by_tick, _tick_of(receive), receive)
        return taken


class WokenReceives:
    """Receives to process, and searches for more, in turn, so that one event costs little."""

    def __init__(self, waits: WaitTable, is_more: Callable[[], None]) -> None:
        """Call `is_more` whenever there is something to process."""
        self._waits, self._is_more = waits, is_more
        self._receives: deque[HeldReceive] = deque()
        self._searches: dict[object, Iterator[HeldReceive]] = {}

    def __bool__(self) -> bool:
        return bool(self._receives or self._searches)

    def add(self, receive: HeldReceive) -> None:
        self._receives.append(receive)
        self._is_more()

    def next_after(self, receive: HeldReceive, *, with_retries: bool) -> None:
        place, queue_id = receive.place, receive.queue_id
        found = self._waits.next_after(place, queue_id, with_retries=with_retries)
        self._search((place, queue_id, with_retries), found)

    def next_of(self, place: Place, queue_id: int) -> None:
        self._search((place, queue_id), self._waits.next_of(place, queue_id))

    def arrived(self, topic: bytes, queue_id: int) -> None:
        self._search((topic, queue_id), self._waits.arrived(topic, queue_id))

    def all_first(self) -> None:
        self._search("all", self._waits.all_first())

    def _search(self, key: object, found: Iterator[HeldReceive]) -> None:
        """Note a search; it repeats and replaces a former one of this key."""
        self._searches[key] = found
        self._is_more()

    def take(self) -> HeldReceive | None:
        """Remove and return the next receive."""
        if self._receives:
            return self._receives.popleft()
        while self._searches:
            key, found = next(iter(self._searches.items()))
            receive = next(found, None)
            if receive is not None:
                return receive
            del self._searches[key]
        return None

    def drain(self) -> list[HeldReceive]:
        """Remove and return what waits here; searches leave theirs in the table."""
        found, self._receives = [*self._receives], deque()
        self._searches.clear()
        return found


def _topics(place: Place) -> set[bytes]:
    return {place[1].encode(), (RETRY_TOPIC_PREFIX + place[0]).encode()}


def _drop(table: dict[int, dict[HeldReceive, None]], key: int, receive: HeldReceive) -> None:
    held = table[key]
    del held[receive]
    if not held:
        del table[key]


def _tick_of(receive: HeldReceive) -> int:
    return int(receive.deadline_ms // TICK_MS)
