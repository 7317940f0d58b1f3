"""Writer of archive runs without Spark, with current columns or those of the first format."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, parquet

from protocol.topic_names import is_system_topic
from spark.archive.check import compare, damages_in, describe_files
from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.files import Archive, Manifest, file_checksum
from spark.decoding.columns import COLUMNS, NAMES_OF_FORMAT_1
from spark.decoding.decode import batches
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.plan import QueuePlan, Selection, plan

OLD_NAMES = {new: old for old, new in NAMES_OF_FORMAT_1.items()}
OLD_COLUMNS = [name for name in COLUMNS if name in OLD_NAMES or name in ("flag", "keys", "tags")]


def add_run(archive: Archive, root: Path, end: int | None = None, *, is_old: bool = False) -> None:
    """Archive new messages of the store at `root` up to the log offset `end`, by default all.

    `is_old`: with the column names, stored bodies and stored properties of the first format.
    """
    archive.publish(*staged_run(archive, root, end, is_old=is_old))
    archive.clear_staging()


def staged_run(
    archive: Archive, root: Path, end: int | None = None, *, is_old: bool = False
) -> tuple[Path, Manifest]:
    """Stage such a run without publishing it."""
    store, runs = Store(str(root)), archive.runs()
    ends = archive.manifest(runs[-1]).ends if runs else {}
    selection = Selection(
        topics={topic for topic, _ in store.queue_names() if not is_system_topic(topic)},
        starts={queue: last.queue_offset + 1 for queue, last in ends.items()},
    )
    plans = plan(store, selection, published_offset=end)
    staged = archive.stage(f"run{len(runs)}") / "data"
    for queue in plans:
        _write(staged, store, queue, ARCHIVE_COLUMNS, end, is_whole=is_old)
    files = describe_files(staged)
    if is_old:
        for queue in plans:
            _write(staged, store, queue, (*OLD_COLUMNS, "topic", "day"), end, is_whole=True)
        files = [
            replace(
                file,
                bytes=(staged / file.path).stat().st_size,
                crc32c=file_checksum(staged / file.path),
            )
            for file in files
        ]
    queues, damaged = compare(
        files,
        plans,
        lambda each, first, end: damages_in(Queue(store, each.topic, each.queue_id), first, end),
    )
    new_ends = {(each.topic, each.queue_id): each.last for each in plans if each.last is not None}
    manifest = Manifest(
        run=runs[-1] + 1 if runs else 1,
        run_id=f"run{len(runs)}",
        store=str(root),
        published_offset=end,
        finished_ms=5,
        files=tuple(files),
        queues=tuple(queues),
        ends={**ends, **new_ends},
        damaged=tuple(damaged),
    )
    return staged, manifest


def _write(
    staged: Path,
    store: Store,
    queue: QueuePlan,
    columns: tuple[str, ...],
    end: int | None,
    *,
    is_whole: bool,
) -> None:
    """Write one queue's rows, one file per day; `is_whole` includes damaged bodies."""
    scanned = Queue(store, queue.topic, queue.queue_id, end).scan(queue.first)
    found = [each.records for each in scanned if each.records is not None]
    decoded = [batch for records in found for batch in batches(records, columns)]
    if not decoded:
        return
    table = pa.Table.from_batches(decoded)
    if not is_whole:
        table = table.filter(table["bodyCrcOk"])
    for day in table["day"].unique().to_pylist():
        rows = table.filter(compute.equal(table["day"], day)).drop_columns(["topic", "day"])
        path = staged / f"topic={quote(queue.topic)}" / f"day={day}"
        path.mkdir(parents=True, exist_ok=True)
        rows = rows if "body" in columns else as_format_1(rows)
        parquet.write_table(rows, path / f"part-{queue.queue_id}.parquet")


def as_format_1(table: pa.Table) -> pa.Table:
    """Return the table with the names of the first format and times in ms."""
    for name in ("bornTimestamp", "storeTimestamp"):
        place = table.column_names.index(name)
        times = table[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        table = table.set_column(place, name, times)
    return table.rename_columns([OLD_NAMES.get(name, name) for name in table.column_names])
