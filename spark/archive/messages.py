"""Messages of an archive, one after another, in any format of its runs; needs no Spark."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from spark.archive.files import Archive, ArchivedFile, QueueRows, fault_of
from spark.archive.read import ROWS_AT_ONCE, read_file, rows_of_queue
from spark.archive.table import check_is_parquet
from storage.errors import StoreError

_COLUMNS = ("queueId", "queueOffset", "msgId", "body", "bodyCrcOk", "flag", "properties",
            "storeTimestamp")  # fmt: skip
_LAST_MS = 253_402_300_799_999
"""Last millisecond that has a date."""


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """A range of one topic; None means no limit."""

    topic: str
    queue_id: int | None = None
    first: int = 0
    """First queue offset."""

    end: int | None = None
    """End of the queue offsets, exclusive."""

    from_ms: int | None = None
    """First store time, ms since 1970."""

    until_ms: int | None = None
    """End of the store times, exclusive, ms since 1970."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """The parts of a message that can be sent again."""

    queue_id: int
    queue_offset: int
    msg_id: str
    """Message id that the broker gave when it stored the message."""

    body: bytes | None
    is_intact: bool
    """Whether the stored body matches its CRC."""

    flag: int
    properties: dict[str, str]


def queue_ids(output: str, wanted: WantedMessages) -> list[int]:
    """Return the queue ids of the topic. Raises StoreError if the archive or topic is missing."""
    archive = Archive(output)
    runs = archive.runs()
    if not runs:
        raise StoreError(f"there is no archive at {output}: name where the archive job writes")
    check_is_parquet(
        output, "restore", "read the table with Spark, and write its messages to the topic"
    )
    queues = {
        (queue.topic, queue.queue_id)
        for run in runs
        for queue in archive.manifest(run).queues
        if queue.rows
    }
    found = sorted(queue_id for topic, queue_id in queues if topic == wanted.topic)
    if not found:
        some = ", ".join(sorted({topic for topic, _ in queues})[:20]) or "none"
        raise StoreError(f"topic {wanted.topic} not found in {output}: it has {some}")
    if wanted.queue_id is not None and wanted.queue_id not in found:
        there = ", ".join(map(str, found))
        raise StoreError(
            f"queue {wanted.queue_id} of {wanted.topic} not found in {output}: it has {there}"
        )
    return found if wanted.queue_id is None else [wanted.queue_id]


def messages(
    output: str, wanted: WantedMessages, queue_id: int, first: int = 0
) -> Iterator[ArchivedMessage]:
    """Yield the messages of one queue from `first` on, in order.

    Holds one file of the archive at a time. Raises StoreError for a file that differs from its
    manifest.
    """
    first = max(first, wanted.first)
    checked: set[Path] = set()
    for path, file, rows in _parts(Archive(output), wanted.topic, queue_id):
        if rows.last < first or (wanted.end is not None and rows.first >= wanted.end):
            continue
        if not _may_have(file.day, wanted):
            continue
        fault = None if path in checked else fault_of(path, file)
        if fault is not None:
            raise StoreError(fault)
        checked.add(path)
        table = rows_of_queue(read_file(path, _COLUMNS), rows)
        for batch in table.to_batches(ROWS_AT_ONCE):
            yield from _rows(_within(batch, wanted, first))


def _parts(
    archive: Archive, topic: str, queue_id: int
) -> list[tuple[Path, ArchivedFile, QueueRows]]:
    parts = [
        (archive.file_path(run, file), file, rows)
        for run in archive.runs()
        for file in archive.manifest(run).files
        for rows in file.queues
        if file.topic == topic and rows.queue_id == queue_id
    ]
    return sorted(parts, key=lambda part: part[2].first)


def _within(batch: pa.RecordBatch, wanted: WantedMessages, first: int) -> pa.RecordBatch:
    offsets = batch["queueOffset"]
    is_wanted = compute.greater_equal(offsets, first)
    stored_us = batch["storeTimestamp"].cast(pa.int64())
    for values, limit in (
        (offsets, wanted.end),
        (stored_us, None if wanted.until_ms is None else wanted.until_ms * 1000),
    ):
        if limit is not None:
            is_wanted = compute.and_(is_wanted, compute.less(values, limit))
    if wanted.from_ms is not None:
        is_wanted = compute.and_(is_wanted, compute.greater_equal(stored_us, wanted.from_ms * 1000))
    return batch.filter(is_wanted)


def _rows(batch: pa.RecordBatch) -> Iterator[ArchivedMessage]:
    for row in batch.to_pylist():
        yield ArchivedMessage(
            queue_id=row["queueId"],
            queue_offset=row["queueOffset"],
            msg_id=row["msgId"],
            body=row["body"],
            is_intact=row["bodyCrcOk"],
            flag=row["flag"],
            properties=dict(row["properties"]),
        )


def _may_have(day: str, wanted: WantedMessages) -> bool:
    """Return whether messages of a UTC day can be in the time range."""
    return (wanted.from_ms is None or _day(wanted.from_ms) <= day) and (
        wanted.until_ms is None or day <= _day(wanted.until_ms)
    )


def _day(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, _LAST_MS) / 1000, UTC).date().isoformat()
