"""What Spark wrote, compared with what was planned, before anybody may see it.

Read back from the Parquet files themselves: every queue offset that was planned is there exactly
once, and nothing else is.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive_files import ArchivedFile, ArchivedQueue, QueueRows, file_checksum
from spark.plan import QueuePlan
from spark.store_files import NumpyArray
from storage.errors import StoreError


def describe_files(directory: Path) -> list[ArchivedFile]:
    """Every Parquet file below a run's directory `topic=…/day=…`, with its checksum and rows."""
    return [_describe(directory, path) for path in sorted(directory.rglob("*.parquet"))]


def compare(files: Iterable[ArchivedFile], plans: Iterable[QueuePlan]) -> list[ArchivedQueue]:
    """What the run holds of each queue. Raises StoreError where files and plan differ."""
    written: dict[tuple[str, int], list[QueueRows]] = defaultdict(list)
    for file in files:
        for part in file.queues:
            written[file.topic, part.queue_id].append(part)
    queues = []
    for plan in plans:
        parts = written.pop((plan.topic, plan.queue_id), [])
        end = _end_of(parts, plan.first)
        if end is None or end - plan.first != plan.rows:
            raise StoreError(
                f"the files hold {sum(part.rows for part in parts)} messages of queue "
                f"{plan.queue_id} of {plan.topic}, not the {plan.rows} that were planned: "
                "nothing was published, run the job again"
            )
        if plan.rows:
            queues.append(
                ArchivedQueue(
                    plan.topic, plan.queue_id, plan.first, end - 1, plan.rows, plan.missed
                )
            )
    if written:
        raise StoreError("the files hold a queue that was not planned: nothing was published")
    return queues


def _end_of(parts: Sequence[QueueRows], first: int) -> int | None:
    """End of the run of offsets that starts at `first`; None if it has a hole or an overlap."""
    for part in sorted(parts, key=lambda part: part.first):
        if part.first != first:
            return None
        first = part.last + 1
    return first


def _describe(directory: Path, path: Path) -> ArchivedFile:
    names = dict(part.split("=", 1) for part in path.relative_to(directory).parent.parts)
    with parquet.ParquetFile(path) as file:
        table = file.read(columns=["queueId", "queueOffset"])
    return ArchivedFile(
        path=str(path.relative_to(directory)),
        topic=unquote(names["topic"]),  # Hive's escaping of partition values
        day=names["day"],
        bytes=path.stat().st_size,
        crc32c=file_checksum(path),
        rows=table.num_rows,
        queues=tuple(
            _runs(table["queueId"].to_numpy(), table["queueOffset"].to_numpy()),
        ),
    )


def _runs(queue_ids: NumpyArray, queue_offsets: NumpyArray) -> list[QueueRows]:
    """Rows as runs of consecutive queue offsets; an offset that is there twice starts a new one."""
    if not len(queue_ids):
        return []
    order = np.lexsort((queue_offsets, queue_ids))
    ids, offsets = queue_ids[order], queue_offsets[order]
    breaks = np.flatnonzero((np.diff(ids) != 0) | (np.diff(offsets) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(ids)]))
    return [
        QueueRows(int(ids[start]), int(offsets[start]), int(offsets[end - 1]), int(end - start))
        for start, end in zip(starts, ends, strict=True)
    ]
