"""Writer of messages as Parquet files of an archive, in the tasks that read them.

The rows never go to the JVM: moving and writing them there cost four times as much as all the rest
(docs/decisions/0019).

    <staging>/data/topic=…/day=…/part-<task>-<number>.parquet    finished files
    <staging>/unfinished/<any name>                              in progress, or left by a failure

A task may run again after a failure, or beside one that is presumed dead. It writes equal files
from equal ranges, and one rename gives each finished file its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, parquet

from spark.archive.columns import ALL_DIFFERENT, ARCHIVE_COLUMNS
from spark.decoding.columns import COLUMNS
from spark.source.plan import QueueRange
from spark.source.reading import RangeReader
from storage.errors import StoreError, reason_of

SCHEMA = pa.schema(
    [(name, COLUMNS[name]) for name in ARCHIVE_COLUMNS if name not in ("topic", "day")]
)
"""Schema of the files; topic and day are in the names of their directories."""

FILE_COLUMNS = (*SCHEMA.names, "day")
"""Columns that a task reads; the topic of a range is known."""

_LEAVES = [name for name in SCHEMA.names if name != "properties"] + [
    "properties.key_value.key",
    "properties.key_value.value",
]
"""Column names as Parquet has them."""

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Maximum bytes that one task buffers; beyond it, its largest buffer becomes a row group."""

_OPEN_MAX = 16
"""Maximum open files of one task; messages of a queue rarely jump between so many days."""

_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}
"""Characters that Hive and Spark escape as %XX in the names of partitions."""


@dataclass(frozen=True, slots=True)
class WritePart:
    """Input and output of one task; picklable."""

    number: int
    staging: str
    reader: RangeReader
    """Reader of FILE_COLUMNS."""

    ranges: tuple[QueueRange, ...]

    @property
    def rows(self) -> int:
        return sum(part.end - part.first for part in self.ranges)


def write_part(part: WritePart) -> int:
    """Write the files of one task; return the number of rows written.

    Skips messages with damaged bodies. Raises StoreError.
    """
    rows = 0
    try:
        for topic, ranges in groupby(part.ranges, key=lambda each: each.topic):
            files = _TopicFiles(part, topic)
            try:
                for batch in part.reader.read(list(ranges)):
                    rows += files.add(batch)
                files.finish()
            finally:
                files.drop()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"cannot write to {part.staging}: {_reason(error)}") from error
    return rows


def parquet_writer(path: Path) -> parquet.ParquetWriter:
    """Return the writer for every file of an archive: zstd, with a checksum per page."""
    return parquet.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        store_schema=False,
        use_dictionary=[name for name in _LEAVES if name not in ALL_DIFFERENT],
        write_page_checksum=True,
    )


def escaped(value: str) -> str:
    """Return a partition value as it appears in the name of its directory."""
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in value)


def data_directory(staging: Path) -> Path:
    """Return the directory of a run's finished files."""
    return staging / "data"


class _File:
    """A file that is being written."""

    def __init__(self, unfinished: Path, target: Path) -> None:
        self._path = unfinished / uuid4().hex
        self._target = target
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = parquet_writer(self._path)
        self._batches: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.waiting_bytes += batch.nbytes

    def write(self) -> None:
        """Write the buffered batches as one row group."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, SCHEMA)
            self._writer.write_table(table, row_group_size=len(table))
            self._batches, self.waiting_bytes = [], 0

    def finish(self) -> None:
        self.write()
        self._writer.close()
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._path.replace(self._target)

    def drop(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


class _TopicFiles:
    """Files of one topic in one task: one per day, or more if the days alternate."""

    def __init__(self, part: WritePart, topic: str) -> None:
        self._staging = Path(part.staging)
        self._topic = topic
        self._task = part.number
        self._made = 0
        self._open: dict[int, _File] = {}
        """Open files by day, least recently used first."""

    def add(self, batch: pa.RecordBatch) -> int:
        """Add the rows with intact bodies and return their number."""
        intact = batch["bodyCrcOk"]
        if intact.true_count < len(batch):
            batch = batch.filter(intact)
        for day, rows in _by_day(batch):
            self._file(day).add(rows)
        while sum(file.waiting_bytes for file in self._open.values()) > ROW_GROUP_BYTES:
            max(self._open.values(), key=lambda file: file.waiting_bytes).write()
        return len(batch)

    def finish(self) -> None:
        for day in list(self._open):
            self._open[day].finish()
            del self._open[day]

    def drop(self) -> None:
        """Drop the open files, after a failure."""
        for file in self._open.values():
            file.drop()

    def _file(self, day: int) -> _File:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) == _OPEN_MAX:
                oldest = next(iter(self._open))
                self._open[oldest].finish()
                del self._open[oldest]
            folder = f"topic={escaped(self._topic)}/day={np.datetime64(day, 'D')}"
            name = f"part-{self._task:05}-{self._made:05}.parquet"
            self._made += 1
            target = data_directory(self._staging) / folder / name
            file = _File(self._staging / "unfinished", target)
        self._open[day] = file
        return file


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (days since 1970, the rows of that day without the column)."""
    days = batch["day"].cast(pa.int32())
    rows = batch.select(SCHEMA.names)
    for day in days.unique().to_pylist():
        is_it = compute.equal(days, day)
        yield day, rows if is_it.true_count == len(rows) else rows.filter(is_it)


def _reason(error: Exception) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error)


def write_parts(
    staging: Path, reader: RangeReader, ranges: Sequence[Sequence[QueueRange]]
) -> list[WritePart]:
    """Return the tasks of a run; `ranges` has the ranges of each."""
    return [
        WritePart(number, str(staging), reader, tuple(together))
        for number, together in enumerate(ranges)
    ]
