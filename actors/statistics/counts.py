"""Counts of one topic or one group: written by one actor, read by whoever reports."""

from bisect import bisect_left
from dataclasses import dataclass, field

LARGE_BOUNDS: tuple[int, ...] = (4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper ends of the classes of records above SMALL_BYTES; the last class has none."""
SMALL_BYTES = 1 << 10


@dataclass(slots=True)
class Counts:
    """Since the start."""

    count: int = 0
    """Messages."""
    bytes: int = 0
    times: int = 0
    """Requests: a batch is one."""


@dataclass(slots=True)
class TopicCounts(Counts):
    """What came into one topic, also from the broker itself: delivered delays, commits, retries."""

    own_count: int = 0
    own_bytes: int = 0
    """Of `count` and `bytes` that which the broker stored itself."""
    delayed_count: int = 0
    delayed_bytes: int = 0
    """Sent to this topic with a delay; stored elsewhere until they are due."""
    half_count: int = 0
    half_bytes: int = 0
    """The same of transactions."""
    large: list[int] = field(default_factory=lambda: [0] * (len(LARGE_BOUNDS) + 1))
    """Requests whose bytes are more than SMALL_BYTES, by class."""

    def note_large(self, put_bytes: int) -> None:
        """One request of so many bytes."""
        self.large[bisect_left(LARGE_BOUNDS, put_bytes)] += 1

    def redirected(self, sent_bytes: int, *, is_half: bool) -> None:
        """A send for this topic goes to where half or delayed messages wait."""
        if is_half:
            self.half_count += 1
            self.half_bytes += sent_bytes
        else:
            self.delayed_count += 1
            self.delayed_bytes += sent_bytes


@dataclass(slots=True)
class GroupCounts(Counts):
    """What one group got of one topic."""

    pulled: dict[int, int] = field(default_factory=dict)
    """By queue: where the last pull that found something ended."""
