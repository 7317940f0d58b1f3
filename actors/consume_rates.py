"""How many messages a second each group gets of each topic, over the last minute.

Counted where pulls are answered, sampled every ten seconds, published for whoever reports.  What
has not moved for a minute is forgotten.

Source: common/stats/StatsItem.java, store/stats/BrokerStatsManager.java (tpsGroupGetNums).
"""

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from storage.offsets import offset_key

SAMPLE_MS = 10_000
SAMPLES_MAX = 7

Rates: TypeAlias = Mapping[str, float]
"""Messages a second by `topic@group`; those of nobody who gets any are missing."""


class ConsumeRates:
    """Owned by one actor; times are monotonic."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES_MAX)

    def note(self, group: str, topic: str, count: int) -> None:
        """A pull has brought so many messages."""
        key = offset_key(topic, group)
        self._counts[key] = self._counts.get(key, 0) + count

    def sample(self, now_ms: float) -> Rates:
        """The rates as of now; called every SAMPLE_MS."""
        self._samples.append((now_ms, dict(self._counts)))
        first_ms, first = self._samples[0]
        if now_ms <= first_ms:
            return {}
        moved = {key: count - first.get(key, 0) for key, count in self._counts.items()}
        if len(self._samples) == SAMPLES_MAX:
            for key in [key for key, count in moved.items() if not count]:
                del self._counts[key]
                for _, counts in self._samples:
                    counts.pop(key, None)
        return {
            key: count * 1000 / (now_ms - first_ms) for key, count in moved.items() if count > 0
        }
