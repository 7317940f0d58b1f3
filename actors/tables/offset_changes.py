"""Resets, clones and deletions of consumer offsets, in pieces if there are many.

A topic may have 65,536 queues, each with an offset of every group. To set them all at once would
keep other clients waiting for a tenth of a second. Such changes are made one after another, a
piece in each round of the loop.
"""

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice, repeat

from actors.engine.server_log import RateLimitedLog, get_logger, shown_names
from actors.tables.consumer_views import ConsumerView
from actors.tables.messages import GroupsGone, TopicsGone
from actors.tables.offset_searches import Offsets, names_of
from protocol.headers.admin import CloneGroupOffsetHeader
from storage.tables.offsets import group_of, topic_of

log = get_logger(__name__)

CHANGED_PER_ROUND = 2_000
"""Offsets that are checked or set in one round of the loop: 2 to 8 ms."""

UNPUBLISHED_MAX = 20_000
"""Changed keys of which a copy is published before the next save: 20 ms."""

_SEARCHED_PER_STEP = 50
"""Entries of the table that a search passes in the time of a step."""


@dataclass(frozen=True, slots=True)
class _LongChange:
    steps: Iterator[None]
    """One step for each offset; the end of the last one saves or answers."""
    refuse: Callable[[str], None] | None


class LongChanges:
    """Changes under way, the first of which is worked on. Used by ConsumerOffsets alone.

    All changes of a round share its allowance: hundreds of topics may be deleted at once.
    """

    def __init__(self, round_count: Callable[[], int]) -> None:
        """`round_count` returns the number of the loop's round."""
        self._waiting: deque[_LongChange] = deque()
        self._round_count = round_count
        self._round, self._left = -1, 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, steps: Iterator[None], refuse: Callable[[str], None] | None) -> bool:
        """Do the first piece, unless others wait; return whether `go_on` must be called.

        `refuse` is called with the reason if the change cannot be ended.
        """
        self._waiting.append(_LongChange(steps, refuse))
        if len(self._waiting) > 1:
            return False
        if (now := self._round_count()) != self._round:
            self._round, self._left = now, CHANGED_PER_ROUND
        return self._work()

    def go_on(self) -> bool:
        """Do the next pieces, in a next round; return whether others follow."""
        self._round, self._left = self._round_count(), CHANGED_PER_ROUND
        return self._work()

    def _work(self) -> bool:
        while self._waiting and self._left:
            most, change = self._left, self._waiting[0]
            done = sum(1 for _ in islice(change.steps, most))
            self._left -= done
            if done < most:
                self._waiting.popleft()
        return bool(self._waiting)

    def refuse(self, remark: str) -> None:
        """Refuse all changes that have not ended."""
        for each in self._waiting:
            if each.refuse is not None:
                each.refuse(remark)
        self._waiting.clear()


def search_steps(searched: Sized) -> Iterator[None]:
    """Return the steps that a search of all entries counts for, and one for itself.

    A table of 500,000 entries takes 25 ms.
    """
    return repeat(None, 1 + len(searched) // _SEARCHED_PER_STEP)


class DeletedAtMaster:
    """Groups and topics that a slave's master deleted. Used by ConsumerOffsets alone.

    They are noted until a table of the master shows whether their offsets remain.
    """

    def __init__(self) -> None:
        self._groups: frozenset[str] = frozenset()
        self._topics: frozenset[str] = frozenset()
        self._restarted: frozenset[str] = frozenset()
        """Topics with restarted queues; no table of the master need show that."""

    def note_groups(self, message: GroupsGone) -> None:
        self._groups = (self._groups | message.gone) - message.there

    def note_topics(self, message: TopicsGone) -> None:
        if message.has_restarted:
            self._restarted |= message.gone
        else:
            self._topics = (self._topics | message.gone) - message.there

    def missing_in(self, keys: Iterable[str]) -> Generator[None, None, tuple[set[str], set[str]]]:
        """Return the groups and the topics that have none of these keys, and forget them.

        There is a step for each key, and more for large sets.
        """
        groups, topics = {*self._groups}, {*self._topics, *self._restarted}
        yield from search_steps(groups)
        yield from search_steps(topics)
        for key in keys if groups or topics else ():
            groups.discard(group_of(key))
            topics.discard(topic_of(key))
            yield
        self._groups -= groups
        self._topics -= topics
        self._restarted -= topics
        yield from search_steps(groups)
        yield from search_steps(topics)
        return groups, topics


def topics_to_clone(
    header: CloneGroupOffsetHeader,
    offsets: Offsets,
    known: Container[str],
    view: ConsumerView | None,
) -> tuple[list[str], list[str]]:
    """Return the topics of a clone, and those that are left out; `view` is the source group's."""
    topics = [topic for topic, _ in names_of(offsets, header.src_group)]
    if header.topic is not None and header.topic.strip():
        topics = [header.topic]
    subscribed = {} if view is None else view.subscriptions
    cloned: list[str] = []
    left_out: list[str] = []
    for topic in topics:
        is_wanted = header.offline or not subscribed or topic in subscribed
        (cloned if topic in known and is_wanted else left_out).append(topic)
    return cloned, left_out


def tell_cloned(
    rarely: RateLimitedLog,
    header: CloneGroupOffsetHeader,
    cloned: Sequence[str],
    left_out: Sequence[str],
) -> None:
    """Log a clone, and the topics that it leaves out."""
    to, names = header.dest_group, shown_names(cloned)
    rarely.warn("offsets not cloned", names=left_out, to=to)
    if rarely.may_tell("many offsets are cloned", group=to):
        log.info("offsets cloned", group=header.src_group, to=to, topics=names, count=len(cloned))
