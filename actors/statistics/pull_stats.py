"""Counts of pulls by outcome."""

from dataclasses import dataclass, field

from actors.engine.histogram import RPC_BOUNDS_MS, ClassCounts
from actors.statistics.counts import Counts, GroupCounts


@dataclass(slots=True)
class PullStats:
    """Counters since the start; PullMessage writes them, any thread may read."""

    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    held_count: int = 0
    cold_count: int = 0
    """Pulls that waited for the disk."""
    doubt_count: int = 0
    """Pulls with a first message that did not match its unit."""
    found_count: int = 0
    miss_count: int = 0
    longest_get_ms: float = 0.0
    found_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    missed_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    """Durations of reading, for pulls with and without messages."""
    by_group: dict[tuple[str, str], GroupCounts] = field(default_factory=dict)
    """Pulled messages by topic and group."""
    latencies: dict[str, Counts] = field(default_factory=dict)
    """Durations of reading in ms by `queue@topic@group`, for watched queues only."""
