"""Counts of pulls by outcome."""

from dataclasses import dataclass, field

from actors.engine.histogram import RPC_BOUNDS_MS, ClassCounts
from actors.statistics.counts import Counts, GroupCounts


@dataclass(slots=True)
class PullStats:
    """Counters since the start; written by PullMessage, read by whoever reports."""

    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    held_count: int = 0
    cold_count: int = 0
    """Pulls that had to wait for the disk."""
    doubt_count: int = 0
    """Pulls whose first message disagreed with its unit."""
    found_count: int = 0
    miss_count: int = 0
    longest_get_ms: float = 0.0
    found_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    missed_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    """How long the reading of a pull took, of those that found something, and of the others."""
    by_group: dict[tuple[str, str], GroupCounts] = field(default_factory=dict)
    """What was handed out, by topic and group."""
    latencies: dict[str, Counts] = field(default_factory=dict)
    """How long reading took, ms, where somebody wants to know: by `queue@topic@group`."""
