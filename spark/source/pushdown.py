"""Filters of Spark turned into a selection of queues, offsets, times and tags.

Spark passes comparisons of one column with literals. Those of topic, queueId and queueOffset are
applied exactly. For storeTimestamp and tags the read omits what cannot match, and Spark filters
again.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark.source.plan import QueueRange


@dataclass(frozen=True, slots=True)
class Pushed:
    """Limits of the pushed filters; None is no limit."""

    topics: Collection[str] | None = None
    queue_ids: Collection[int] | None = None
    first: int = 0
    end: int | None = None
    """Queue offsets [first, end) in every queue."""

    since_ms: int | None = None
    until_ms: int | None = None
    """Stored in [since_ms, until_ms]."""

    tags: frozenset[str] | None = None

    def wants(self, topic: str, queue_id: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.queue_ids is None or queue_id in self.queue_ids
        )

    def between(self, first: int, end: int) -> tuple[int, int]:
        """Return the rest of the queue offsets [first, end)."""
        first = max(first, self.first)
        return first, max(first, end if self.end is None else min(end, self.end))

    def chosen(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """Return the rest of ranges that were planned elsewhere."""
        left = []
        for part in ranges:
            first, end = self.between(part.first, part.end)
            if self.wants(part.topic, part.queue_id) and first < end:
                left.append(replace(part, first=first, end=end))
        return left


def narrow(pushed: Pushed, wanted: Filter) -> tuple[Pushed, bool]:
    """Return `pushed` with one more filter, and whether Spark need not apply that itself."""
    if not isinstance(
        wanted, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return pushed, False
    column, value = wanted.attribute, wanted.value
    if value is None or (isinstance(value, tuple) and None in value):
        return pushed, False  # null is not equal to anything, which is Spark's to say
    match column, wanted:
        case ("topic",), EqualTo() | In():
            return replace(pushed, topics=_both(pushed.topics, value)), True
        case ("queueId",), EqualTo() | In():
            return replace(pushed, queue_ids=_both(pushed.queue_ids, value)), True
        case ("tags",), EqualTo() | In():
            return replace(pushed, tags=frozenset(_both(pushed.tags, value))), False
        case ("queueOffset",), In():
            return _between(pushed, min(value), max(value) + 1), False
        case ("queueOffset",), _:
            return _between(pushed, *_limits(wanted, value)), True
        case ("storeTimestamp",), _ if not isinstance(wanted, In):
            first, end = _limits(wanted, _ms(value))
            return _within(pushed, first, end), False
    return pushed, False


def _both(have: Collection[Any] | None, value: object) -> set[Any]:
    values = set(value) if isinstance(value, tuple) else {value}
    return values if have is None else values & set(have)


def _limits(wanted: Filter, value: int) -> tuple[int | None, int | None]:
    """Return the range [first, end) of whole numbers that a filter allows."""
    match wanted:
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
    return value, value + 1


def _between(pushed: Pushed, first: int | None, end: int | None) -> Pushed:
    ends = [limit for limit in (pushed.end, end) if limit is not None]
    return replace(pushed, first=max(pushed.first, first or 0), end=min(ends) if ends else None)


def _within(pushed: Pushed, first: int | None, end: int | None) -> Pushed:
    """Return the limits with one ms more on either side, since a literal may have microseconds."""
    since = [limit for limit in (pushed.since_ms, first and first - 1) if limit is not None]
    until = [limit for limit in (pushed.until_ms, end) if limit is not None]
    return replace(
        pushed, since_ms=max(since) if since else None, until_ms=min(until) if until else None
    )


def _ms(value: datetime) -> int:
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(moment.timestamp() // 0.001)
