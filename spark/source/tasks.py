"""Task of a read: the messages of its ranges, from a store or over the network.

Over the network they come in bulk from TroupeMQ brokers, and by pulls from others.

A pull neither waits for messages nor commits an offset. It uses TOOLS_CONSUMER, a group that every
broker has for administrators, so no group is created.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from protocol.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageHeader, PullMessageResponseHeader
from protocol.signature import Credentials
from remoting.sync_connection import Refused, RemotingFailed, SyncConnection
from spark.decoding.log_walk import run
from spark.decoding.records import BATCH_BYTES_MAX, Places, Records, Scanned, whole_records
from spark.decoding.store_files import UNITS_AT_ONCE, LogBytes, NumpyArray
from spark.source import raw
from spark.source.options import Options
from spark.source.plan import QueueRange
from spark.source.reading import RangesPartition, kept, range_reader
from spark.source.row_filter import RowFilter
from storage.errors import StoreError

GROUP = "TOOLS_CONSUMER"
PULL_MESSAGES_MAX = 32
"""Maximum messages of one answer at any broker."""

_MOVED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""Answers that say where the queue goes on."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer: records of [at, next), where `at` was asked for; `next` <= `at` at the end."""

    next: int
    body: bytes


def pull(line: SyncConnection, part: QueueRange, at: int, count: int = PULL_MESSAGES_MAX) -> Pulled:
    """Return messages from queue offset `at` on. Raises StoreError: refused, or no connection."""
    header = PullMessageHeader(
        consumer_group=GROUP,
        topic=part.topic,
        queue_id=part.queue_id,
        queue_offset=at,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
    try:
        answer = line.call(command, repeats=True)
        if answer.code not in _MOVED:
            raise Refused(line.address, answer.code, answer.remark)
        found = PullMessageResponseHeader.decode(answer.fields)
    except RemotingFailed as error:
        raise StoreError(str(error)) from None
    except RemoteError as error:
        raise StoreError(f"{line.address}: a pull's answer is wrong: {error.remark}") from None
    body = bytes(answer.body or b"") if answer.code == ResponseCode.SUCCESS else b""
    return Pulled(found.next_begin_offset, body)


def scan(line: SyncConnection, part: QueueRange) -> Iterator[Scanned]:
    """Yield the complete messages of a range, up to 8192 rows or some 8 MiB at once."""
    first = at = part.first
    bodies: list[bytes] = []
    size = 0
    while at < part.end:
        pulled = pull(line, part, at, min(PULL_MESSAGES_MAX, part.end - at))
        if pulled.next <= at:
            break  # the queue ends here
        if pulled.body:
            bodies.append(pulled.body)
            size += len(pulled.body)
        at = min(pulled.next, part.end)
        if at - first >= UNITS_AT_ONCE or size >= BATCH_BYTES_MAX:
            yield Scanned(first, at - first, _records(bodies, part, first, at))
            first, bodies, size = at, [], 0
    if first < part.end:
        yield Scanned(first, part.end - first, _records(bodies, part, first, at))


def _records(bodies: Sequence[bytes], part: QueueRange, first: int, end: int) -> Records | None:
    """Return the whole records of [first, end) in these answers; None without any."""
    joined = LogBytes(0, b"".join(bodies))
    positions: list[int] = []
    sizes: list[int] = []
    start = 0
    for body in bodies:
        limit = start + len(body)
        found = run(joined.map, start, limit)
        positions += found[0]
        sizes += found[1]
        start = limit
    if not sizes:
        return None

    def is_own(heads: NumpyArray, rows: NumpyArray | slice) -> NumpyArray:
        offsets = heads["queue_offset"].astype(np.int64)
        behind = np.maximum.accumulate(np.concatenate(([first - 1], offsets)))[:-1]
        own: NumpyArray = (
            (heads["queue_id"] == part.queue_id) & (offsets > behind) & (offsets < end)
        )
        return own

    places = Places(np.array(positions), np.array(sizes), np.zeros(len(sizes), np.int64))
    records = whole_records(joined, places, is_own, part.topic)
    return records if len(records) else None


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
        yield from scan(line, part)
