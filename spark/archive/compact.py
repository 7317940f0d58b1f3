"""Compaction: joins the small files of many runs into few, as one run that replaces them.

Files of one topic and day are joined up to TARGET_BYTES. A large file is taken over as a hard
link, unless it has the first format, because the result has the current columns. Every source is
first checked against its manifest, and every new file is read back. One rename then publishes the
new run and hides the replaced ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import link
from pathlib import Path
from shutil import copyfile
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from spark.archive.check import describe_file
from spark.archive.files import (
    DAMAGED_MAX,
    Archive,
    ArchivedFile,
    ArchivedQueue,
    Manifest,
    QueueRows,
    fault_of,
    path_below,
)
from spark.archive.read import file_tables, has_names_of_today
from spark.archive.write import SCHEMA, parquet_writer
from spark.parts import run_parts
from spark.report import Report, text_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 * 1024 * 1024
"""Target bytes of a joined file; a file with half of it is not joined again."""

_HEADINGS = {
    "topic": "topic",
    "rows": "messages",
    "files_before": "files before",
    "files": "files",
    "bytes_before": "bytes before",
    "bytes": "bytes",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Small file that a compaction merges with others."""

    directory: str
    """Directory of its run."""

    file: ArchivedFile

    @property
    def path(self) -> Path:
        return path_below(Path(self.directory), self.file)


@dataclass(frozen=True, slots=True)
class CompactPart:
    """One file of the new run: joined from several, or taken over."""

    staged: str
    path: str
    sources: tuple[Source, ...]
    is_joined: bool

    @property
    def rows(self) -> int:
        return sum(source.file.rows for source in self.sources)


def compact(
    spark: "SparkSession | None",
    output: str,
    target_bytes: int = TARGET_BYTES,
    grace_ms: float = 0,
) -> Report:
    """Replace all runs by one.

    Raises StoreError, and then the archive is unchanged. `grace_ms`: retention of the old runs for
    readers.
    """
    begun_s = monotonic()
    archive = Archive(output)
    with archive.writing(grace_ms):
        manifests = [archive.manifest(run) for run in archive.runs()]
        sources = [
            Source(str(archive.run_directory(manifest.run)), file)
            for manifest in manifests
            for file in manifest.files
        ]
        run_id = uuid4().hex
        staged = archive.stage(run_id) / "data"
        parts = _parts(staged, sources, target_bytes)
        published: Path | None = None
        files = [source.file for source in sources]
        if any(part.is_joined for part in parts):
            staged.mkdir()
            made = run_parts(spark, make_file, parts, "joining", lambda part: part.rows)
            files = sorted(made, key=lambda file: file.path)
            manifest = _manifest(manifests, run_id, files)
            published = archive.publish(staged, manifest)
            archive.remove_replaced(grace_ms)
        archive.clear_staging()
    return _report(sources, files, published, monotonic() - begun_s)


def make_file(part: CompactPart) -> ArchivedFile:
    """Make one file in a task, perhaps after a failed attempt. Raises StoreError."""
    target = Path(part.staged) / part.path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if not part.is_joined:
        (source,) = part.sources
        try:
            link(source.path, target)
        except OSError:  # the file system lacks hard links
            copyfile(source.path, target)
        return replace(source.file, path=part.path)
    for source in part.sources:
        fault = fault_of(source.path, source.file)
        if fault is not None:
            raise StoreError(fault)
    with parquet_writer(target) as writer:
        for source in part.sources:
            for table in file_tables(source.path):
                writer.write_table(table.select(SCHEMA.names).cast(SCHEMA))
    made = describe_file(Path(part.staged), target)
    if _spans(made.queues) != _spans(rows for each in part.sources for rows in each.file.queues):
        raise StoreError(
            f"the file joined from {len(part.sources)} files of {made.topic} does not hold the "
            "same messages: nothing was published, run the job again"
        )
    return made


