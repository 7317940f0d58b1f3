"""Places of consumers from before the broker's start, behind what its queues had then.

A broker that lost its newest messages gives their numbers again: after a crash under ASYNC_FLUSH,
as a slave that became the master, with a store from a backup. A consumer that still runs goes on
where it was, and skips the new messages up to there as soon as the queue has grown so far.

    first pull of a group's queue since the start, behind the end then    to the consumer offset
    commit behind the end then, before any pull                           ignored

A place that a consumer has asked for since lies at its consumer offset, which is not behind the
end. Only live groups with a consumer offset count, for WATCH_MS.

4.9.7 believes every place.
"""

from collections.abc import Mapping

WATCH_MS = 120_000
"""A client looks for the master every 30 s, and pulls again at once then."""

QueueOfGroup = tuple[str, str, int]
"""Topic, group and queue id."""


class FirstPulls:
    """Told of pulls by PullMessage; ConsumerOffsets asks, too. Times are monotonic."""

    def __init__(self, ends: Mapping[tuple[str, int], int], now_ms: float) -> None:
        """`ends` are those of all queues with messages, by topic and queue id."""
        self._ends = ends
        self._until_ms = now_ms + WATCH_MS
        self._seen: set[QueueOfGroup] = set()

    def is_over(self, now_ms: float) -> bool:
        """Return whether places are no longer compared; forget everything then."""
        if self._ends and now_ms > self._until_ms:
            self._ends, self._seen = {}, set()
        return not self._ends

    def note(self, topic: str, group: str, queue_id: int) -> None:
        """The group pulls this queue at a place of this broker's."""
        self._seen.add((topic, group, queue_id))

    def end_passed(self, topic: str, group: str, queue_id: int, offset: int) -> int | None:
        """Return the end of the queue at the start if this offset is from before; else None."""
        end = self._ends.get((topic, queue_id))
        if end is None or offset <= end or (topic, group, queue_id) in self._seen:
            return None
        return end
