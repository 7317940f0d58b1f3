"""Messages and bytes by topic and minute, tags and producers; the traffic job's work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from spark.analysis.scan import ScanPart

COLUMNS = ("topic", "storeTimestamp", "recordBytes", "storedBody", "tags", "bornHost")
MINUTE_MS = 60_000
TOP_KEPT = 1000
"""Most frequent tags and producers of a topic that one part returns."""

_SUMS = [("messages", "sum"), ("record_bytes", "sum"), ("body_bytes", "sum"), ("largest", "max")]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tables with their grouping columns, `messages` and the bytes."""

    minutes: pa.Table
    """topic, minute (ms since 1970), messages, record_bytes, body_bytes, largest (of a body)."""

    tags: pa.Table
    """topic, tags (null for none), messages."""

    producers: pa.Table
    """topic, host (the address without its port), messages, body_bytes."""


def count_part(part: ScanPart) -> Traffic:
    return merged([_counted(batch) for batch in part.batches()])


def merged(parts: Iterable[Traffic]) -> Traffic:
    """Return the sum of all parts."""
    found = [*parts]
    return Traffic(
        _summed([each.minutes for each in found], ["topic", "minute"], _SUMS, _MINUTES),
        _summed([each.tags for each in found], ["topic", "tags"], _SUMS[:1], _TAGS),
        _summed([each.producers for each in found], ["topic", "host"], _PRODUCER_SUMS, _PRODUCERS),
    )


_PRODUCER_SUMS = [("messages", "sum"), ("body_bytes", "sum")]
_MINUTES = pa.schema(
    [
        ("topic", pa.string()),
        ("minute", pa.int64()),
        ("messages", pa.int64()),
        ("record_bytes", pa.int64()),
        ("body_bytes", pa.int64()),
        ("largest", pa.int64()),
    ]
)
_TAGS = pa.schema([("topic", pa.string()), ("tags", pa.string()), ("messages", pa.int64())])
_PRODUCERS = pa.schema(
    [
        ("topic", pa.string()),
        ("host", pa.string()),
        ("messages", pa.int64()),
        ("body_bytes", pa.int64()),
    ]
)


def _counted(batch: pa.RecordBatch) -> Traffic:
    micros = batch["storeTimestamp"].cast(pa.int64())
    minute_us = MINUTE_MS * 1000
    # Integer division truncates toward zero; no message is from before 1970.
    minutes = compute.multiply(compute.divide(micros, minute_us), MINUTE_MS)
    body_bytes = compute.binary_length(batch["storedBody"]).cast(pa.int64())
    ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    table = pa.table(
        {
            "topic": batch["topic"],
            "minute": minutes,
            "messages": ones,
            "record_bytes": batch["recordBytes"].cast(pa.int64()),
            "body_bytes": body_bytes,
            "largest": body_bytes,
            "tags": batch["tags"],
            "host": compute.replace_substring_regex(batch["bornHost"], r":\d+$", ""),
        }
    )
    return merged(
        [Traffic(table.select(_MINUTES.names), table.select(_TAGS.names),
                 table.select(_PRODUCERS.names))]
    )  # fmt: skip


def _summed(
    tables: Sequence[pa.Table], keys: list[str], sums: list[tuple[str, str]], schema: pa.Schema
) -> pa.Table:
    if not tables:
        return schema.empty_table()
    found = pa.concat_tables(tables).group_by(keys).aggregate(sums)
    found = found.rename_columns(
        [name.removesuffix("_sum").removesuffix("_max") for name in found.column_names]
    ).select(schema.names)
    if "minute" not in keys and found.num_rows > TOP_KEPT * 10:
        found = found.sort_by([("messages", "descending")]).slice(0, TOP_KEPT * 10)
    return found.cast(schema)


def topics_of(found: Traffic, top: int) -> list[dict[str, Any]]:
    """Return each topic with totals, busiest minute, tags and producers; most messages first."""
    by_topic: dict[str, dict[str, Any]] = {}
    for row in found.minutes.to_pylist():
        topic = by_topic.setdefault(row["topic"], _empty(row["topic"], row["minute"]))
        for name in ("messages", "record_bytes", "body_bytes"):
            topic[name] += row[name]
        topic["largest_body"] = max(topic["largest_body"], row["largest"])
        topic["first_minute_ms"] = min(topic["first_minute_ms"], row["minute"])
        topic["last_minute_ms"] = max(topic["last_minute_ms"], row["minute"])
        if row["messages"] > topic["peak_messages"]:
            topic["peak_messages"], topic["peak_minute_ms"] = row["messages"], row["minute"]
    _add_top(by_topic, found.tags.to_pylist(), "tags", top)
    _add_top(by_topic, found.producers.to_pylist(), "producers", top)
    return sorted(by_topic.values(), key=lambda topic: (-topic["messages"], topic["topic"]))


def _add_top(
    by_topic: Mapping[str, dict[str, Any]], rows: list[dict[str, Any]], name: str, top: int
) -> None:
    rows.sort(key=lambda row: (-row["messages"], str(row)))
    for row in rows:
        kept = by_topic[row.pop("topic")][name]
        if len(kept) < top:
            kept.append(row)


def _empty(topic: str, minute: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "messages": 0,
        "record_bytes": 0,
        "body_bytes": 0,
        "largest_body": 0,
        "peak_messages": 0,
        "peak_minute_ms": minute,
        "first_minute_ms": minute,
        "last_minute_ms": minute,
        "tags": [],
        "producers": [],
    }
