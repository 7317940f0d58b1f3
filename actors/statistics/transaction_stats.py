"""Counts of the ends of transactions, by topic."""

from dataclasses import dataclass, field

from actors.engine.histogram import END_BOUNDS_S, ClassCounts


@dataclass(slots=True)
class TransactionStats:
    """Since the start; written by Transactions, read by whoever reports."""

    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, ClassCounts] = field(default_factory=dict)
    """From the half message stored to its commit."""

    def ended(self, topic: str, *, is_commit: bool, after_ms: float) -> None:
        """One transaction of a topic has ended."""
        counts = self.committed if is_commit else self.rolled_back
        counts[topic] = counts.get(topic, 0) + 1
        if is_commit:
            found = self.seconds.get(topic)
            if found is None:
                found = self.seconds[topic] = ClassCounts(END_BOUNDS_S)
            found.note(max(0.0, after_ms / 1000))
