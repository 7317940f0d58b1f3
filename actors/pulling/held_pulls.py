"""Held pulls: the values kept of each, and the table that finds them.

These are plain classes on the event loop. There can be 200,000 held pulls, so each is small: some
450 bytes with the table. Its command and request are rebuilt when it is woken.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from sys import intern
from typing import TypeAlias, TypeVar

from actors.network.request import Request
from actors.pulling.messages import Hold, Origin
from actors.pulling.property_filters import is_true
from protocol.command import RemotingCommand
from protocol.headers.pull import PullMessageHeader
from protocol.message import RecordError
from protocol.properties import parse
from storage.errors import OffsetError
from storage.log.reader import head_of
from storage.queues.message_filter import MessageFilter

TICK_MS = 100
HELD_MAX = 200_000
"""Maximum held pulls; beyond it, a pull is answered at once, empty, and the client retries."""

HELD_OF_PEER_MAX = 10_000
"""Maximum held pulls of one connection; a consumer has one for each of its queues."""

INDEXED_FROM = 64
"""Held pulls of one queue from which on those for a message are found by its tag and filters."""

FEW_TAGS = 8
TAGS_MAX = 200_000
"""Tags of all filters with more than FEW_TAGS, 100 MiB; a filter that pulls share counts once."""

TOO_MANY_HELD = "held pull limit reached"
"""Log event for a pull that is answered because of these limits."""


Key = TypeVar("Key")
Part = TypeVar("Part")
Matches: TypeAlias = Callable[[Mapping[str, str]], bool | None]


@lru_cache(1024)
def _origin(code: int, flag: int, language: int, version: int, kind: int) -> Origin:
    """Return the same object for all pulls of a kind."""
    return code, flag, language, version, kind


def origin_of(command: RemotingCommand) -> Origin:
    """Return what a request that waits keeps of its command, besides the opaque."""
    return _origin(
        command.code, command.flag, command.language, command.version, command.serialize_type
    )


@lru_cache(4096)
def _queue(topic: str, queue_id: int) -> tuple[bytes, int]:
    """Return the same object for all pulls of a queue."""
    return topic.encode(), queue_id


def hold_of(
    request: Request,
    header: PullMessageHeader,
    wanted: MessageFilter | None,
    deadline_ms: float,
    offset: int,
) -> Hold:
    """Return the values to keep of this pull; equal texts of pulls share one object."""
    header.topic, header.consumer_group = intern(header.topic), intern(header.consumer_group)
    if header.subscription is not None:
        header.subscription = intern(header.subscription)
    if header.expression_type is not None:
        header.expression_type = intern(header.expression_type)
    if header.broker_name is not None:
        header.broker_name = intern(header.broker_name)
    command = request.command
    return Hold(
        request.peer,
        header,
        _queue(header.topic, header.queue_id),
        offset,
        wanted,
        deadline_ms,
        command.opaque,
        origin_of(command),
        request.seen_as,
        request.grant,
    )


class TagSets:
    """Tags that the filters of waiting requests keep in memory. One owner."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        """Number of requests by the identity of the set, which they keep."""
        self._count = 0

    def has_room(self, wanted: MessageFilter | None) -> bool:
        codes = _many_codes(wanted)
        is_known = not codes or id(codes) in self._users
        return is_known or self._count + len(codes) <= TAGS_MAX

    def add(self, wanted: MessageFilter | None) -> None:
        if codes := _many_codes(wanted):
            users = self._users.get(id(codes), 0)
            self._users[id(codes)] = users + 1
            self._count += 0 if users else len(codes)

    def drop(self, wanted: MessageFilter | None) -> None:
        if codes := _many_codes(wanted):
            self._users[id(codes)] -= 1
            if not self._users[id(codes)]:
                del self._users[id(codes)]
                self._count -= len(codes)


def _many_codes(wanted: MessageFilter | None) -> Set[int]:
    codes = None if wanted is None else wanted.tag_codes
    return codes if codes is not None and len(codes) > FEW_TAGS else frozenset()


@dataclass(slots=True)
class _Index:
    """Held pulls of a queue with many, by what wakes them."""

    by_tag: dict[int, dict[Set[int], None]] = field(default_factory=dict)
    """Sets of tags by each of their tags."""
    by_tags: dict[Set[int], dict[Hold, None]] = field(default_factory=dict)
    by_filter: dict[Matches, dict[Hold, None]] = field(default_factory=dict)
    """Pulls with a property filter and no tags."""
    for_all: int = 0
    """Number of those that any message wakes."""

    def add(self, hold: Hold) -> None:
        wanted = hold.wanted
        if wanted is not None and (codes := wanted.tag_codes) is not None:
            if codes not in self.by_tags:
                for code in codes:
                    self.by_tag.setdefault(code, {})[codes] = None
            self.by_tags.setdefault(codes, {})[hold] = None
        elif wanted is not None and wanted.matches is not None:
            self.by_filter.setdefault(wanted.matches, {})[hold] = None
        else:
            self.for_all += 1

    def drop(self, hold: Hold) -> None:
        wanted = hold.wanted
        if wanted is not None and (codes := wanted.tag_codes) is not None:
            _drop(self.by_tags, codes, hold)
            if codes not in self.by_tags:
                for code in codes:
                    _drop(self.by_tag, code, codes)
        elif wanted is not None and wanted.matches is not None:
            _drop(self.by_filter, wanted.matches, hold)
        else:
            self.for_all -= 1

    def with_tag(self, code: int) -> dict[Hold, None]:
        """Return the pulls that want this tag."""
        found: dict[Hold, None] = {}
        for codes in self.by_tag.get(code, ()):
            found |= self.by_tags[codes]
        return found


class HoldTable:
    """Table of held pulls; testable without an actor."""

    def __init__(self, view: Callable[[int, int], memoryview] | None = None) -> None:
        """`view` returns log bytes by offset and size; if None, property filters are ignored."""
        self._view = view
        self.clear()

    def clear(self) -> None:
        self._held: dict[tuple[bytes, int], dict[Hold, None]] = {}
        self._by_peer: dict[int, dict[Hold, None]] = {}
        """Held pulls by connection, and by the tick of their deadline.

        A search of all 200,000 for each closed connection, or ten times per second, would be too
        slow.
        """
        self._by_tick: dict[int, dict[Hold, None]] = {}
        self._indexes: dict[tuple[bytes, int], _Index] = {}
        """Indexes of queues with many held pulls."""
        self._tag_sets = TagSets()
        self.count = 0

    def is_held(self, topic: str, queue_id: int, group: str) -> bool:
        """Return whether a pull of the group is held at this queue."""
        holds = self._held.get((topic.encode(), queue_id), ())
        return any(hold.header.consumer_group == group for hold in holds)

    def add(self, hold: Hold) -> None:
        held = self._held.setdefault(hold.queue, {})
        held[hold] = None
        index = self._indexes.get(hold.queue)
        if index is not None:
            index.add(hold)
        elif len(held) >= INDEXED_FROM:
            index = self._indexes[hold.queue] = _Index()
            for each in held:
                index.add(each)
        self._tag_sets.add(hold.wanted)
        self._by_peer.setdefault(hold.peer.peer_id, {})[hold] = None
        self._by_tick.setdefault(_tick_of(hold), {})[hold] = None
        self.count += 1

    def has_room(self, peer_id: int, wanted: MessageFilter | None = None) -> bool:
        of_peer = len(self._by_peer.get(peer_id, ()))
        has_place = self.count < HELD_MAX and of_peer < HELD_OF_PEER_MAX
        return has_place and self._tag_sets.has_room(wanted)

    def arrived(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        code: int,
        physical_offset: int = 0,
        size: int = 0,
    ) -> list[Hold]:
        """Remove and return the pulls that may want the record dispatched at `queue_offset`."""
        holds = self._held.get((topic, queue_id))
        if holds is None:
            return []
        low = code & 0xFFFFFFFF
        signed = low - (1 << 32) if low >> 31 else low
        index = self._indexes.get((topic, queue_id))
        if index is not None and not index.for_all:  # those would all be taken, once
            holds = index.with_tag(signed)
            for matches in self._matching(index.by_filter, physical_offset, size):
                holds |= index.by_filter[matches]
        wanting = [
            hold
            for hold in holds
            if hold.offset <= queue_offset
            and (
                (wanted := hold.wanted) is None
                or wanted.tag_codes is None
                or signed in wanted.tag_codes
            )
        ]
        filters = {
            hold.wanted.matches
            for hold in wanting
            if hold.wanted is not None and hold.wanted.matches is not None
        }
        if filters:
            found = {None, *self._matching(filters, physical_offset, size)}
            wanting = [
                hold for hold in wanting if hold.wanted is None or hold.wanted.matches in found
            ]
        return self._take(wanting)

    def _matching(
        self, filters: Collection[Matches], physical_offset: int, size: int
    ) -> Collection[Matches]:
        """Return the property filters that match a record; all if it is unreadable."""
        if self._view is None or not filters:
            return filters
        try:
            properties = parse(
                head_of(self._view(physical_offset, size), physical_offset).properties
            )
        except (OffsetError, RecordError):
            return filters
        return [matches for matches in filters if is_true(matches, properties)]

    def due(self, now_ms: float, most: int = HELD_MAX) -> list[Hold]:
        """Remove and return at most `most` pulls past their deadline, earliest ticks first."""
        ticks = sorted(tick for tick in self._by_tick if tick * TICK_MS <= now_ms)
        holds = (hold for tick in ticks for hold in self._by_tick[tick])
        return self._take([*islice((hold for hold in holds if hold.deadline_ms <= now_ms), most)])

    def behind(self, max_offset: Callable[[bytes, int], int]) -> list[Hold]:
        """Remove and return the pulls with messages beyond their offset."""
        return self._take_where(lambda hold: max_offset(*hold.queue) > hold.offset)

    def verified(self, topic: bytes, queue_id: int, queue_offset: int) -> list[Hold]:
        """Remove and return the pulls that wait for the verification of this unit."""
        holds = self._held.get((topic, queue_id), ())
        return self._take(
            [
                hold
                for hold in holds
                if hold.is_doubtful and hold.header.queue_offset == queue_offset
            ]
        )

    def of_queue(self, topic: bytes, queue_id: int) -> list[Hold]:
        """Remove and return the pulls that wait at this queue."""
        return self._take([*self._held.get((topic, queue_id), ())])

    def doubtful(self) -> list[Hold]:
        """Remove and return the pulls that wait for the verification of any unit."""
        return self._take_where(lambda hold: hold.is_doubtful)

    def of_peer(self, peer_id: int, most: int = HELD_OF_PEER_MAX) -> list[Hold]:
        """Remove and return at most `most` pulls of a closed connection."""
        return self._take([*islice(self._by_peer.get(peer_id, ()), most)])

    def all(self) -> list[Hold]:
        return self._take_where(lambda _: True)

    def _take_where(self, wanted: Callable[[Hold], bool]) -> list[Hold]:
        return self._take([hold for held in self._held.values() for hold in held if wanted(hold)])

    def _take(self, taken: list[Hold]) -> list[Hold]:
        self.count -= len(taken)
        for hold in taken:
            _drop(self._held, hold.queue, hold)
            if (index := self._indexes.get(hold.queue)) is not None:
                index.drop(hold)
                if hold.queue not in self._held:
                    del self._indexes[hold.queue]
            self._tag_sets.drop(hold.wanted)
            _drop(self._by_peer, hold.peer.peer_id, hold)
            _drop(self._by_tick, _tick_of(hold), hold)
        return taken


def _drop(table: dict[Key, dict[Part, None]], key: Key, part: Part) -> None:
    parts = table[key]
    del parts[part]
    if not parts:
        del table[key]


def _tick_of(hold: Hold) -> int:
    return int(hold.deadline_ms // TICK_MS)
