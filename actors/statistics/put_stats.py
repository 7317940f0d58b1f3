"""Counters of PutMessage and SendBack: puts, bytes, failures and durations."""

from bisect import bisect_left
from dataclasses import dataclass, field

from actors.statistics.counts import Counts, Pair, TopicCounts, counts_of

PUT_BOUNDS_MS: tuple[int, ...] = (
    *(0, 1, 2, 3, 4, 5, 10, 20, 30, 50, 100, 200, 500),
    *(1000, 2000, 3000, 4000, 5000, 10_000),
)
"""Upper bounds of the classes of durations; the last class has none."""


@dataclass(slots=True)
class PutStats:
    """Counters since the start; PutMessage writes them, any thread may read."""

    put_count: int = 0
    put_bytes: int = 0
    failed_count: int = 0
    longest_put_ms: float = 0.0
    """Time from the first message of a batch handled to the batch written."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(PUT_BOUNDS_MS) + 1))
    """Number of sends by duration of their batch."""
    total_ms: float = 0.0
    """Sum of these durations."""
    by_topic: dict[str, TopicCounts] = field(default_factory=dict)
    sent_back: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Returned messages by topic and group; written by SendBack."""
    dead_letters: dict[tuple[str, str], int] = field(default_factory=dict)
    """Messages of the dead-letter queue by topic and group; written by SendBack."""

    def took(self, duration_ms: float, sends: int) -> None:
        self.durations[bisect_left(PUT_BOUNDS_MS, duration_ms)] += sends
        self.total_ms += duration_ms * sends
        if duration_ms > self.longest_put_ms:
            self.longest_put_ms = duration_ms

    def sent_back_one(self, pair: Pair, *, is_dead: bool) -> None:
        """Count a returned message, and a dead letter."""
        counts = counts_of(self.sent_back, pair, Counts)
        counts.count += 1
        counts.times += 1
        if is_dead and pair in self.sent_back:
            self.dead_letters[pair] = self.dead_letters.get(pair, 0) + 1

    def of_topic(self, topic: str) -> TopicCounts:
        """Return the counters of a topic; always the same object."""
        counts = self.by_topic.get(topic)
        if counts is None:
            counts = self.by_topic[topic] = TopicCounts()
        return counts
