"""Conversion of rows to messages: the columns, and their fields in a message.

column       type                       field of the message
body         binary or string           the body; required, and must not be null
topic        string                     the topic, unless the option topic names it
tags         string                     TAGS
keys         string or array<string>    KEYS; a string has blanks between
properties   map<string,string>         the application's own; reserved names are omitted, so that
                                        those of a read may be given
delayLevel   int                        DELAY, if above 0
queueKey     string or binary           messages with equal keys go into one queue
flag         int                        the application's flag
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    RESERVED_NAMES,
    TAGS,
)
from protocol.sink import TROUPE_SINK, chain_behind
from storage.errors import StoreError

COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "delayLevel": ("int",),
    "queueKey": ("string", "binary"),
    "flag": ("int",),
}
"""The types that each may have, in Spark's words."""

_LEFT_OUT = RESERVED_NAMES | {TROUPE_SINK}
_SEPARATORS = (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
_MARK_BYTES_MAX = 400
"""Maximum bytes that broker and sink add to the properties."""
_DELAY_LEVEL_MAX = 1 << 15


class Outgoing(NamedTuple):
    """A message on its way; `properties` is its text, without marks."""

    topic: str
    flag: int
    body: bytes
    properties: bytes
    queue_key: bytes | None

    def chained(self, chain: bytes) -> bytes:
        """Return the checksum behind this message."""
        key = b"" if self.queue_key is None else b"\x02\x02" + self.queue_key
        return chain_behind(chain, self.flag, self.body, self.properties + key)


def check_columns(fields: Mapping[str, str], topic: str | None) -> None:
    """Check the columns of the rows. Raises StoreError for unknown and missing ones.

    `fields` has types by name, in Spark's words; `topic` is the option.
    """
    for name, type_name in fields.items():
        allowed = COLUMNS.get(name)
        if allowed is None:
            close = get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}"
            raise StoreError(f"a message has no column {name} to write: {hint}")
        if type_name not in allowed:
            raise StoreError(f"column {name} is {type_name}: it must be {' or '.join(allowed)}")
    if "body" not in fields:
        raise StoreError("column body is missing: it is what a message holds")
    if "topic" not in fields and topic is None:
        raise StoreError("a column topic or the option topic must say where messages go")


def outgoing(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[Outgoing]:
    """Yield the messages of a task, in the order of its rows.

    Raises StoreError for a wrong value.
    """
    number = 0
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        names = list(columns)
        for values in zip(*columns.values(), strict=True):
            try:
                yield _message(dict(zip(names, values, strict=True)), topic)
            except StoreError as error:
                raise StoreError(f"row {number} of this partition: {error}") from None
            number += 1


def in_fixed_order(messages: Iterable[Outgoing]) -> Sequence[Outgoing]:
    """Return the messages in an order that depends on their contents only."""
    return sorted(messages, key=lambda each: (each.topic, each.queue_key or b"", each[1:4]))


def _message(row: dict[str, Any], topic: str | None) -> Outgoing:
    body, where = row["body"], topic if topic is not None else row["topic"]
    if body is None:
        raise StoreError("body is null, and no message is")
    if not where:
        raise StoreError("topic is null or empty")
    pairs: dict[str, str] = {}
    for name, value in row.get("properties") or ():
        if name not in _LEFT_OUT and name and value:
            pairs[name] = value
    if tags := row.get("tags"):
        pairs[TAGS] = tags
    if keys := row.get("keys"):
        pairs[KEYS] = keys if isinstance(keys, str) else KEY_SEPARATOR.join(filter(None, keys))
    if (level := row.get("delayLevel") or 0) > 0:
        pairs[DELAY] = str(min(level, _DELAY_LEVEL_MAX))
    text = _text(pairs)
    key = row.get("queueKey")
    return Outgoing(
        where,
        row.get("flag") or 0,
        body.encode() if isinstance(body, str) else body,
        text,
        key.encode() if isinstance(key, str) else key,
    )


def _text(pairs: Mapping[str, str]) -> bytes:
    for name, value in pairs.items():
        if any(each in name or each in value for each in _SEPARATORS):
            raise StoreError(f"property {name!r} has a separator (0x01 or 0x02) in it")
    parts = [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in pairs.items()]
    text = PROPERTY_SEPARATOR.join(parts).encode()
    if len(text) > PROPERTIES_BYTES_MAX - _MARK_BYTES_MAX:
        most = PROPERTIES_BYTES_MAX - _MARK_BYTES_MAX
        raise StoreError(f"tags, keys and properties take {len(text)} bytes: at most {most}")
    return text
