"""Places of consumers in queues that have been deleted since; their numbers may have begun again.

A consumer keeps its place in memory: it goes on pulling and committing at 100 of a queue that was
deleted, made again and numbered from 0. A mark of each queue that a group had an offset of, or
that a live group subscribes, tells such a place from one in the new queue:

    first pull at or behind the mark     moved to the first message of the new queue
    pull before the mark                 the consumer is in the new queue: the mark goes
    commit at or behind the mark         ignored, until OLD_MS or SETTLED_MS are over
    commit before the mark               stored; the mark goes
    by a member that joined later        true: it has asked for its offset since

A client that was a member at the deletion and has reconnected since has not asked. Members of a
broadcasting group have a place each, so the first pull of each of them is looked at.

4.9.7 keeps the offsets of deleted topics, and believes every place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from actors.tables.consumer_views import ConsumerView, Member

MARKS_MAX = 100_000
"""Queues of groups; past these the oldest go."""
OLD_MS = 600_000
"""Time after the deletion in which commits are compared with the mark."""
SETTLED_MS = 30_000
"""The same after the consumer was moved; a Java client goes on 10 s later, with a commit."""


@dataclass(slots=True)
class _Mark:
    offset: int
    """The group had consumed everything below it."""
    at_ms: float
    client_ids: frozenset[str] = frozenset()
    """Members of the group at the deletion."""
    moved_ms: float | None = None
    settled: set[str] = field(default_factory=set)
    """Members of a broadcasting group that have pulled since, by client id."""

    def is_later(self, member: Member | None) -> bool:
        """Return whether the member has asked for its offset since the deletion."""
        return (
            member is not None
            and member.joined_ms > self.at_ms
            and member.client_id not in self.client_ids
        )


class OldPlaces:
    """Written by ConsumerOffsets; PullMessage asks, and settles marks. Times are monotonic."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, str, int], _Mark] = {}
        """By topic, group and queue id; empty as long as no topic was deleted."""

    def note(
        self,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        now_ms: float,
        view: ConsumerView | None = None,
    ) -> None:
        """The queues of the topic are deleted; the group had these offsets, and these members."""
        members = () if view is None else view.members.values()
        client_ids = frozenset(member.client_id for member in members)
        marks = self.marks
        for queue_id, offset in offsets.items():
            marks.pop((topic, group, queue_id), None)
            marks[topic, group, queue_id] = _Mark(max(offset, 1), now_ms, client_ids)
        while len(marks) > MARKS_MAX:
            del marks[next(iter(marks))]

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """An operator has set the offset: whatever was before does not count."""
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
        """Return whether a pull is from before the deletion; it is told to go on elsewhere then.

        `member` is None for a connection that is no member's.
        """
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or mark.is_later(member):
            return False
        if broadcasts and member is not None:
            is_first = member.client_id not in mark.settled
            mark.settled.add(member.client_id)
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
        """Return whether a commit is of a message from before the deletion."""
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or mark.is_later(member):
            return False
        if offset < mark.offset:
            del self.marks[topic, group, queue_id]
            return False
        if mark.moved_ms is not None:
            return now_ms - mark.moved_ms < SETTLED_MS
        return now_ms - mark.at_ms < OLD_MS
