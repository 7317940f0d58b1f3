"""One run of the archive job (spark/jobs/archive.py): plan, write, compare, publish."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from protocol.topic_names import is_system_topic
from spark.archive.check import compare, damages_in, describe_files
from spark.archive.files import (
    DAMAGED_MAX,
    Archive,
    ArchivedFile,
    ArchivedQueue,
    DamagedMessage,
    Manifest,
)
from spark.archive.table import PARQUET, append_and_publish, finish, table_of
from spark.archive.write import FILE_COLUMNS, data_directory, write_part, write_parts
from spark.arguments import read_arguments
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.parts import run_parts
from spark.progress import PROGRESS
from spark.report import Report
from spark.source.plan import (
    RANGE_BYTES,
    QueuePlan,
    Selection,
    last_message_at,
    pack,
    plan,
)
from spark.source.reading import RangeReader
from spark.source.row_filter import RowFilter
from storage.errors import StoreError
from storage.retention.archive_manifest import Ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of the job; spark/jobs/archive.py has the table."""

    store: str
    output: str
    commit_log: str | None = None
    published_offset: int | None = None
    topics: Collection[str] | None = None
    system_topics: bool = False
    range_bytes: int = RANGE_BYTES
    format: str = PARQUET
    verify: bool = False
    compact: bool = False
    grace_hours: float = 1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Arguments":
        """Return the arguments.

        Raises StoreError for a name that is missing or unknown, or an invalid value.
        """
        return read_arguments(cls, "archive", given)

    @property
    def grace_ms(self) -> float:
        """Return the retention of replaced runs for readers, in ms."""
        return self.grace_hours * 3_600_000


def archive(spark: "SparkSession", wanted: Arguments) -> Report:
    """Archive new messages. Raises StoreError, and then nothing is published."""
    started = monotonic()
    target = Archive(wanted.output)
    store = Store(wanted.store, wanted.commit_log)
    PROGRESS.begin("planning")
    run_id = uuid4().hex
    with target.writing(wanted.grace_ms):
        finished = finish(spark, target)
        table = table_of(spark, target, wanted.format, run_id)
        newest = target.newest()
        ends: Ends = newest.ends if newest is not None else {}
        check_same_store(store, ends)
        plans = plan(
            store,
            _selection(store, wanted, ends),
            published_offset=wanted.published_offset,
            range_bytes=wanted.range_bytes,
        )
        output: Path | None = None
        files: list[ArchivedFile] = []
        queues: list[ArchivedQueue] = []
        damaged: list[DamagedMessage] = []
        if any(queue.rows for queue in plans):
            staging = target.stage(run_id)
            _write(spark, wanted, plans, staging)
            staged = data_directory(staging)
            PROGRESS.begin("comparing what was written")
            files = describe_files(staged)
            queues, damaged = compare(files, plans, partial(_damages, store, wanted))
            manifest = Manifest(
                run=newest.run + 1 if newest is not None else 1,
                run_id=run_id,
                store=str(Path(wanted.store).absolute()),
                published_offset=wanted.published_offset,
                finished_ms=time_ns() // 1_000_000,
                files=tuple(files),
                queues=tuple(queues),
                ends={**ends, **_ends(plans)},
                damaged=tuple(damaged[:DAMAGED_MAX]),
                table=table,
            )
            if table is None:
                output = target.publish(staged, manifest)
            else:
                PROGRESS.begin(f"appending to the {table.format} table")
                output = append_and_publish(spark, target, staged, manifest)
        target.clear_staging()
    report = report_of(plans, files, queues, damaged, output, monotonic() - started)
    report["finished"] = finished
    if finished is not None:
        report["text"] += f"\nRun {finished}, which was interrupted, is in the table now."
    return report


def check_same_store(store: Store, ends: Ends) -> None:
    """Raise StoreError if the archive continues from messages that this store never had.

    A store that lost its last messages in a power failure reuses their offsets. The new messages
    must not count as archived.
    """
    for (topic, queue_id), last in ends.items():
        queue = Queue(store, topic, queue_id)
        first = queue.first_message()
        if first is None or first > last.queue_offset:
            continue  # the message expired, or its topic was deleted
        if last_message_at(queue, last.queue_offset) != last:
            raise StoreError(
                f"message {last.queue_offset} in queue {queue_id} of {topic} is not the one that "
                "was archived: this is another store, or it lost messages; archive elsewhere"
            )


