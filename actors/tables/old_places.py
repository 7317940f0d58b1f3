"""Detection of consumer positions in queues that were deleted, or lost their end, since.

A consumer keeps its position in memory. It continues to pull and commit at 100 of a queue that was
deleted, created again and numbered from 0. A mark per queue and group tells such a position from
one in the new queue. Marks are set for offsets and for subscriptions of live groups.

    first pull at or beyond the mark     moved to the first message of the new queue
    pull below the mark                  the consumer is in the new queue: the mark is removed
    commit at or beyond the mark         ignored until OLD_MS or SETTLED_MS are over
    commit below the mark                stored; the mark is removed
    by a member that joined later        accepted: it has queried its offset since

A client that was a member at the deletion and reconnected has not queried it. Members of a
broadcasting group have one position each, so the first pull of each is checked.

A broker that lost its newest messages gives their queue offsets again. That happens after a crash
under ASYNC_FLUSH, after a change of masters, and with a store from a backup. A running consumer
continues at its old position and would skip new messages up to it.

    first pull of a group's queue, beyond the end at the start     moved to the consumer offset
    that of a broadcasting member, if it has asked no offset       moved to the end at the start
    commit beyond the end at the start, before any pull            ignored

A position that a consumer has queried since then is its consumer offset, which is not beyond the
end. Only live groups with a consumer offset, or that broadcast, are moved, for WATCH_MS. A pull
before the group's first heartbeat is noted as its first one.

4.9.7 keeps the offsets of deleted topics and accepts every position.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from actors.tables.consumer_views import ConsumerView, Member

MARKS_MAX = 50_000
"""Marks of all groups; beyond it the oldest are removed.

A deletion sets no more than that: 30 ms, in several rounds.
"""
OLD_MS = 600_000
"""Time after the deletion in which commits are compared with the mark."""
SETTLED_MS = 30_000
"""Such time after the consumer was moved; a Java client continues 10 s later, with a commit."""

WATCH_MS = 120_000
"""A client looks for the master every 30 s, and pulls at once then."""

SEEN_MAX = 200_000
"""Pulls that are noted, 40 MiB: a pull before its group's first heartbeat may name any group."""

QueueOfGroup = tuple[str, str, int]
"""Topic, group and queue id."""


@dataclass(slots=True)
class _Mark:
    offset: int
    """Lowest offset that the group had not consumed."""
    at_ms: float
    client_ids: frozenset[str] = frozenset()
    """Members of the group at the deletion."""
    moved_ms: float | None = None
    settled: frozenset[str] = frozenset()
    """Client ids of broadcasting members that have pulled since."""

    def is_later(self, member: Member | None) -> bool:
        """Return whether the member has queried its offset since the deletion."""
        return (
            member is not None
            and member.joined_ms > self.at_ms
            and member.client_id not in self.client_ids
        )


class OldPlaces:
    """Written by ConsumerOffsets; PullMessage reads and settles marks. Times are monotonic."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, str, int], _Mark] = {}
        """Marks by topic, group and queue id; empty until a topic is deleted."""
        self._noted_ms, self._noted = -1.0, 0
        """Time of the last deletion, and the number of its marks."""

    def noting(
        self,
        topic: str,
        group: str,
        queue_ids: Iterable[int],
        offsets: Mapping[int, int],
        now_ms: float,
        view: ConsumerView | None = None,
    ) -> Iterator[None]:
        """Mark deleted queues of a topic with the offsets and members of the group, in steps."""
        members = () if view is None else view.members.values()
        client_ids = frozenset(member.client_id for member in members)
        marks = self.marks
        if now_ms != self._noted_ms:
            self._noted_ms, self._noted = now_ms, 0
        for queue_id in queue_ids:
            if self._noted >= MARKS_MAX:
                break
            self._noted += 1
            marks.pop((topic, group, queue_id), None)
            offset = max(offsets.get(queue_id, 0), 1)
            marks[topic, group, queue_id] = _Mark(offset, now_ms, client_ids)
            yield
        for oldest in [*islice(marks, max(0, len(marks) - MARKS_MAX))]:
            del marks[oldest]

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the mark: an operator has set the offset."""
        self.marks.pop((topic, group, queue_id), None)

    def is_old_pull(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        *,
        member: Member | None,
        broadcasts: bool,
        now_ms: float,
    ) -> bool:
        """Return whether a pull is from before the deletion and must be moved.

        `member` is None for a connection without a member.
        """
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or mark.is_later(member):
            return False
        if broadcasts and member is not None:
            is_first = member.client_id not in mark.settled
            mark.settled |= {member.client_id}
            return is_first and offset >= mark.offset
        if offset < mark.offset:
            del self.marks[topic, group, queue_id]
        elif mark.moved_ms is None:
            mark.moved_ms = now_ms
            return True
        return False

    def is_old_commit(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        *,
        member: Member | None,
        now_ms: float,
    ) -> bool:
        """Return whether a commit is from before the deletion."""
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or mark.is_later(member):
            return False
        if offset < mark.offset:
            del self.marks[topic, group, queue_id]
            return False
        if mark.moved_ms is not None:
            return now_ms - mark.moved_ms < SETTLED_MS
        return now_ms - mark.at_ms < OLD_MS


class FirstPulls:
    """Queue ends at the start, for PullMessage and ConsumerOffsets; times are monotonic."""

    def __init__(self, ends: Mapping[tuple[str, int], int], now_ms: float) -> None:
        """Take the ends of all queues, by topic and queue id; others had none.

        Without any queue there is nothing to watch.
        """
        self.ends = ends or None
        """The watched ends; None once the watch is over."""
        self._until_ms = now_ms + WATCH_MS
        self._seen: set[tuple[str, str | int, int]] = set()

    def is_over(self, now_ms: float) -> bool:
        """Return whether the watch is over, and free its memory then."""
        if self.ends is not None and now_ms > self._until_ms:
            self.ends, self._seen = None, set()
        return self.ends is None

    def note(self, topic: str, reader: str | int, queue_id: int) -> None:
        """Note that a group or member has pulled, or that a connection has asked for an offset."""
        if self.ends is not None and len(self._seen) < SEEN_MAX:
            self._seen.add((topic, reader, queue_id))

    def end_passed(self, topic: str, reader: str | int, queue_id: int, offset: int) -> int | None:
        """Return the queue's end at the start if this offset is beyond it and stale, else None."""
        if self.ends is None:
            return None
        end = self.ends.get((topic, queue_id), 0)
        if offset <= end or (topic, reader, queue_id) in self._seen:
            return None
        return end
