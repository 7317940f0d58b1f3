"""Writes messages as the Parquet files of an archive, in the tasks that read them.

The rows never go to the JVM: carrying them there, and writing them there, cost four times as much
as all the rest (docs/decisions/0019).

    <staging>/data/topic=…/day=…/part-<task>-<number>.parquet    finished, whole
    <staging>/unfinished/<any name>                              being written, or left by a failure

A task may run again after one that failed, or beside one that is thought dead: it makes the same
files from the same ranges, and each gets its name when it is finished, by one rename.
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
"""Topic and day are in the names of the directories."""

FILE_COLUMNS = (*SCHEMA.names, "day")
"""What a task reads: the topic of a range is known."""

_LEAVES = [name for name in SCHEMA.names if name != "properties"] + [
    "properties.key_value.key",
    "properties.key_value.value",
]
"""Columns as Parquet names them."""

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Of rows that one task holds, over all its files, before it writes a row group of the largest."""

_OPEN_MAX = 16
"""Files of one task that are open at once; messages of a queue seldom jump between so many days."""

_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}
"""What Hive and Spark write as %XX in the names of partitions."""


@dataclass(frozen=True, slots=True)
class WritePart:
    """What one task reads and writes; picklable."""

    number: int
    staging: str
    reader: RangeReader
    """Of FILE_COLUMNS."""

    ranges: tuple[QueueRange, ...]

    @property
    def rows(self) -> int:
        return sum(part.end - part.first for part in self.ranges)


def write_part(part: WritePart) -> int:
    """Runs in a task; tells how many rows it has written. Raises StoreError.

    A message whose body does not have its CRC is left out.
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
    """As every file of an archive is written: zstd, with a checksum of each page."""
    return parquet.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        store_schema=False,
        use_dictionary=[name for name in _LEAVES if name not in ALL_DIFFERENT],
        write_page_checksum=True,
    )


def escaped(value: str) -> str:
    """The value of a partition as it stands in the name of its directory."""
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in value)


def data_directory(staging: Path) -> Path:
    """Where the finished files of a run are."""
    return staging / "data"


class _File:
    """One that is being written."""

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
        """What waits, as one row group."""
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
    """The files of one topic in one task: one a day, or more where the days take turns."""

    def __init__(self, part: WritePart, topic: str) -> None:
        self._staging = Path(part.staging)
        self._topic = topic
        self._task = part.number
        self._made = 0
        self._open: dict[int, _File] = {}
        """By day, the one used last at the end."""

    def add(self, batch: pa.RecordBatch) -> int:
        """Its rows with intact bodies; tells how many."""
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
        """What is still open, after a failure."""
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
    """(days since 1970, its rows without that column)."""
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
    """The tasks of a run; `ranges` has those of each."""
    return [
        WritePart(number, str(staging), reader, tuple(together))
        for number, together in enumerate(ranges)
    ]
