"""Shares work out in parts: to the tasks of a Spark session, or one after the other without one."""

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
"""Of log, from which a session pays: starting one costs 5 to 15 CPU s."""


def spark_pays(store: str, commit_log: str | None, wanted: bool | None = None) -> bool:
    """Whether to start Spark for work over a whole log; `wanted` is what somebody said."""
    return log_bytes(store, commit_log) >= PAYS_BYTES if wanted is None else wanted


def log_bytes(store: str, commit_log: str | None) -> int:
    """The size of all log files; what is not there has none."""
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
    """What `work` makes of each part, in order. It is named by its module, so not a closure.

    The progress is that of `stage`; `rows_of` tells how many messages a part has, if that is known.
    Raises whatever `work` raises; in a task Spark tries again first.
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
    """One part in a task, which counts its messages when it is done."""

    work: Callable[[Part], Result]
    read: Any
    """Spark's accumulator: what a task adds that failed and is tried again counts once."""

    def __call__(self, given: tuple[Part, int]) -> Result:
        part, count = given
        result = self.work(part)
        self.read.add(count)
        return result
