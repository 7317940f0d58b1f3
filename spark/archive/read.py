"""Reader of the files of an archive, in any format; needs no Spark."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, parquet

from spark.archive.columns import renewed
from spark.archive.files import QueueRows
from storage.errors import StoreError

ROWS_AT_ONCE = 8192


def read_file(path: Path, columns: Collection[str]) -> pa.Table:
    """Return the named columns that a file has, by their current names and in its order."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
        # A current column may need several columns of the first format.
        there = opened.schema_arrow.names
        is_old = "queueId" not in there
        found = renewed(opened.read(columns=[name for name in there if is_old or name in columns]))
    return found.select([name for name in found.column_names if name in columns])


def has_names_of_today(path: Path) -> bool:
    """Return whether a file has the current columns, not those of the first format.

    Raises StoreError if it is no Parquet file.
    """
    try:
        return "queueId" in parquet.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path} cannot be read: restore it from a copy") from error


def file_tables(path: Path) -> Iterator[pa.Table]:
    """Yield a whole file in batches of rows with the current columns."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
        for batch in opened.iter_batches(ROWS_AT_ONCE):
            yield renewed(pa.Table.from_batches([batch]))


def rows_of_queue(table: pa.Table, rows: QueueRows) -> pa.Table:
    """Return only these messages, in their order."""
    return table.filter(
        compute.and_(
            compute.equal(table["queueId"], rows.queue_id),
            compute.and_(
                compute.greater_equal(table["queueOffset"], rows.first),
                compute.less_equal(table["queueOffset"], rows.last),
            ),
        )
    ).sort_by("queueOffset")
