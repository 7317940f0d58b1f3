"""Task of a read: the messages of its ranges, from a store or over the network."""

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from spark.source.network import NetworkReader
from spark.source.options import Options
from spark.source.reading import RangesPartition, range_reader
from spark.source.row_filter import RowFilter


def read_partition(
    partition: RangesPartition,
    options: Options,
    columns: tuple[str, ...],
    tags: frozenset[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one task, of a store or over the network.

    `tags` as in `range_reader`. Raises StoreError if a range lacks what was planned.
    """
    if not options.name_servers:
        return range_reader(options, columns, tags).read(partition.ranges)
    reader = NetworkReader(
        addresses=partition.addresses,
        bulk=partition.bulk,
        columns=columns,
        wanted=RowFilter(options.expression, tags),
        fail_on_data_loss=options.fail_on_data_loss,
        credentials=options.credentials,
    )
    return reader.read(partition.ranges)
