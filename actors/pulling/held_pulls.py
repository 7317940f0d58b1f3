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

from actors.network.messages import Request
from actors.pulling.messages import Hold, Origin
from actors.pulling.property_filters import is_true
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageHeader
from protocol.message import RecordError
from protocol.properties import parse
from storage.errors import OffsetError
from storage.log.reader import head_of
from storage.queues.message_filter import MessageFilter
from storage.reading.checked_get import EXPRESSION_WEIGHT, PROPERTIES_WEIGHT, RECORD_WEIGHT

TICK_MS = 100
HELD_MAX = 200_000
"""Maximum held pulls; beyond it, a pull is answered at once, empty, and the client retries."""

HELD_OF_PEER_MAX = 10_000
"""Maximum held pulls of one connection; a consumer has one for each of its queues."""

HELD_OF_QUEUE_MAX = 10_000
"""Maximum held pulls of one queue, which one message may wake: 10 ms, with filters 50."""

FILTER_WORK_MAX = 1 << 19
"""Work on property filters for one batch of messages, in bytes as in checked_get.py: 6 ms.

Past it, any message wakes the pulls with such filters; each is compared again when it reads.
"""
_EVALUATION_WORK = 64

INDEXED_FROM = 64
"""Held pulls of one queue from which on those for a message are found by its tag and filters."""

FEW_TAGS = 8
TAGS_MAX = 200_000
"""Tags of all filters with more than FEW_TAGS, and characters of expressions: 100 MiB.

A filter that pulls share counts once.
"""

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
def queue_key(topic: str, queue_id: int) -> tuple[bytes, int]:
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
        queue_key(header.topic, header.queue_id),
        offset,
        wanted,
        deadline_ms,
        command.opaque,
        origin_of(command),
        request.seen_as,
        request.grant,
    )


class TagSets:
    """Tags and expressions that the filters of waiting requests keep in memory. One owner."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        """Number of requests by the identity of the set or expression, which they keep."""
        self._count = 0

    def has_room(self, wanted: MessageFilter | None) -> bool:
        key, size = _kept(wanted)
        return not size or key in self._users or self._count + size <= TAGS_MAX

    def add(self, wanted: MessageFilter | None) -> None:
        key, size = _kept(wanted)
        if size:
            users = self._users.get(key, 0)
            self._users[key] = users + 1
            self._count += 0 if users else size

    def drop(self, wanted: MessageFilter | None) -> None:
        key, size = _kept(wanted)
        if size:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._count -= size


def _kept(wanted: MessageFilter | None) -> tuple[int, int]:
    """Return the identity of what a filter keeps, and its tags or characters, 0.5 KiB each."""
    if wanted is None:
        return 0, 0
    if (codes := wanted.tag_codes) is not None and len(codes) > FEW_TAGS:
        return id(codes), len(codes)
    return id(wanted.matches), wanted.chars


@dataclass(slots=True)
class _Index:
    """Held pulls of a queue with many, by what wakes them."""

    by_tag: dict[int, dict[Set[int], None]] = field(default_factory=dict)
    """Sets of tags by each of their tags."""
    by_tags: dict[Set[int], dict[Hold, None]] = field(default_factory=dict)
    by_filter: dict[Matches, dict[Hold, None]] = field(default_factory=dict)
    """Pulls with a property filter and no tags."""
    chars: dict[Matches, int] = field(default_factory=dict)
    """Characters of the expressions behind these filters."""
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
            self.chars[wanted.matches] = wanted.chars
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
            if wanted.matches not in self.by_filter:
                del self.chars[wanted.matches]
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
        self._groups: dict[tuple[bytes, int], dict[str, int]] = {}
        """Number of held pulls by queue and group."""
        self._tag_sets = TagSets()
        self._work_left = FILTER_WORK_MAX
        self.count = 0

    def is_held(self, topic: str, queue_id: int, group: str) -> bool:
        """Return whether a pull of the group is held at this queue."""
        return group in self._groups.get((topic.encode(), queue_id), ())

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
        groups, group = self._groups.setdefault(hold.queue, {}), hold.header.consumer_group
        groups[group] = groups.get(group, 0) + 1
        self._tag_sets.add(hold.wanted)
        self._by_peer.setdefault(hold.peer.peer_id, {})[hold] = None
        self._by_tick.setdefault(_tick_of(hold), {})[hold] = None
        self.count += 1

    def has_room(
        self,
        peer_id: int,
        wanted: MessageFilter | None = None,
        queue: tuple[bytes, int] = (b"", 0),
    ) -> bool:
        of_peer, of_queue = len(self._by_peer.get(peer_id, ())), len(self._held.get(queue, ()))
        has_place = self.count < HELD_MAX and of_peer < HELD_OF_PEER_MAX
        has_place &= of_queue < HELD_OF_QUEUE_MAX
        return has_place and self._tag_sets.has_room(wanted)

    def begin_batch(self) -> None:
        """Reset the work on property filters that a batch of messages allows."""
        self._work_left = FILTER_WORK_MAX

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
            for matches in self._matching(index.chars, physical_offset, size):
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
            hold.wanted.matches: hold.wanted.chars
            for hold in wanting
            if hold.wanted is not None and hold.wanted.matches is not None
        }
        if filters and self._work_left > 0:
            found = {None, *self._matching(filters, physical_offset, size)}
            wanting = [
                hold for hold in wanting if hold.wanted is None or hold.wanted.matches in found
            ]
        return self._take(wanting)

    def _matching(
        self, filters: Mapping[Matches, int], physical_offset: int, size: int
    ) -> Collection[Matches]:
        """Return the property filters that match a record; `filters` has their characters.

        Return all if it is unreadable, or if its batch has had too much work already.
        """
        if self._view is None or not filters or self._work_left <= 0:
            return filters
        try:
            text = head_of(self._view(physical_offset, size), physical_offset).properties
        except (OffsetError, RecordError):
            return filters
        self._work_left -= RECORD_WEIGHT + PROPERTIES_WEIGHT * len(text)
        properties = parse(text) if self._work_left > 0 else {}
        found = []
        for matches, chars in filters.items():
            self._work_left -= _EVALUATION_WORK + EXPRESSION_WEIGHT * chars
            if self._work_left <= 0:
                return filters
            if is_true(matches, properties):
                found.append(matches)
        return found

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

    def of_queue(self, topic: bytes, queue_id: int, most: int) -> list[Hold]:
        """Remove and return at most `most` pulls that wait at this queue."""
        return self._take([*islice(self._held.get((topic, queue_id), ()), most)])

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
            groups, group = self._groups[hold.queue], hold.header.consumer_group
            groups[group] -= 1
            if not groups[group]:
                del groups[group]
                if not groups:
                    del self._groups[hold.queue]
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
