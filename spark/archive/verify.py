"""Comparison of an archive with its log, row by row; needs no Spark.

Rows that have expired in the log cannot be compared; only the checksums of their files are checked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from spark.archive.files import Archive, ArchivedFile, Manifest, QueueRows, fault_of
from spark.archive.read import read_file, rows_of_queue
from spark.parts import run_parts
from spark.report import Report
from spark.source.plan import QueueRange
from spark.source.reading import RangeReader
from spark.source.row_filter import RowFilter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.archive.run import Arguments

COLUMNS = (
    "queueOffset",
    "commitLogOffset",
    "bodyCrc",
    "body",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "uniqKey",
    "keys",
    "tags",
)
NAMED_MAX = 1000
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class VerifyPart:
    """One Parquet file to compare."""

    path: str
    file: ArchivedFile
    reader: RangeReader


def verify(spark: "SparkSession | None", wanted: "Arguments") -> Report:
    """Compare every file with its manifest, and its rows with the log. Raises StoreError."""
    begun_s = monotonic()
    archive = Archive(wanted.output)
    runs = archive.runs()
    reader = RangeReader(
        store=wanted.store,
        commit_log=wanted.commit_log,
        published_offset=wanted.published_offset,
        broker_name=None,
        columns=COLUMNS,
        wanted=RowFilter(),
        fail_on_data_loss=False,
    )
    manifests = [archive.manifest(run) for run in runs]
    parts = [
        VerifyPart(str(archive.file_path(manifest.run, file)), file, reader)
        for manifest in manifests
        for file in manifest.files
    ]
    compared = run_parts(spark, verify_part, parts, "comparing", lambda part: part.file.rows)
    found = _sum([_counts(manifests), *compared])
    damaged = sum(queue.damaged for manifest in manifests for queue in manifest.queues)
    report: Report = {
        "output": str(archive.output),
        "runs": len(runs),
        "files": len(parts),
        "bytes": sum(part.file.bytes for part in parts),
        "damaged": damaged,
        "seconds": round(monotonic() - begun_s, 2),
        "clean": not found["different"],
        **found,
    }
    lines = [
        f"{report['runs']} runs, {report['files']} files, {report['rows']:,} messages: "
        f"{report['compared']:,} compared with the log, {report['expired']:,} not in it any more, "
        f"{damaged:,} left out as damaged; {report['seconds']:.1f} s",
        *found["differences"][:SHOWN_MAX],
        "Nothing differs." if report["clean"] else f"{report['different']:,} differences.",
    ]
    report["text"] = "\n".join(lines)
    print(report["text"], flush=True)
    return report


def _counts(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Check that each run has all messages between its first and last, except the damaged ones."""
    return _found(
        0,
        0,
        [
            f"run {manifest.run} has {queue.rows} messages from {queue.first} to {queue.last} in "
            f"queue {queue.queue_id} of {queue.topic}, and {queue.damaged} damaged ones: "
            "some are missing"
            for manifest in manifests
            for queue in manifest.queues
            if queue.rows and queue.rows + queue.damaged < queue.last - queue.first + 1
        ],
    )


def verify_part(part: VerifyPart) -> dict[str, Any]:
    """Compare one file with its manifest and the log, in a task."""
    path = Path(part.path)
    fault = fault_of(path, part.file)
    if fault is not None:
        return _found(0, 0, [fault])
    archived = read_file(path, ("queueId", *COLUMNS))
    parts = [_compare(part, archived, rows) for rows in part.file.queues]
    return _sum(parts)


def _compare(part: VerifyPart, archived: pa.Table, rows: QueueRows) -> dict[str, Any]:
    """Compare one queue's rows of a file with the log."""
    topic = part.file.topic
    mine = rows_of_queue(archived, rows)
    wanted = QueueRange(topic, rows.queue_id, rows.first, rows.last + 1)
    batches = list(part.reader.read([wanted]))
    log = pa.Table.from_batches(batches) if batches else mine.slice(0, 0)
    there = compute.is_in(mine["queueOffset"], log["queueOffset"].combine_chunks())
    left = mine.filter(there)
    expired = mine.num_rows - left.num_rows
    differences = []
    for name in COLUMNS:
        if name in left.column_names and not _same(left[name], log[name]):
            pairs = zip(
                left["queueOffset"].to_pylist(),
                left[name].to_pylist(),
                log[name].to_pylist(),
                strict=True,
            )
            differences += [
                f"message {offset} in queue {rows.queue_id} of {topic}: {name} differs"
                for offset, here, stored in pairs
                if here != stored
            ]
    return _found(mine.num_rows, expired, differences)


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    return len(left) == len(right) and left.cast(right.type).equals(right)


def _found(rows: int, expired: int, differences: Sequence[str]) -> dict[str, Any]:
    return {
        "rows": rows,
        "compared": rows - expired,
        "expired": expired,
        "different": len(differences),
        "differences": list(differences[:NAMED_MAX]),
    }


def _sum(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total = _found(0, 0, [])
    for part in parts:
        for name in ("rows", "compared", "expired", "different"):
            total[name] += part[name]
        total["differences"] = (total["differences"] + part["differences"])[:NAMED_MAX]
    return total
