"""Filters of a read: what Spark pushes down to it, and tags and properties of single messages.

A batch is filtered by the tags code of each unit, then by the message's properties. A tags code is
a hash, a due time in the delayed topic, or the address of the unit's extension. It may accept too
many messages, never too few. The message's own properties decide.

Spark passes comparisons of one column with literals. Those of topic, queueId and queueOffset are
applied exactly. For storeTimestamp and tags the read omits what cannot match, and Spark filters
again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from re import search
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from protocol.errors import RemoteError
from protocol.properties import TAGS
from protocol.tags import ALL_TAGS, TagFilter, java_hash_code
from protocol.topic_names import SCHEDULE_TOPIC
from spark.decoding.decode import stored_properties
from spark.decoding.properties import PropertyTexts
from spark.decoding.records import Records
from spark.source.plan import QueueRange
from storage.errors import StoreError
from storage.queues.message_filter import EXT_ADDRESS_MAX

TAG, SQL92 = "TAG", "SQL92"


@dataclass(frozen=True, slots=True)
class Expression:
    """A subscription's expression: tags, or SQL92 over the properties."""

    tags: frozenset[str] | None
    """None: all tags, or SQL92."""

    sql: str | None = None

    @classmethod
    def parse(cls, text: str, kind: str | None = None) -> "Expression":
        """Parse a filter. Raises StoreError.

        Without a kind, `a || b` is tags, and anything more is SQL92.
        """
        if kind not in (None, TAG, SQL92):
            raise StoreError(f"expressionType is {kind}: it must be {TAG} or {SQL92}")
        is_sql = kind == SQL92 if kind else bool(search(r"[^|\s]\s+[^|\s]|[=<>'()]", text.strip()))
        try:
            if is_sql:
                _compiled(text)
                return cls(None, text)
            wanted = TagFilter.parse(text)
        except RemoteError as error:
            raise StoreError(f"subExpression {text} cannot be read: {error}") from None
        if wanted.codes is not None and not wanted.tags:
            raise StoreError(f"subExpression is {text}: name tags, as in a || b, or {ALL_TAGS}")
        return cls(wanted.tags or None)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """All that a row must have; picklable."""

    expression: Expression | None = None
    tags: frozenset[str] | None = None
    """Tags of the filters that Spark passes."""

    def keep(self, records: Records) -> Records:
        """Return the records that match the filter."""
        sets = [self.tags, None if self.expression is None else self.expression.tags]
        for tags in sets:
            if tags is not None and len(records):
                records = _with_tags(records, tags)
        if self.expression is not None and self.expression.sql is not None and len(records):
            records = _with_properties(records, self.expression.sql)
        return records


def _with_tags(records: Records, tags: frozenset[str]) -> Records:
    codes = records.tags_codes.astype(np.int64)
    if records.topic != SCHEDULE_TOPIC and codes.any():  # a broker tells none over the network
        hashes = np.array([java_hash_code(tag) for tag in tags], np.int32)
        likely = np.isin(codes.astype(np.int32), hashes) | (codes <= EXT_ADDRESS_MAX)
        records = records.take(np.flatnonzero(likely))
    if not len(records):
        return records
    found = PropertyTexts(stored_properties(records)).column(TAGS)
    wanted = compute.is_in(found, value_set=pa.array(sorted(tags), pa.string()))
    return records.take(np.flatnonzero(wanted.to_numpy(zero_copy_only=False)))


def _with_properties(records: Records, sql: str) -> Records:
    is_match = _compiled(sql)
    found = PropertyTexts(stored_properties(records)).maps().to_pylist()
    wanted = [row for row, pairs in enumerate(found) if is_match(dict(pairs))]
    return records.take(np.array(wanted, np.int64))


def _compiled(sql: str) -> Callable[[Mapping[str, str]], bool]:
    """Return a test of properties; as in the broker, an unknown result does not match.

    Raises SqlError, a RemoteError.
    """
    # Only here: no other reader needs the parser's package.
    from protocol.sql92 import EvaluationError, compile_filter

    matches = compile_filter(sql)

    def is_match(properties: Mapping[str, str]) -> bool:
        try:
            return matches(properties) is True
        except EvaluationError:
            return False

    return is_match


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
