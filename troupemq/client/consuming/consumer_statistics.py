"""Statistics of a consumer's pulls and listener calls by topic, for administrators.

Source: client/stat/ConsumerStatsManager.java, common/stats/StatsItem.java.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

from troupemq.client.connection.client import now_ms

if TYPE_CHECKING:
    from protocol.bodies_client import ConsumeStatus

SAMPLE_INTERVAL_MS = 10_000
SAMPLES_OF_A_MINUTE = 7
HOUR_SAMPLE_INTERVAL_MS = 600_000
SAMPLES_OF_AN_HOUR = 7


@dataclass(slots=True, eq=False)
class _Counts:
    """Sums since the start."""

    at_ms: int
    pulls: int = 0
    pull_ms: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_ms: float = 0.0
    consumed: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Topic:
    counts: _Counts
    minute: deque[_Counts] = field(default_factory=lambda: deque(maxlen=SAMPLES_OF_A_MINUTE))
    hour: deque[_Counts] = field(default_factory=lambda: deque(maxlen=SAMPLES_OF_AN_HOUR))


class ConsumerStatistics:
    """Counters by topic; the pulling and consuming threads count, the housekeeping samples."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._topics: dict[str, _Topic] = {}
        self._hour_due_ms = 0

    def _counts(self, topic: str) -> _Counts:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Topic(_Counts(self._clock_ms()))
            found.minute.append(replace(found.counts))
            found.hour.append(replace(found.counts))
        return found.counts

    def pulled(self, topic: str, count: int, took_ms: float) -> None:
        with self._lock:
            counts = self._counts(topic)
            counts.pulls += 1
            counts.pull_ms += took_ms
            counts.pulled += count

    def consumed(self, topic: str, count: int, failed: int, took_ms: float) -> None:
        """Count a listener call that consumed `count` messages and failed for `failed`."""
        with self._lock:
            counts = self._counts(topic)
            counts.calls += 1
            counts.call_ms += took_ms
            counts.consumed += count
            counts.failed += failed

    def sample(self) -> None:
        """Record the sums; called every SAMPLE_INTERVAL_MS."""
        with self._lock:
            now = self._clock_ms()
            hour_too = now >= self._hour_due_ms
            if hour_too:
                self._hour_due_ms = now + HOUR_SAMPLE_INTERVAL_MS
            for topic in self._topics.values():
                topic.counts.at_ms = now
                topic.minute.append(replace(topic.counts))
                if hour_too:
                    topic.hour.append(replace(topic.counts))

    def status(self, topic: str) -> "ConsumeStatus":
        """Return the rates of the last minute, and the failures of the last hour."""
        from protocol.bodies_client import ConsumeStatus

        with self._lock:
            found = self._topics.get(topic)
            if found is None:
                return ConsumeStatus()
            first, last = found.minute[0], found.minute[-1]
            seconds = (last.at_ms - first.at_ms) / 1000 or 1.0
            calls_from = first if last.calls > first.calls else found.hour[0]
            return ConsumeStatus(
                pull_rt=(last.pull_ms - first.pull_ms) / max(1, last.pulls - first.pulls),
                pull_tps=(last.pulled - first.pulled) / seconds,
                consume_rt=(last.call_ms - calls_from.call_ms)
                / max(1, last.calls - calls_from.calls),
                consume_ok_tps=(last.consumed - first.consumed) / seconds,
                consume_failed_tps=(last.failed - first.failed) / seconds,
                consume_failed_msgs=found.counts.failed - found.hour[0].failed,
            )
