"""Archives in a table format of the Spark session (Delta, …) instead of plain Parquet.

    <output>/table/…                        the table: the Parquet columns, and a column `run`
    <output>/run=00000001/_manifest.json    a manifest without files

A run is first written and compared as Parquet in staging. Then its manifest is put beside these
files, which decides the messages of the run. One commit of the table appends them, and then the
manifest is published.

The next run finishes a decided run that was killed in between. It appends the staged files unless
the table has them, and publishes the manifest before it looks for new messages. The number of the
run is also the version of the table's transaction, which Delta takes once.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.files import TABLE, Archive, Manifest, Table, fault_of, path_below, seal
from spark.decoding.columns import sql_schema
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = "parquet"
FILE_FORMATS = ("avro", "binaryfile", "csv", "json", "orc", "text", "xml")
"""Spark's own formats, which are directories of files without commits."""


def check_format(output: str, wanted: str) -> None:
    """Raise StoreError for a format without commits, or a format other than the archive's."""
    if wanted in FILE_FORMATS:
        raise StoreError(
            f"format={wanted} has no commits, so a killed run would leave part of its "
            "messages: use parquet, or a table format such as delta"
        )
    newest = Archive(output).newest()
    there = None if newest is None else PARQUET if newest.table is None else newest.table.format
    if there is not None and there != wanted:
        raise StoreError(
            f"the archive at {output} is {there}: give format={there}, or name another output"
        )


def check_is_parquet(output: str, what: str, instead: str) -> None:
    """Raise StoreError if the archive is in a table format: `what` needs plain Parquet files."""
    newest = Archive(output).newest()
    if newest is not None and newest.table is not None:
        raise StoreError(
            f"{what} works on Parquet archives, and {output} is {newest.table.format}: {instead}"
        )


def table_of(spark: "SparkSession", target: Archive, wanted: str, run_id: str) -> Table | None:
    """Return the table that a run goes into, None for plain Parquet.

    `run_id` names its transactions if this is the first run. Raises StoreError if the session lacks
    the format, or if the folder has a table of another archive.
    """
    check_format(str(target.output), wanted)
    if wanted == PARQUET:
        return None
    newest = target.newest()
    if newest is not None:
        return newest.table
    path = target.own(TABLE)
    if path.exists() and any(path.iterdir()):
        raise StoreError(f"there is a table at {path}, but no manifest: name another output")
    _check_known(spark, wanted, path)
    return Table(wanted, str(path), run_id)


def append_and_publish(
    spark: "SparkSession", target: Archive, staged: Path, manifest: Manifest
) -> Path:
    """Publish a run from its checked files in staging. Raises StoreError."""
    table = _table(manifest)
    if _rows(spark, manifest):
        raise StoreError(
            f"the table at {table.path} has messages of run {manifest.run} already, which no "
            "manifest names: name another output"
        )
    seal(staged, manifest)
    append(spark, staged, manifest)
    return _publish(spark, target, staged, manifest)


def finish(spark: "SparkSession", target: Archive) -> int | None:
    """Finish a run that was killed after it was decided, and return its number, or None.

    Raises StoreError if one of its files has changed since it was written.
    """
    decided = target.decided()
    if decided is None:
        return None
    staged, manifest = decided
    if not _rows(spark, manifest):
        for file in manifest.files:
            fault = fault_of(path_below(staged, file), file)
            if fault is not None:
                raise StoreError(fault)
        append(spark, staged, manifest)
    _publish(spark, target, staged, manifest)
    target.clear_staging()
    return manifest.run


def append(spark: "SparkSession", staged: Path, manifest: Manifest) -> None:
    """Append all messages of the run by one commit, or nothing if the table has them."""
    from pyspark.sql import functions as f

    table = _table(manifest)
    messages = (
        spark.read.schema(sql_schema(ARCHIVE_COLUMNS))
        .option("basePath", f"file://{staged}")
        .parquet(*(f"file://{path_below(staged, file)}" for file in manifest.files))
        .select(*ARCHIVE_COLUMNS, f.lit(manifest.run).alias("run"))
    )
    (
        messages.write.format(table.format)
        .mode("append")
        .partitionBy("topic", "day")
        .option("txnAppId", table.app_id)
        .option("txnVersion", str(manifest.run))
        .save(f"file://{table.path}")
    )


def read_table(spark: "SparkSession", table: Table, run: int) -> "DataFrame":
    """Return the messages that the published runs up to `run` have put into the table."""
    return spark.read.format(table.format).load(f"file://{table.path}").where(f"run <= {run}")


def _publish(spark: "SparkSession", target: Archive, staged: Path, manifest: Manifest) -> Path:
    """Publish the run. Raises StoreError if the table does not have exactly its messages."""
    table, rows, found = _table(manifest), _planned(manifest), _rows(spark, manifest)
    if found != rows:
        raise StoreError(
            f"the table at {table.path} has {found} messages of run {manifest.run}, not {rows}: "
            "restore its previous version with the format's own tools, and run the job again"
        )
    names = staged.with_name("published").relative_to(target.output).parts
    published = target.own(*names)
    published.mkdir(exist_ok=True)
    target.publish(published, replace(manifest, files=()))
    return Path(table.path)


def _rows(spark: "SparkSession", manifest: Manifest) -> int:
    """Return the number of messages of this run in the table; 0 before the table exists."""
    table = _table(manifest)
    if not Path(table.path).exists():
        return 0
    there = spark.read.format(table.format).load(f"file://{table.path}")
    return there.where(f"run = {manifest.run}").count()


def _planned(manifest: Manifest) -> int:
    return sum(file.rows for file in manifest.files)


def _table(manifest: Manifest) -> Table:
    assert manifest.table is not None
    return manifest.table


def _check_known(spark: "SparkSession", wanted: str, path: Path) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        spark.read.format(wanted).load(f"file://{path}")
    except (PySparkException, Py4JError) as error:
        # Other errors only say that the table does not exist yet; the format is known.
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise StoreError(
                f"the Spark session does not know the format {wanted}: name its jars as "
                "spark.jars.packages in conf/spark.conf"
            ) from error
