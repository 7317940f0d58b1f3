"""Histograms: the count of values per class, and their sum.

One actor writes a histogram; reporting actors read it.
"""

from bisect import bisect_left
from collections.abc import Sequence

RPC_BOUNDS_MS: tuple[float, ...] = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000, 5000)
SYNC_BOUNDS_MS: tuple[float, ...] = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
    *(100, 200, 500, 1000, 2000, 5000),
)
WAIT_BOUNDS_MS: tuple[float, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 500, 1000)
END_BOUNDS_S: tuple[float, ...] = (5, 60, 600, 3600, 43_200, 86_400)


class ClassCounts:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds of the classes, ascending; one more class has none."""
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
