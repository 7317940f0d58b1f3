"""Rates of topics and groups over the last minute, published by Statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

SECOND_MS = 1000

Sample: TypeAlias = tuple[int, int, int, int]
"""Time in ms, messages, bytes and requests."""
Span: TypeAlias = tuple[Sample, Sample]
"""First and last sample of the minute."""
NO_SPAN: Span = ((0, 0, 0, 0), (0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Rates:
    """Samples by topic and by `topic@group`; rates are computed on request."""

    topics: Mapping[str, Span] = field(default_factory=dict)
    groups: Mapping[str, Span] = field(default_factory=dict)
    returned: Mapping[str, Span] = field(default_factory=dict)
    broker_puts: Span = NO_SPAN
    broker_gets: Span = NO_SPAN

    def put(self, topic: str) -> tuple[float, float]:
        """Return the messages and bytes per second stored in a topic."""
        return _per_second(self.topics.get(topic, NO_SPAN))

    def got(self, key: str) -> tuple[float, float]:
        """Return the messages and bytes per second that a `topic@group` got."""
        return _per_second(self.groups.get(key, NO_SPAN))

    def sent_back(self, key: str) -> int:
        """Return the number of messages that a `topic@group` returned."""
        first, last = self.returned.get(key, NO_SPAN)
        return last[1] - first[1]

    def of_broker(self, *, is_put: bool) -> float:
        """Return the messages per second of the whole broker."""
        return _per_second(self.broker_puts if is_put else self.broker_gets)[0]


def _per_second(span: Span) -> tuple[float, float]:
    first, last = span
    took_ms = last[0] - first[0]
    if took_ms <= 0:
        return 0.0, 0.0
    count, size = last[1] - first[1], last[2] - first[2]
    return count * SECOND_MS / took_ms, size * SECOND_MS / took_ms
