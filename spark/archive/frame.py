"""An archive as a DataFrame: what its manifests name, whatever else lies in the directory.

A run that another one replaces is out of sight from one moment to the next, and its files stay for
a while: a query that was planned before reads them to its end.
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
    """The Parquet files of an archive at this moment, for any reader.

    Raises StoreError for what is no archive, and for one in another format.
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
    """The messages of an archive, with `run` as a further column, as they are at this moment.

    Raises StoreError for what is no archive, and for runs whose columns have the names of an older
    version.
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
