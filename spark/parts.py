"""Shares work out in parts: to the tasks of a Spark session, or one after the other without one."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part = TypeVar("Part")
Result = TypeVar("Result")

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
    spark: "SparkSession | None", work: Callable[[Part], Result], parts: Sequence[Part]
) -> Iterable[Result]:
    """What `work` makes of each part, in order. It is named by its module, so not a closure.

    Raises whatever it raises; in a task Spark tries again first.
    """
    if spark is None or not parts:
        return map(work, parts)
    results: list[Result] = spark.sparkContext.parallelize(parts, len(parts)).map(work).collect()
    return results


def check_parts(parts: Sequence[object]) -> None:
    """Raises StoreError if there is nothing to do."""
    if not parts:
        raise StoreError("there is nothing to read: the log is empty")
