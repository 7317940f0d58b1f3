"""Consume queue units, each checked against the record it points to.

All integers big-endian; a host has 8 bytes, or 20 where a bit of sys_flag says that it is IPv6.

    offset    size  type  field
    0         4     i32   record_bytes
    4         4     u32   magic
    8         4     i32   body_crc
    12        4     i32   queue_id
    16        4     i32   flag
    20        8     i64   queue_offset
    28        8     i64   physical_offset
    36        4     i32   sys_flag
    40        8     i64   born_timestamp
    48        b     -     born_host
    48+b      8     i64   store_timestamp
    56+b      s     -     store_host
    56+b+s    4     i32   reconsume_times
    60+b+s    8     i64   prepared_transaction_offset
    68+b+s    4     i32   body_bytes, then the body, i8 and the topic, i16 and the properties

A queue ends at its first unit whose record is not its own: other magic, size, topic, queue id,
queue offset or physical offset, lengths that do not add up, a record that lies before the previous
one or past the published offset. The zero units of a sparse tail end it in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES
from protocol.message import RECORD_MAGIC
from protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from spark.store_files import GAP_FILLER_BYTES, LogFile, NumpyArray, Store

HEAD = np.dtype(
    [
        ("record_bytes", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", ">u8"),
        ("store_timestamp", ">i8"),
        ("store_host", ">u8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)
HEAD_BYTES = HEAD.itemsize
assert HEAD_BYTES == 88

_TAIL = np.dtype(
    [
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)
BORN_HOST_AT = 48
_V6_MORE_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
TIMESTAMP_BYTES = 8
RECORD_BYTES_MIN = HEAD_BYTES + 1 + 2

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Record bytes of one batch: 8192 rows of 4 MiB would be 32 GiB."""

_SPAN_BYTES_MAX = 2**31 - 1
"""Arrow's offsets are 32 bits, and a batch addresses its records from the first one's start."""


