"""Counters of one topic or one group; one actor writes them, any thread may read."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TypeVar

LARGE_BOUNDS: tuple[int, ...] = (4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper bounds of the classes of records above SMALL_BYTES; the last class has none."""
SMALL_BYTES = 1 << 10
PAIRS_MAX = 50_000
"""Topics with a group that are counted: 20 MiB, and 300 MiB with the samples of a day.

Any client may name groups. Past it, Statistics makes room once an hour.
"""


@dataclass(slots=True)
class Counts:
    """Counters since the start."""

    count: int = 0
    """Number of messages."""
    bytes: int = 0
    times: int = 0
    """Number of requests; a batch is one."""


@dataclass(slots=True)
class TopicCounts(Counts):
    """Messages stored in one topic, including the broker's own: due, committed and retried ones."""

    own_count: int = 0
    own_bytes: int = 0
    """Part of `count` and `bytes` that the broker stored itself."""
    delayed_count: int = 0
    delayed_bytes: int = 0
    """Messages sent to this topic with a delay; stored elsewhere until they are due."""
    half_count: int = 0
    half_bytes: int = 0
    """Half messages of this topic; stored elsewhere until their commit."""
    large: list[int] = field(default_factory=lambda: [0] * (len(LARGE_BOUNDS) + 1))
    """Requests of more than SMALL_BYTES, by class."""

    def note_large(self, put_bytes: int) -> None:
        self.large[bisect_left(LARGE_BOUNDS, put_bytes)] += 1

    def redirected(self, sent_bytes: int, *, is_half: bool) -> None:
        """Count a delayed or half message, which is stored elsewhere at first."""
        if is_half:
            self.half_count += 1
            self.half_bytes += sent_bytes
        else:
            self.delayed_count += 1
            self.delayed_bytes += sent_bytes


@dataclass(slots=True)
class GroupCounts(Counts):
    pulled: dict[int, int] = field(default_factory=dict)
    """Queue offset after the last pulled message, by queue id."""


Counted = TypeVar("Counted", bound=Counts)
Pair = tuple[str, str]
"""Topic and group."""


def counts_of(table: dict[Pair, Counted], pair: Pair, kind: type[Counted]) -> Counted:
    """Return the counters of a pair; past PAIRS_MAX, those of a new one are kept nowhere."""
    counts = table.get(pair)
    if counts is None:
        counts = kind()
        if len(table) < PAIRS_MAX:
            table[pair] = counts
    return counts
