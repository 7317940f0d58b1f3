"""Places of consumers in queues that have been deleted since; their numbers may have begun again.

A consumer keeps its place in memory: it goes on pulling and committing at 100 of a queue that was
deleted, made again and numbered from 0. A mark of each queue that a group had an offset of tells
such a place from one in the new queue:

    first pull at or behind the mark     moved to the first message of the new queue
    pull before the mark                 the consumer is in the new queue: the mark goes
    commit at or behind the mark         ignored, until OLD_MS or SETTLED_MS are over
    commit before the mark               stored; the mark goes
    by a member that joined later        true: it has asked for its offset since

4.9.7 keeps the offsets of deleted topics, and believes every place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
    moved_ms: float | None = None


class OldPlaces:
    """Written by ConsumerOffsets; PullMessage asks, and settles marks. Times are monotonic."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, str, int], _Mark] = {}
        """By topic, group and queue id; empty as long as no topic was deleted."""

    def note(self, topic: str, group: str, offsets: Mapping[int, int], now_ms: float) -> None:
        """The queues of the topic are deleted; the group had these offsets."""
        marks = self.marks
        for queue_id, offset in offsets.items():
            marks.pop((topic, group, queue_id), None)
            marks[topic, group, queue_id] = _Mark(max(offset, 1), now_ms)
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
        joined_ms: float | None,
        now_ms: float,
    ) -> bool:
        """Return whether a pull is from before the deletion; it is told to go on elsewhere then.

        `joined_ms` is None for a connection that is no member's.
        """
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or (joined_ms is not None and joined_ms > mark.at_ms):
            return False
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
        joined_ms: float | None,
        now_ms: float,
    ) -> bool:
        """Return whether a commit is of a message from before the deletion."""
        mark = self.marks.get((topic, group, queue_id))
        if mark is None or (joined_ms is not None and joined_ms > mark.at_ms):
            return False
        if offset < mark.offset:
            del self.marks[topic, group, queue_id]
            return False
        if mark.moved_ms is not None:
            return now_ms - mark.moved_ms < SETTLED_MS
        return now_ms - mark.at_ms < OLD_MS
