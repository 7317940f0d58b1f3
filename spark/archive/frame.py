"""An archive as a DataFrame, with only the files that its manifests name.

The files of a replaced run stay for a while, so a query that was planned before reads them to
their end.
"""

from typing import TYPE_CHECKING

from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.files import Archive, Manifest
from spark.archive.read import has_names_of_today
from spark.archive.table import check_is_parquet, read_table
from spark.decoding.columns import sql_schema
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archive_files(path: str) -> list[str]:
    """Return the current Parquet files of an archive, for any reader.

    Raises StoreError if it is no archive, or one in another format.
    """
    archive = Archive(path)
    _newest(archive)
    check_is_parquet(path, "archive_files", "use read_archive")
    return [
        str(archive.file_path(run, file))
        for run in archive.runs()
        for file in archive.manifest(run).files
    ]


def read_archive(spark: "SparkSession", path: str) -> "DataFrame":
    """Return the current messages of an archive, with `run` as a further column.

    Raises StoreError if it is no archive, or if a run has the column names of an older version.
    """
    archive = Archive(path)
    newest = _newest(archive)
    if newest.table is not None:
        return read_table(spark, newest.table, newest.run)
    for run in archive.runs():
        for file in archive.manifest(run).files[:1]:
            if not has_names_of_today(archive.file_path(run, file)):
                raise StoreError(
                    f"run {run} of {path} has the columns of an older version: the archive job "
                    "with compact=true renews it"
                )
    return (
        spark.read.schema(f"{sql_schema(ARCHIVE_COLUMNS)}, run int")
        .option("basePath", f"file://{archive.output}")
        .parquet(*(f"file://{file}" for file in archive_files(path)))
        .select(*ARCHIVE_COLUMNS, "run")
    )


def _newest(archive: Archive) -> Manifest:
    newest = archive.newest()
    if newest is None:
        raise StoreError(
            f"there is no archive at {archive.output}: name where the archive job writes"
        )
    return newest
