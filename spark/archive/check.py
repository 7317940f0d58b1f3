"""Check of the written files against the plan, before a run is published.

Read from the Parquet files themselves, every planned queue offset must be there exactly once, and
no other. Only messages that are damaged in the log may be missing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive.files import (
    ArchivedFile,
    ArchivedQueue,
    DamagedMessage,
    QueueRows,
    file_checksum,
)
from spark.decoding.decode import decode
from spark.decoding.records import Queue
from spark.decoding.store_files import NumpyArray
from spark.source.plan import QueuePlan
from storage.errors import StoreError

Damages: TypeAlias = Callable[[QueuePlan, int, int], list[DamagedMessage]]


def describe_files(directory: Path) -> list[ArchivedFile]:
    """Return every Parquet file below a run's directory `topic=…/day=…`, with checksum and rows."""
    return [describe_file(directory, path) for path in sorted(directory.rglob("*.parquet"))]


def compare(
    files: Iterable[ArchivedFile], plans: Iterable[QueuePlan], damages: Damages
) -> tuple[list[ArchivedQueue], list[DamagedMessage]]:
    """Return the queues that the run holds, and the damaged messages that it lacks.

    `damages` returns the damaged messages of [first, end) of a queue. The files must lack exactly
    these. Raises StoreError if files and plan differ otherwise.
    """
    written: dict[tuple[str, int], list[QueueRows]] = defaultdict(list)
    for file in files:
        for part in file.queues:
            written[file.topic, part.queue_id].append(part)
    queues: list[ArchivedQueue] = []
    damaged: list[DamagedMessage] = []
    for plan in plans:
        parts = written.pop((plan.topic, plan.queue_id), [])
        rows = sum(part.rows for part in parts)
        holes = _holes(parts, plan.first, plan.first + plan.rows)
        if holes is None:
            raise _differ(plan, rows)
        count = 0
        for first, end in holes:
            found = damages(plan, first, end)
            if [each.queue_offset for each in found] != list(range(first, end)):
                raise _differ(plan, rows)
            count += len(found)
            damaged += found
        if plan.rows:
            last = max((part.last for part in parts), default=plan.first + plan.rows - 1)
            queues.append(
                ArchivedQueue(plan.topic, plan.queue_id, plan.first, last, rows, plan.missed, count)
            )
    if written:
        raise StoreError("the files hold a queue that was not planned: nothing was published")
    return queues, damaged


def damages_in(queue: Queue, first: int, end: int) -> list[DamagedMessage]:
    """Return the damaged messages of [first, end) with their damage, reading them once more."""
    found: list[DamagedMessage] = []
    for scanned in queue.scan(first, end):
        why = dict.fromkeys(
            range(scanned.first, scanned.first + scanned.count), "the record is not its own"
        )
        records = scanned.records
        if records is not None:
            intact = decode(records, ["bodyCrcOk"]).column(0).to_pylist()
            for queue_offset, is_intact in zip(
                records.heads["queue_offset"].tolist(), intact, strict=True
            ):
                if is_intact:
                    del why[queue_offset]
                else:
                    why[queue_offset] = "the body does not have its CRC"
        starts = _unit_starts(queue, scanned.first, scanned.count) if why else []
        found += [
            DamagedMessage(queue.topic, queue.queue_id, at, starts[at - scanned.first], why[at])
            for at in sorted(why)
        ]
    return found


def _unit_starts(queue: Queue, first: int, count: int) -> list[int]:
    files = queue.store.queue(queue.topic, queue.queue_id)
    return [
        start
        for _, units in files.chunks(first, first + count)
        for start in units["physical_offset"].tolist()
    ]


def _differ(plan: QueuePlan, rows: int) -> StoreError:
    return StoreError(
        f"the files hold {rows} messages of queue {plan.queue_id} of {plan.topic}, not the "
        f"{plan.rows} that were planned: nothing was published, run the job again"
    )


def _holes(parts: Sequence[QueueRows], first: int, end: int) -> list[tuple[int, int]] | None:
    """Return the missing ranges of [first, end); None for duplicates or offsets outside of it."""
    holes = []
    for part in sorted(parts, key=lambda part: part.first):
        if part.first < first:
            return None
        if part.first > first:
            holes.append((first, part.first))
        first = part.last + 1
    if first > end:
        return None
    return [*holes, (first, end)] if first < end else holes


def describe_file(directory: Path, path: Path) -> ArchivedFile:
    """Return one Parquet file that has the current columns."""
    names = dict(part.split("=", 1) for part in path.relative_to(directory).parent.parts)
    with parquet.ParquetFile(path) as file:
        table = file.read(columns=["queueId", "queueOffset"])
    return ArchivedFile(
        path=str(path.relative_to(directory)),
        topic=unquote(names["topic"]),  # Hive escapes partition values
        day=names["day"],
        bytes=path.stat().st_size,
        crc32c=file_checksum(path),
        rows=table.num_rows,
        queues=tuple(
            _runs(table["queueId"].to_numpy(), table["queueOffset"].to_numpy()),
        ),
    )


def _runs(queue_ids: NumpyArray, queue_offsets: NumpyArray) -> list[QueueRows]:
    """Return rows as runs of consecutive queue offsets; a duplicate offset starts a new run."""
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
