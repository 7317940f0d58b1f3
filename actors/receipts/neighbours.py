"""Groups in which some members pull and others receive: who has which queue.

Members that pull share the queues among all members, those that receive included, and do not tell
the broker how. What they pull shows it: a queue with a held pull of the group, or with messages
pulled lately, is theirs. Receives get all other queues. A queue that is no longer pulled is
received from after PULLED_MS.

When a queue changes hands, both sides may process what was in flight. Nothing is skipped: the
consumer offset is below all of it, and the next owner begins there.

A group has no such members while all its clients have received lately. It costs nothing then.
"""

from collections.abc import Mapping

from actors.engine.interfaces import SnapshotRef
from actors.pulling.held_pulls import HoldTable
from actors.statistics.counts import PullStats
from actors.tables.consumer_views import ConsumerView

RECEIVED_MS = 60_000.0
"""Time for which a client that has received is not expected to pull. Receives wait up to 30 s."""
PULLED_MAX = 200_000
"""Queues whose pulls are watched, 50 MiB; receives of others share the queues with pulls."""
PULLED_MS = 20_000.0
"""Time for which a queue belongs to its last pull; a pull is held for 15 s."""


class Neighbours:
    """Pulls beside receives. Used by Receipts alone; times are monotonic."""

    def __init__(
        self,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        held: HoldTable,
        stats: PullStats,
    ) -> None:
        """Read the table of held pulls and the counts of PullMessage, which run on the loop."""
        self._consumers, self._held, self._stats = consumers, held, stats
        self._received: dict[str, dict[int, float]] = {}
        """Time of the last receive, by group and connection."""
        self._pulled: dict[tuple[str, str, int], tuple[int, float]] = {}
        """Last offset after a pull, and the time when it was first seen."""
        self._others: dict[str, tuple[ConsumerView, int | None]] = {}
        """Members by group, and one of them that has not received lately, or None."""
        self._now_ms = 0.0

    def note_receive(self, group: str, peer_id: int, now_ms: float) -> None:
        """Note that a client receives."""
        self._now_ms = now_ms
        self._received.setdefault(group, {})[peer_id] = now_ms

    def note_handed_out(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Note that a receive has moved the offset after the last pull; it is no pull."""
        key = group, topic, queue_id
        known = self._pulled.get(key)
        if known is not None:
            self._pulled[key] = offset, known[1]

    def forget(self, now_ms: float) -> None:
        """Forget clients that have not received lately; call it every few seconds."""
        self._others.clear()
        for group in [*self._received]:
            seen = self._received[group]
            kept = {peer: at_ms for peer, at_ms in seen.items() if now_ms - at_ms < RECEIVED_MS}
            if kept:
                self._received[group] = kept
            else:
                del self._received[group]
        self._pulled = {
            key: found for key, found in self._pulled.items() if key[0] in self._received
        }

    def has_pullers(self, group: str) -> bool:
        """Return whether a member of the group has not received lately."""
        view = self._consumers.value.get(group)
        if view is None:
            return False
        seen = self._received.get(group, {})
        known = self._others.get(group)
        if known is None or known[0] is not view or known[1] in seen:
            other = next((each for each in view.members if each not in seen), None)
            known = self._others[group] = view, other
        return known[1] is not None

    def is_pulled(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether members that pull have this queue."""
        if not self.has_pullers(group):
            return False
        if self._held.is_held(topic, queue_id, group):
            return True
        counts = self._stats.by_group.get((topic, group))
        offset = -1 if counts is None else counts.pulled.get(queue_id, -1)
        key = group, topic, queue_id
        known = self._pulled.get(key)
        if known is None:  # an offset from before says nothing
            if len(self._pulled) < PULLED_MAX:
                self._pulled[key] = offset, self._now_ms - PULLED_MS
            return False
        if known[0] != offset:
            known = self._pulled[key] = offset, self._now_ms
        return self._now_ms - known[1] < PULLED_MS