def _parts(staged: Path, sources: Iterable[Source], target_bytes: int) -> list[CompactPart]:
    """Return the parts; sources keep the order of their runs, so older messages come first."""
    folders: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        folders[str(Path(source.file.path).parent)].append(source)
    parts = []
    for folder, members in sorted(folders.items()):
        for number, group in enumerate(_groups(members, target_bytes)):
            is_joined = len(group) > 1 or not has_names_of_today(group[0].path)
            path = f"{folder}/part-{number:05}.parquet"
            parts.append(CompactPart(str(staged), path, tuple(group), is_joined))
    return parts


def _groups(members: Sequence[Source], target_bytes: int) -> Iterator[list[Source]]:
    small: list[Source] = []
    for source in members:
        if source.file.bytes * 2 >= target_bytes:
            yield [source]
            continue
        if small and sum(each.file.bytes for each in small) + source.file.bytes > target_bytes:
            yield small
            small = []
        small.append(source)
    if small:
        yield small


def _spans(rows: Iterable[QueueRows]) -> list[tuple[int, int, int]]:
    """Return queue, first and last offset of each contiguous range; duplicates stay separate."""
    spans: list[tuple[int, int, int]] = []
    for each in sorted(rows, key=lambda each: (each.queue_id, each.first, each.last)):
        queue_id, first, last = spans[-1] if spans else (-1, 0, 0)
        if queue_id == each.queue_id and last + 1 == each.first:
            spans[-1] = (queue_id, first, each.last)
        else:
            spans.append((each.queue_id, each.first, each.last))
    return spans


def _manifest(
    manifests: Sequence[Manifest], run_id: str, files: Sequence[ArchivedFile]
) -> Manifest:
    newest = manifests[-1]
    return replace(
        newest,
        run=newest.run + 1,
        run_id=run_id,
        finished_ms=time_ns() // 1_000_000,
        files=tuple(files),
        queues=tuple(_queues(queue for manifest in manifests for queue in manifest.queues)),
        damaged=tuple(each for manifest in manifests for each in manifest.damaged)[:DAMAGED_MAX],
        replaces=tuple(manifest.run for manifest in manifests),
    )


def _queues(queues: Iterable[ArchivedQueue]) -> list[ArchivedQueue]:
    """Merge contiguous entries of a queue; expired messages between two keep them separate."""
    entries: dict[tuple[str, int], list[ArchivedQueue]] = defaultdict(list)
    for queue in queues:
        mine = entries[queue.topic, queue.queue_id]
        if mine and queue.first == mine[-1].last + 1 and not queue.missed:
            held = mine.pop()
            queue = replace(
                held,
                last=queue.last,
                rows=held.rows + queue.rows,
                damaged=held.damaged + queue.damaged,
            )
        mine.append(queue)
    return [queue for name in sorted(entries) for queue in entries[name]]


def _report(
    sources: Sequence[Source], files: Sequence[ArchivedFile], output: Path | None, seconds: float
) -> Report:
    before = [source.file for source in sources]
    topics = [_topic(topic, before, files) for topic in sorted({file.topic for file in before})]
    report: Report = {
        "output": None if output is None else str(output),
        "rows": sum(file.rows for file in files) if output is not None else 0,
        "bytes": sum(file.bytes for file in files) if output is not None else 0,
        "files": len(files),
        "files_before": len(before),
        "seconds": round(seconds, 2),
        "topics": topics,
    }
    if output is None:
        report["text"] = (
            f"Nothing to compact: {len(before)} files, no two of them small enough to join."
        )
    else:
        end = f"{seconds:.1f} s, in {output}"
        report["text"] = "\n".join([*text_table(topics, _HEADINGS), end])
    return report


def _topic(
    topic: str, before: Iterable[ArchivedFile], files: Iterable[ArchivedFile]
) -> Mapping[str, Any]:
    old = [file for file in before if file.topic == topic]
    new = [file for file in files if file.topic == topic]
    return {
        "topic": topic,
        "rows": sum(file.rows for file in new),
        "files_before": len(old),
        "files": len(new),
        "bytes_before": sum(file.bytes for file in old),
        "bytes": sum(file.bytes for file in new),
    }