def _selection(store: Store, wanted: Arguments, ends: Ends) -> Selection:
    topics = wanted.topics
    if topics is None and not wanted.system_topics:
        topics = {topic for topic, _ in store.queue_names() if not is_system_topic(topic)}
    starts = {queue: last.queue_offset + 1 for queue, last in ends.items()}
    return Selection(topics=topics, starts=starts)


def _ends(plans: Sequence[QueuePlan]) -> Ends:
    return {(plan.topic, plan.queue_id): plan.last for plan in plans if plan.last is not None}


def _write(
    spark: "SparkSession", wanted: Arguments, plans: Sequence[QueuePlan], staging: Path
) -> None:
    """Run the Spark job that writes the ranges as Parquet into staging."""
    reader = RangeReader(
        store=wanted.store,
        commit_log=wanted.commit_log,
        published_offset=wanted.published_offset,
        broker_name=None,
        columns=FILE_COLUMNS,
        wanted=RowFilter(),
        fail_on_data_loss=False,  # damaged messages are skipped here and named by check.py
    )
    data_directory(staging).mkdir()
    ranges = pack((part for queue in plans for part in queue.ranges), wanted.range_bytes)
    parts = write_parts(staging, reader, list(ranges))
    run_parts(spark, write_part, parts, "writing", lambda part: part.rows)


def _damages(store: Store, wanted: Arguments, plan: QueuePlan, first: int, end: int) -> Any:
    queue = Queue(store, plan.topic, plan.queue_id, wanted.published_offset)
    return damages_in(queue, first, end)


def report_of(
    plans: Sequence[QueuePlan],
    files: Sequence[ArchivedFile],
    queues: Sequence[ArchivedQueue],
    damaged: Sequence[DamagedMessage],
    output: Path | None,
    seconds: float,
) -> Report:
    """Return rows and bytes of each topic, and rows/s over the whole run with plan and checks."""
    topics = []
    for topic in sorted({queue.topic for queue in queues}):
        rows = sum(queue.rows for queue in queues if queue.topic == topic)
        topics.append(
            {
                "topic": topic,
                "rows": rows,
                "missed": sum(queue.missed for queue in queues if queue.topic == topic),
                "damaged": sum(queue.damaged for queue in queues if queue.topic == topic),
                "log_bytes": sum(plan.record_bytes for plan in plans if plan.topic == topic),
                "bytes": sum(file.bytes for file in files if file.topic == topic),
                "rows_per_second": round(rows / seconds),
            }
        )
    return {
        "output": None if output is None else str(output),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "files": len(files),
        "seconds": round(seconds, 2),
        "topics": topics,
        "damaged": len(damaged),
        "damaged_messages": [asdict(each) for each in damaged[:DAMAGED_MAX]],
        "text": "\n".join([*_table(topics, output, seconds), *_left_out(plans, damaged)]),
    }


def _left_out(plans: Sequence[QueuePlan], damaged: Sequence[DamagedMessage]) -> Iterator[str]:
    for each in damaged[:SHOWN_MAX]:
        yield (
            f"left out: message {each.queue_offset} in queue {each.queue_id} of {each.topic}, at "
            f"byte {each.physical_offset} of the log: {each.why}"
        )
    if len(damaged) > SHOWN_MAX:
        yield f"and {len(damaged) - SHOWN_MAX:,} more; --json and the manifest name them"
    for queue in plans:
        if queue.is_damaged:
            end = queue.first + queue.rows
            yield (
                f"queue {queue.queue_id} of {queue.topic} was read up to {end} only: "
                "the record of the next unit is not its own"
            )


def _table(
    topics: Sequence[Mapping[str, Any]], output: Path | None, seconds: float
) -> Iterator[str]:
    if output is None:
        yield "Nothing new to archive."
        return
    width = max(5, *(len(topic["topic"]) for topic in topics))
    yield f"{'topic':{width}} {'rows':>12} {'bytes':>14} {'log bytes':>14} {'rows/s':>9}"
    for topic in topics:
        yield (
            f"{topic['topic']:{width}} {topic['rows']:>12,} {topic['bytes']:>14,} "
            f"{topic['log_bytes']:>14,} {topic['rows_per_second']:>9,}"
        )
        if topic["missed"]:
            yield f"{'':{width}} {topic['missed']:>12,} expired before they were archived"
        if topic["damaged"]:
            yield f"{'':{width}} {topic['damaged']:>12,} are damaged and were left out"
    yield f"{seconds:.1f} s, in {output}"
