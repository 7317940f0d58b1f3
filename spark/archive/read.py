"""Reads the files of an archive, whichever format a run was written in; needs no Spark."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, parquet

from spark.archive.columns import renewed
from spark.archive.files import QueueRows
from storage.errors import StoreError

ROWS_AT_ONCE = 8192


def read_file(path: Path, columns: Collection[str]) -> pa.Table:
    """The named columns of a file, by their names of today; those that it has, in their order."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
        # In the first format a column of today may need several others.
        there = opened.schema_arrow.names
        is_old = "queueId" not in there
        found = renewed(opened.read(columns=[name for name in there if is_old or name in columns]))
    return found.select([name for name in found.column_names if name in columns])


def has_names_of_today(path: Path) -> bool:
    """Whether a file has the columns of today, and not those of the first format.

    Raises StoreError for what is no Parquet file.
    """
    try:
        return "queueId" in parquet.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path} cannot be read: restore it from a copy") from error


def file_tables(path: Path) -> Iterator[pa.Table]:
    """A whole file with the columns of today, some rows after the other."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
        for batch in opened.iter_batches(ROWS_AT_ONCE):
            yield renewed(pa.Table.from_batches([batch]))


def rows_of_queue(table: pa.Table, rows: QueueRows) -> pa.Table:
    """Only these messages, in their order."""
    return table.filter(
        compute.and_(
            compute.equal(table["queueId"], rows.queue_id),
            compute.and_(
                compute.greater_equal(table["queueOffset"], rows.first),
                compute.less_equal(table["queueOffset"], rows.last),
            ),
        )
    ).sort_by("queueOffset")
