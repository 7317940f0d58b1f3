"""Archives into a Delta table in one Spark session: `python -m tests.compat.delta_steps DIRECTORY`.

DIRECTORY has the stores `first` and `all`; results go to DIRECTORY/delta.json. The jars come from
Maven Central or from Ivy's cache. Without them the exit code is NO_JARS.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.archive import run as run_module
from spark.archive import table as table_module
from spark.archive.files import Archive, Manifest
from spark.archive.frame import read_archive
from spark.jobs import archive
from spark.runner import sentence_of
from spark.session import start_session
from tests.spark.probe import QUICK, text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Of the table's own log, in 50 tasks by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}
NO_JARS = 9


class Killed(BaseException):
    """In the place of a kill: nothing below may catch it."""


class Steps:
    """One archive that is written by several runs, some of them killed."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._output = str(directory / "archive")

    def run(self, store: str, **more: Any) -> Any:
        given = {"store": str(self._directory / store), "output": self._output, "format": "delta"}
        try:
            return archive.main(self._spark, {**given, **more})
        except Exception as error:
            return sentence_of(error)

    def killed(self, store: str, step: str, *, is_after: bool = False, **more: Any) -> str:
        """A run that ends before or after a step as if it was killed."""
        real: Callable[..., Any] = getattr(table_module, step)

        def dies(*given: Any) -> None:
            if is_after:
                real(*given)
            raise Killed

        setattr(table_module, step, dies)
        try:
            self.run(store, **more)
        except Killed:
            return "killed"
        finally:
            setattr(table_module, step, real)
        return "not killed"

    def count(self) -> int:
        """Return the row count of the table itself."""
        return self._spark.read.format("delta").load(f"{self._output}/table").count()

    def appended_again(self) -> int:
        """Return the message count after a run's transaction was repeated."""
        made: list[tuple[Path, Manifest]] = []
        name = table_module.append_and_publish.__name__
        real = getattr(run_module, name)

        def twice(spark: Any, target: Archive, staged: Path, manifest: Manifest) -> Path:
            made.append((staged, manifest))
            table_module.append(spark, staged, manifest)
            table_module.append(spark, staged, manifest)
            return table_module._publish(spark, target, staged, manifest)

        setattr(run_module, name, twice)
        try:
            self.run("all")
        finally:
            setattr(run_module, name, real)
        assert made, "nothing was new"
        return self.count()


def steps(spark: "SparkSession", directory: Path) -> dict[str, Any]:
    """Return the result of each step, in order."""
    here = Steps(spark, directory)
    end = json.loads((directory / "ends.json").read_text())
    found: dict[str, Any] = {}
    found["unknown"] = here.run("first", format="iceberg")
    found["first"] = here.run("first", published_offset=end[0])
    found["killed behind the commit"] = here.killed("first", "append", is_after=True)
    found["runs then"] = Archive(str(directory / "archive")).runs()
    found["count then"] = here.count()
    found["seen then"] = read_archive(spark, str(directory / "archive")).count()
    found["went on"] = here.run("all", published_offset=end[1])
    found["count went on"] = here.count()
    found["killed before the commit"] = here.killed("all", "append", published_offset=end[2])
    found["count before"] = here.count()
    found["twice"] = here.appended_again()
    found["nothing new"] = here.run("all")
    found["rows"] = [
        row.asDict() for row in read_archive(spark, str(directory / "archive")).collect()
    ]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{directory}/archive/table`").select("version")
    found["versions"] = sorted(row.version for row in history.collect())
    return found


def main(directory: Path) -> int:
    try:
        spark = start_session({**QUICK, **DELTA}, str(directory))
    except Exception as error:
        print(error, file=sys.stderr)
        return NO_JARS
    found = steps(spark, directory)
    (directory / "delta.json").write_text(json.dumps(found, default=text_of))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
