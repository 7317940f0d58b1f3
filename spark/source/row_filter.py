"""Filters of a batch's messages: by the tags code of their unit, then by their properties.

A tags code is a hash, a due time in the delayed topic, or the address of the unit's extension. It
may accept too many messages, never too few. The message's own properties decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from re import search

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from protocol.errors import RemoteError
from protocol.properties import TAGS
from protocol.tags import ALL_TAGS, TagFilter, java_hash_code
from protocol.topic_names import SCHEDULE_TOPIC
from spark.decoding.decode import stored_properties
from spark.decoding.properties import PropertyTexts
from spark.decoding.records import Records
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
