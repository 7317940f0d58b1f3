"""Runs work in parts: as tasks of a Spark session, or one part after another without Spark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spark.progress import PROGRESS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part = TypeVar("Part")
Result = TypeVar("Result")
RowsOf = Callable[[Part], int]

PAYS_BYTES = 256 * 1024 * 1024
"""Bytes of log from which Spark pays off; the start of a session takes 5 to 15 s of CPU time."""


def spark_pays(store: str, commit_log: str | None, wanted: bool | None = None) -> bool:
    """Return whether to start Spark for a whole log: `wanted` if given, else by the log's size."""
    return log_bytes(store, commit_log) >= PAYS_BYTES if wanted is None else wanted


def log_bytes(store: str, commit_log: str | None) -> int:
    """Return the bytes of all log files; a missing directory counts as empty."""
    directories = (commit_log or str(Path(store) / "commitlog")).split(",")
    try:
        return sum(path.stat().st_size for each in directories for path in Path(each).iterdir())
    except OSError:
        return 0


def run_parts(
    spark: "SparkSession | None",
    work: Callable[[Part], Result],
    parts: Sequence[Part],
    stage: str = "reading",
    rows_of: RowsOf[Part] | None = None,
) -> Iterable[Result]:
    """Return the results of `work` for each part, in order.

    Tasks import `work` by its module, so it cannot be a closure. Progress is reported for `stage`;
    `rows_of` returns the messages of a part, if known. Raises what `work` raises; Spark first
    retries a failed task.
    """
    counts = [0 if rows_of is None else rows_of(part) for part in parts]
    if spark is None or not parts:
        PROGRESS.begin(stage, rows=sum(counts), tasks=len(parts))
        return _one_after_the_other(work, parts, counts)
    context = spark.sparkContext
    read = context.accumulator(0)
    PROGRESS.begin(stage, rows=sum(counts), counted=lambda: read.value)
    pairs = list(zip(parts, counts, strict=True))
    results: list[Result] = context.parallelize(pairs, len(pairs)).map(_Task(work, read)).collect()
    return results


def _one_after_the_other(
    work: Callable[[Part], Result], parts: Sequence[Part], counts: Sequence[int]
) -> Iterator[Result]:
    for part, count in zip(parts, counts, strict=True):
        yield work(part)
        PROGRESS.add(count)


@dataclass(frozen=True, slots=True)
class _Task(Generic[Part, Result]):
    """One part in a task; counts its messages at its end."""

    work: Callable[[Part], Result]
    read: Any
    """Spark accumulator, which counts a retried task once."""

    def __call__(self, given: tuple[Part, int]) -> Result:
        part, count = given
        result = self.work(part)
        self.read.add(count)
        return result
