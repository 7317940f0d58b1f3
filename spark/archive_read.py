"""Reads the files of an archive, whichever format a run was written in; needs no Spark."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, parquet

from spark.archive_columns import renewed
from spark.archive_files import QueueRows


def read_file(path: Path, columns: Collection[str]) -> pa.Table:
    """The named columns of a file, by their names of today; those that it has, in their order."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
        # In the first format a column of today may need several others.
        there = opened.schema_arrow.names
        is_old = "queueId" not in there
        found = renewed(opened.read(columns=[name for name in there if is_old or name in columns]))
    return found.select([name for name in found.column_names if name in columns])


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
