"""Task of a read: the messages of its ranges, from a store or over the network.

Over the network they come in bulk from TroupeMQ brokers, and by pulls from others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.signature import Credentials
from remoting.sync_connection import SyncConnection
from spark.decoding.records import Scanned
from spark.source import pulling, raw
from spark.source.options import Options
from spark.source.plan import QueueRange
from spark.source.reading import RangesPartition, kept, range_reader
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


@dataclass(frozen=True, slots=True)
class NetworkReader:
    """Settings of every task of a read; picklable."""

    addresses: Mapping[str, str]
    bulk: Collection[str]
    """The brokers that offered to be read in bulk when this was planned."""

    columns: tuple[str, ...]
    wanted: RowFilter
    fail_on_data_loss: bool
    credentials: Credentials | None = field(default=None, repr=False)

    def read(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most some 8192 rows or 8 MiB.

        Raises StoreError where messages are damaged or gone, unless their loss is accepted, and
        where a broker cannot be reached.
        """
        with ExitStack() as stack:
            lines: dict[str, SyncConnection] = {}
            for part in ranges:
                address = self.addresses[part.broker or ""]
                if address not in lines:
                    lines[address] = stack.enter_context(
                        SyncConnection(address, credentials=self.credentials)
                    )
                yield from kept(self, part, self._scan(lines[address], part), part.broker)

    def _scan(self, line: SyncConnection, part: QueueRange) -> Iterator[Scanned]:
        if part.broker in self.bulk:
            try:
                yield from raw.scan(line, part, fail_on_data_loss=self.fail_on_data_loss)
                return
            except raw.NotServed:
                pass  # another broker has taken its place since: nothing has been read yet
        yield from pulling.scan(line, part)
