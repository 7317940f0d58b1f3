"""Search for messages that are stored more than once; the duplicates job's work."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from spark.analysis import scan
from spark.analysis.scan import ScanPart
from spark.arguments import time_ms
from spark.decoding.columns import TIMESTAMP, sql_schema
from spark.decoding.store_files import Store
from spark.parts import run_parts
from spark.progress import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class WantedDuplicates(scan.WantedScan, Protocol):
    """The job's arguments that a session needs."""

    @property
    def limit(self) -> int: ...


UNIQ_KEY, KEYS = "uniqKey", "keys"
COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", UNIQ_KEY, KEYS)
_PLACE = ("storeTimestamp", "queueId", "queueOffset")
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("storeTimestamp", TIMESTAMP),
        (UNIQ_KEY, pa.string()),
        (KEYS, pa.string()),
    ]
)


def messages_of(parts: Sequence[ScanPart]) -> pa.Table:
    """Return all messages in memory, some 100 bytes each."""
    read = run_parts(None, _batches_of, parts, "reading", lambda part: part.rows)
    return pa.Table.from_batches(chain.from_iterable(read), _SCHEMA)


def _batches_of(part: ScanPart) -> list[pa.RecordBatch]:
    return [batch.select(_SCHEMA.names) for batch in part.batches()]


def found_here(messages: pa.Table, by: str) -> list[dict[str, Any]]:
    """Return the keys of several messages in a topic, with the first and the last message."""
    table = _with_key(messages, by)
    counted = table.group_by(["topic", "key"]).aggregate([("queueId", "count")])
    several = counted.filter(compute.greater(counted["queueId_count"], 1))
    if not several.num_rows:
        return []
    rows = table.join(several.select(["topic", "key"]), ["topic", "key"], join_type="left semi")
    order = [(name, "ascending") for name in ("topic", "key", *_PLACE)]
    ends = [(name, end) for end in ("first", "last") for name in _PLACE]
    grouped = rows.sort_by(order).group_by(["topic", "key"], use_threads=False)
    return [
        _row(by, each["topic"], each["key"], each["queueId_count"],
             [each[f"{name}_first"] for name in _PLACE], [each[f"{name}_last"] for name in _PLACE])
        for each in grouped.aggregate([("queueId", "count"), *ends]).to_pylist()
    ]  # fmt: skip


def _with_key(messages: pa.Table, by: str) -> pa.Table:
    """Return a row for each key of a message, without messages that have no key."""
    if by == UNIQ_KEY:
        table = messages.rename_columns([{by: "key"}.get(n, n) for n in messages.column_names])
        return table.filter(compute.is_valid(table["key"])).drop_columns([KEYS])
    lists = compute.split_pattern(messages[KEYS].combine_chunks(), " ")
    rows = compute.list_parent_indices(lists)
    table = messages.drop_columns([UNIQ_KEY, KEYS]).take(rows)
    table = table.append_column("key", compute.list_flatten(lists))
    return table.filter(compute.not_equal(table["key"], ""))


def found_by_spark(
    spark: "SparkSession", wanted: WantedDuplicates, by: str
) -> list[dict[str, Any]]:
    """Return the same as `found_here`, by a session; the shuffle takes some 50 bytes a message."""
    from pyspark.sql import functions as f

    PROGRESS.begin(f"comparing by {by}")
    messages = _data_frame(spark, wanted)
    if by == KEYS:
        messages = messages.withColumn("key", f.explode(f.split(KEYS, " ")))
    else:
        messages = messages.withColumn("key", f.col(UNIQ_KEY))
    place = f.struct(*_PLACE)
    grouped = (
        messages.where("key is not null and key <> ''")
        .groupBy("topic", "key")
        .agg(f.count("*").alias("count"), f.min(place).alias("first"), f.max(place).alias("last"))
        .where("count > 1")
        .orderBy(f.desc("count"), "topic", "key")
    )
    return [
        _row(by, row["topic"], row["key"], row["count"], row["first"], row["last"])
        for row in grouped.limit(wanted.limit).collect()
    ]


def _data_frame(spark: "SparkSession", wanted: WantedDuplicates) -> "DataFrame":
    from spark.source.data_source import TroupeMQ

    topics = scan.chosen_topics(Store(wanted.store, wanted.commit_log), wanted)
    spark.dataSource.register(TroupeMQ)
    options = {
        "commitLog": wanted.commit_log,
        "publishedOffset": wanted.published_offset,
        "topics": ",".join(topics or ()) or None,
        "failOnDataLoss": "false",
    }
    reader = spark.read.format(TroupeMQ.name()).schema(sql_schema(COLUMNS))
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, str(value))
    messages = reader.load(wanted.store)
    for name, sign in (("since", ">="), ("until", "<")):
        ms = time_ms(name, getattr(wanted, name))
        if ms is not None:
            messages = messages.where(f"storeTimestamp {sign} timestamp_millis({ms})")
    return messages


def _row(by: str, topic: str, key: str, count: int, first: Any, last: Any) -> dict[str, Any]:
    return {
        "by": by,
        "topic": topic,
        "key": key,
        "count": count,
        "first": _place(first),
        "last": _place(last),
    }


def _place(values: Any) -> dict[str, Any]:
    stored, queue_id, queue_offset = values
    # Spark's times have no zone; they are in the session's, which is UTC.
    text = stored.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return {"queue_id": queue_id, "queue_offset": queue_offset, "stored": text}
