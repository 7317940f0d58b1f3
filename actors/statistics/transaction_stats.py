"""Counters of ended transactions, by topic."""

from dataclasses import dataclass, field

from actors.engine.histogram import END_BOUNDS_S, ClassCounts


@dataclass(slots=True)
class TransactionStats:
    """Counters since the start; Transactions writes them, any thread may read."""

    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, ClassCounts] = field(default_factory=dict)
    """Time from the storing of the half message to its commit."""

    def ended(self, topic: str, *, is_commit: bool, after_ms: float) -> None:
        counts = self.committed if is_commit else self.rolled_back
        counts[topic] = counts.get(topic, 0) + 1
        if is_commit:
            found = self.seconds.get(topic)
            if found is None:
                found = self.seconds[topic] = ClassCounts(END_BOUNDS_S)
            found.note(max(0.0, after_ms / 1000))