@dataclass(slots=True)
class Records:
    """Consecutive messages of one queue that lie in one log file; all arrays have one row each."""

    topic: str
    file: LogFile
    units: NumpyArray
    positions: NumpyArray
    """First byte of each record in the file."""

    heads: NumpyArray
    """HEAD; with an IPv6 host among them the fields behind it are in `behind_hosts` instead."""

    born_host_bytes: NumpyArray
    store_host_bytes: NumpyArray
    behind_hosts: NumpyArray
    store_timestamps: NumpyArray
    topic_positions: NumpyArray
    """Of the topic's length byte, right behind the body."""

    properties_bytes: NumpyArray

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def first(self) -> int:
        """Queue offset of the first one."""
        return int(self.heads["queue_offset"][0])

    @property
    def body_bytes(self) -> NumpyArray:
        return self.behind_hosts["body_bytes"].astype(np.int64)

    @property
    def record_bytes(self) -> NumpyArray:
        return self.heads["record_bytes"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Queue:
    """Which queue of which store, and how far its records may be trusted."""

    store: Store
    topic: str
    queue_id: int
    published_offset: int | None = None
    """Physical offset where a live broker's published log ends; None: where the files end."""

    @property
    def end_offset(self) -> int:
        end = self.store.log.end_offset
        return end if self.published_offset is None else min(end, self.published_offset)

    def first_message(self, wanted: int = 0) -> int | None:
        """The first queue offset from `wanted` on whose record may still be there.

        Gap fillers, and units whose records have expired, are passed over; None if nothing is left.
        """
        files = self.store.queue(self.topic, self.queue_id)
        min_offset = self.store.log.min_offset
        for first, units in files.chunks(max(wanted, files.min_offset)):
            size = units["record_bytes"]
            gone = (size == GAP_FILLER_BYTES) | (
                (units["physical_offset"] < min_offset) & (size > 0)
            )
            kept = _good_count(gone)
            if kept < len(units):
                return first + kept
        return None

    def has_unit(self, queue_offset: int) -> bool:
        """Whether a unit is there that points into the log, right or wrong."""
        files = self.store.queue(self.topic, self.queue_id)
        for _, units in files.chunks(queue_offset, queue_offset + 1):
            start, size, _ = units[0].tolist()
            return bool(size > 0 and 0 <= start < self.end_offset)
        return False

    def records(self, first: int, end: int | None = None) -> Iterator[Records]:
        """Batches of whole, checked messages from queue offset `first` up to `end` or to the first
        mismatch, at most 8192 rows and about 8 MiB each (one message may be larger).

        Raises StoreError if a file is deleted meanwhile.
        """
        previous_end = 0
        for queue_offset, units in self.store.queue(self.topic, self.queue_id).chunks(first, end):
            whole = _plausible(units, previous_end, self.end_offset)
            taken = 0
            for batch in _batches(self.store, units[:whole]):
                records = _checked(self, batch, queue_offset + taken)
                if len(records):
                    yield records
                taken += len(records)
                if len(records) < len(batch.units):
                    return
            if taken < len(units):
                return
            last = units[-1]
            previous_end = int(last["physical_offset"]) + int(last["record_bytes"])


@dataclass(frozen=True, slots=True)
class _Batch:
    file: LogFile
    units: NumpyArray


def _good_count(good: NumpyArray) -> int:
    """How many are true before the first that is not."""
    return len(good) if good.all() else int(np.argmin(good))


def _plausible(units: NumpyArray, previous_end: int, end_offset: int) -> int:
    """How many units, from the first on, point behind one another and before `end_offset`."""
    start = units["physical_offset"].astype(np.int64)
    size = units["record_bytes"].astype(np.int64)
    good = (size >= RECORD_BYTES_MIN) & (start >= 0) & (start <= end_offset - size)
    good[0] &= start[0] >= previous_end
    good[1:] &= start[1:] - start[:-1] >= size[:-1]
    return _good_count(good)


def _batches(store: Store, units: NumpyArray) -> Iterator[_Batch]:
    """Cuts units where the log file changes and where a batch has enough bytes."""
    if not len(units):
        return
    start = units["physical_offset"].astype(np.int64)
    bytes_before = np.concatenate(([0], np.cumsum(units["record_bytes"], dtype=np.int64)))
    file_index = np.searchsorted(store.log.firsts, start, side="right") - 1
    at = 0
    while at < len(units):
        if file_index[at] < 0:
            return
        limit = bytes_before[at] + BATCH_BYTES_MAX
        enough = int(np.searchsorted(bytes_before, limit, side="right")) - 1
        same_file = int(np.searchsorted(file_index, file_index[at], side="right"))
        near = int(np.searchsorted(start, start[at] + _SPAN_BYTES_MAX - BATCH_BYTES_MAX * 8))
        cut = max(at + 1, min(enough, same_file, near))
        yield _Batch(store.log.file(int(file_index[at])), units[at:cut])
        at = cut


def _checked(queue: Queue, batch: _Batch, first: int) -> Records:
    """The messages of a batch up to the first whose record is not its own."""
    file, units = batch.file, batch.units
    positions = units["physical_offset"].astype(np.int64) - file.first
    sizes = units["record_bytes"].astype(np.int64)
    fits = _good_count(positions + sizes <= file.size)
    heads = file.gather(positions[:fits], HEAD)
    good = (
        (heads["record_bytes"] == sizes[:fits])
        & (heads["magic"] == RECORD_MAGIC)
        & (heads["queue_id"] == queue.queue_id)
        & (heads["queue_offset"] == np.arange(first, first + fits))
        & (heads["physical_offset"] == units["physical_offset"][:fits])
    )
    records = _behind_hosts(queue.topic, batch, heads, positions, _good_count(good))
    return _with_text_positions(records, queue.topic.encode())


def _behind_hosts(
    topic: str, batch: _Batch, heads: NumpyArray, positions: NumpyArray, count: int
) -> Records:
    """Finds the fields that an IPv6 host moves; only then they are gathered a second time."""
    heads = heads[:count]
    sys_flag = heads["sys_flag"]
    born = np.full(count, HOST_V4_BYTES, np.int64)
    store = born
    behind, timestamps = heads, heads["store_timestamp"]
    if (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        born = born + np.where(sys_flag & BORN_HOST_V6, _V6_MORE_BYTES, 0)
        store = store + np.where(sys_flag & STORE_HOST_V6, _V6_MORE_BYTES, 0)
        more = born + store - 2 * HOST_V4_BYTES
        count = _good_count(heads["record_bytes"] >= RECORD_BYTES_MIN + more)
        heads, born, store = heads[:count], born[:count], store[:count]
        at = positions[:count] + BORN_HOST_AT + born
        timestamps = batch.file.gather(at, np.dtype(">i8"))
        behind = batch.file.gather(at + TIMESTAMP_BYTES + store, _TAIL)
    return Records(
        topic=topic,
        file=batch.file,
        units=batch.units[:count],
        positions=positions[:count],
        heads=heads,
        born_host_bytes=born,
        store_host_bytes=store,
        behind_hosts=behind,
        store_timestamps=timestamps,
        topic_positions=positions[:0],
        properties_bytes=positions[:0],
    )


def _with_text_positions(records: Records, topic: bytes) -> Records:
    """Checks topic and lengths; cuts at the first record where they are wrong."""
    sizes = records.record_bytes
    body_at = HEAD_BYTES - 2 * HOST_V4_BYTES + records.born_host_bytes + records.store_host_bytes
    room = sizes - body_at - 1 - len(topic) - 2
    body_bytes = records.body_bytes
    count = _good_count((body_bytes >= 0) & (body_bytes <= room))
    at = (records.positions + body_at + body_bytes)[:count]
    text = np.dtype((np.void, 1 + len(topic) + 2))
    ends = records.file.gather(at, text).view(np.uint8).reshape(count, text.itemsize)
    properties_bytes = (ends[:, -2].astype(np.int64) << 8) | ends[:, -1]
    expected = np.frombuffer(bytes([len(topic)]) + topic, np.uint8)
    good = (ends[:, :-2] == expected).all(axis=1) & (
        properties_bytes == (room - body_bytes)[:count]
    )
    count = _good_count(good)
    return replace(
        records,
        units=records.units[:count],
        positions=records.positions[:count],
        heads=records.heads[:count],
        born_host_bytes=records.born_host_bytes[:count],
        store_host_bytes=records.store_host_bytes[:count],
        behind_hosts=records.behind_hosts[:count],
        store_timestamps=records.store_timestamps[:count],
        topic_positions=at[:count],
        properties_bytes=properties_bytes[:count],
    )
