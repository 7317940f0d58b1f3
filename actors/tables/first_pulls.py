"""Detection of consumer positions beyond the end that a queue had at the start.

A broker that lost its newest messages gives their queue offsets again. That happens after a crash
under ASYNC_FLUSH, after a change of masters, and with a store from a backup. A running consumer
continues at its old position and would skip new messages up to it.

    first pull of a group's queue, beyond the end at the start     moved to the consumer offset
    commit beyond the end at the start, before any pull            ignored

A position that a consumer has queried since then is its consumer offset, which is not beyond the
end. Only live groups with a consumer offset are moved, for WATCH_MS. A pull before the group's
first heartbeat is noted as its first one. 4.9.7 accepts every position.
"""

from collections.abc import Mapping

WATCH_MS = 120_000
"""A client looks for the master every 30 s, and pulls at once then."""

SEEN_MAX = 200_000
"""Pulls that are noted, 40 MiB: a pull before its group's first heartbeat may name any group."""

QueueOfGroup = tuple[str, str, int]
"""Topic, group and queue id."""


class FirstPulls:
    """Queue ends at the start, for PullMessage and ConsumerOffsets; times are monotonic."""

    def __init__(self, ends: Mapping[tuple[str, int], int], now_ms: float) -> None:
        """Take the ends of all queues with messages, by topic and queue id."""
        self._ends = ends
        self._until_ms = now_ms + WATCH_MS
        self._seen: set[QueueOfGroup] = set()

    def is_over(self, now_ms: float) -> bool:
        """Return whether the watch is over, and free its memory then."""
        if self._ends and now_ms > self._until_ms:
            self._ends, self._seen = {}, set()
        return not self._ends

    def note(self, topic: str, group: str, queue_id: int) -> None:
        if (topic, queue_id) in self._ends and len(self._seen) < SEEN_MAX:
            self._seen.add((topic, group, queue_id))

    def end_passed(self, topic: str, group: str, queue_id: int, offset: int) -> int | None:
        """Return the queue's end at the start if this offset is beyond it and stale, else None."""
        end = self._ends.get((topic, queue_id))
        if end is None or offset <= end or (topic, group, queue_id) in self._seen:
            return None
        return end
