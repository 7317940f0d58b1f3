"""Counts per second over the last 10 s, minute and ten minutes, as 4.9.7 reports them.

Source: store/StoreStatsService.java (sampling, getPutTps and its like).
"""

from collections import deque
from collections.abc import Sequence

WINDOWS_S = (10, 60, 600)
SAMPLE_MS = 1000


class Throughput:
    """Samples of increasing counters, one per second. Owned by one actor."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Sequence[int]]] = deque(maxlen=WINDOWS_S[-1] + 1)

    def sample(self, now_ms: float, counters: Sequence[int]) -> None:
        """Add a sample; `now_ms` is monotonic."""
        self._samples.append((now_ms, tuple(counters)))

    def text(self, index: int) -> str:
        """Return counter `index` per second over 10 s, a minute and ten minutes.

        A window that is not complete counts as far as it goes.
        """
        return " ".join(str(self._per_second(index, window_s)) for window_s in WINDOWS_S)

    def _per_second(self, index: int, window_s: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        last_ms, last = self._samples[-1]
        first_ms, first = self._samples[max(0, len(self._samples) - 1 - window_s)]
        return (last[index] - first[index]) * 1000 / (last_ms - first_ms)


class DailyTotals:
    """Values of a counter at the beginning of today and yesterday. Owned by one actor."""

    def __init__(self) -> None:
        self._day = ""
        self.yesterday_morning = 0
        self.today_morning = 0

    def note(self, day: str, total: int) -> None:
        """Note the total, at short intervals; `day` is the local date."""
        if not self._day:
            self._day = day
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, total
