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

A unit's record is its own if magic, size, topic, queue id, queue offset and physical offset agree
and the lengths add up. `Queue.scan` passes over units without one, `Queue.records` ends there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES
from protocol.message import RECORD_MAGIC, TOPIC_BYTES_MAX
from spark.decoding.store_files import GAP_FILLER_BYTES, LogBytes, LogFile, NumpyArray, Store

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
    """Messages that lie behind one another in the same bytes; all arrays have one row each."""

    topic: str | None
    """Topic of all records; None if each may have another one."""

    file: LogBytes
    tags_codes: NumpyArray
    """Tags codes of the units; zeros without units."""

    positions: NumpyArray
    """First byte of each record in the file."""

    heads: NumpyArray
    """HEAD; with an IPv6 host among them the fields behind it are in `behind_hosts` instead."""

    born_host_bytes: NumpyArray
    store_host_bytes: NumpyArray
    behind_hosts: NumpyArray
    store_timestamps: NumpyArray
    topic_positions: NumpyArray
    """Positions of the topic's length byte, behind the body."""

    topic_bytes: NumpyArray
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

    def take(self, rows: NumpyArray | slice) -> "Records":
        """Return the records with these ascending numbers."""
        if isinstance(rows, slice) and rows == slice(None):
            return self
        return Records(self.topic, self.file, *(getattr(self, name)[rows] for name in _ARRAYS))


_ARRAYS = [field.name for field in fields(Records)[2:]]


@dataclass(frozen=True, slots=True)
class Scanned:
    """Units [first, first + count) of a queue, and those of their records that are whole."""

    first: int
    count: int
    records: Records | None
    """None: there is not one."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a store, and how far its records may be trusted."""

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
        """Return the first queue offset from `wanted` on whose record may exist.

        Gap fillers, and units of expired records, are skipped; None if nothing is left.
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
        """Return whether a unit exists that points into the log, correct or not."""
        files = self.store.queue(self.topic, self.queue_id)
        for _, units in files.chunks(queue_offset, queue_offset + 1):
            start, size, _ = units[0].tolist()
            return bool(size > 0 and 0 <= start < self.end_offset)
        return False

    def records(self, first: int, end: int | None = None) -> Iterator[Records]:
        """Yield batches of whole messages from `first` to `end`, or to a missing record.

        Both are queue offsets. A batch has at most 8192 rows and about 8 MiB (one message may be
        larger). Raises StoreError if a file is deleted meanwhile.
        """
        for part in self.scan(first, end):
            if part.records is None:
                return
            expected = np.arange(part.first, part.first + len(part.records))
            whole = _good_count(part.records.heads["queue_offset"] == expected)
            if whole:
                yield part.records.take(_up_to(whole, len(part.records)))
            if whole < part.count:
                return

    def scan(self, first: int, end: int | None = None) -> Iterator[Scanned]:
        """Yield the units from queue offset `first` up to `end`, with their complete records.

        In batches as those of `records`. Raises StoreError if a file is deleted meanwhile.
        """
        for queue_offset, units in self.store.queue(self.topic, self.queue_id).chunks(first, end):
            for at, cut, index in _cuts(self.store, units, self.end_offset):
                records = None
                if index >= 0:
                    file = self.store.log.file(index)
                    records = self._own(file, units[at:cut], queue_offset + at)
                found = records if records is not None and len(records) else None
                yield Scanned(queue_offset + at, cut - at, found)

    def _own(self, file: LogFile, units: NumpyArray, first: int) -> Records:
        starts = units["physical_offset"].astype(np.int64)
        queue_offsets = np.arange(first, first + len(units))

        def is_own(heads: NumpyArray, rows: NumpyArray | slice) -> NumpyArray:
            own: NumpyArray = (
                (heads["queue_id"] == self.queue_id)
                & (heads["queue_offset"] == queue_offsets[rows])
                & (heads["physical_offset"] == starts[rows])
            )
            return own

        sizes = units["record_bytes"].astype(np.int64)
        places = Places(starts - file.first, sizes, units["tags_code"])
        return whole_records(file, places, is_own, self.topic)


def _good_count(good: NumpyArray) -> int:
    """Return the number of true values before the first false one."""
    return len(good) if good.all() else int(np.argmin(good))


def _up_to(count: int, length: int) -> slice:
    return slice(None) if count == length else slice(count)


def _rows(good: NumpyArray) -> NumpyArray | slice:
    """Return the true rows, as an index without cost when all are true."""
    return slice(None) if good.all() else np.flatnonzero(good)


def _cuts(store: Store, units: NumpyArray, end_offset: int) -> Iterator[tuple[int, int, int]]:
    """Cut units where the log file changes, a batch has enough bytes, or they point backwards.

    Yields first, end and the number of the log file; -1 for units that point to no record.
    """
    start = units["physical_offset"].astype(np.int64)
    size = units["record_bytes"].astype(np.int64)
    file_index = np.searchsorted(store.log.firsts, start, side="right") - 1
    # `start` may be any number at all, and start + size must not overflow.
    may_be = (size >= RECORD_BYTES_MIN) & (start >= 0) & (start <= end_offset - size)
    file_index[~may_be] = -1
    size[~may_be] = 0
    bytes_before = np.concatenate(([0], np.cumsum(size)))
    changes = (np.diff(file_index) != 0) | ((start[1:] < start[:-1]) & may_be[1:])
    edges = np.append(np.flatnonzero(changes) + 1, len(units))
    at = 0
    for edge in edges.tolist():
        while at < edge:
            limit = bytes_before[at] + BATCH_BYTES_MAX
            enough = int(np.searchsorted(bytes_before, limit, side="right")) - 1
            cut = min(max(at + 1, enough), edge)
            if file_index[at] >= 0:
                span = start[at] + _SPAN_BYTES_MAX - BATCH_BYTES_MAX * 8
                near = at + int(np.searchsorted(start[at:cut], span))
                cut = max(at + 1, near)
            yield at, cut, int(file_index[at])
            at = cut


@dataclass(frozen=True, slots=True)
class Places:
    """Expected positions, sizes and tags codes of records in one log file."""

    positions: NumpyArray
    """Positions in ascending order."""

    sizes: NumpyArray
    """At least RECORD_BYTES_MIN."""

    tags_codes: NumpyArray

    def take(self, rows: NumpyArray | slice) -> "Places":
        return Places(self.positions[rows], self.sizes[rows], self.tags_codes[rows])


def whole_records(
    file: LogBytes,
    places: Places,
    is_own: Callable[[NumpyArray, NumpyArray | slice], NumpyArray],
    topic: str | None,
) -> Records:
    """Return the whole records at these places that `is_own` accepts.

    It receives their HEADs and row numbers. `topic` is None for any topic.
    """
    fit = _rows(places.positions + places.sizes <= file.size)
    places = places.take(fit)
    heads = file.gather(places.positions, HEAD)
    rows = _rows(
        (heads["record_bytes"] == places.sizes)
        & (heads["magic"] == RECORD_MAGIC)
        & is_own(heads, fit)
    )
    return _with_texts(_with_hosts(file, places.take(rows), heads[rows], topic))


def _with_hosts(file: LogBytes, places: Places, heads: NumpyArray, topic: str | None) -> Records:
    """Read the fields that an IPv6 host moves, gathered again only then."""
    sys_flag = heads["sys_flag"]
    born = np.full(len(heads), HOST_V4_BYTES, np.int64)
    store = born
    behind, timestamps = heads, heads["store_timestamp"]
    if (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        born = born + np.where(sys_flag & BORN_HOST_V6, _V6_MORE_BYTES, 0)
        store = store + np.where(sys_flag & STORE_HOST_V6, _V6_MORE_BYTES, 0)
        more = born + store - 2 * HOST_V4_BYTES
        rows = _rows(places.sizes >= RECORD_BYTES_MIN + more)
        heads, born, store, places = heads[rows], born[rows], store[rows], places.take(rows)
        at = places.positions + BORN_HOST_AT + born
        timestamps = file.gather(at, np.dtype(">i8"))
        behind = file.gather(at + TIMESTAMP_BYTES + store, _TAIL)
    return Records(
        topic=topic,
        file=file,
        tags_codes=places.tags_codes,
        positions=places.positions,
        heads=heads,
        born_host_bytes=born,
        store_host_bytes=store,
        behind_hosts=behind,
        store_timestamps=timestamps,
        topic_positions=places.positions,
        topic_bytes=places.positions,
        properties_bytes=places.positions,
    )


def _with_texts(records: Records) -> Records:
    """Omit records of another topic, or whose lengths contradict each other."""
    expected = None if records.topic is None else records.topic.encode()
    topic_bytes_min = len(expected or b"")
    body_at = HEAD_BYTES - 2 * HOST_V4_BYTES + records.born_host_bytes + records.store_host_bytes
    body_bytes = records.body_bytes
    room = records.record_bytes - body_at - body_bytes - 1 - topic_bytes_min - 2
    fit = _rows((body_bytes >= 0) & (room >= 0))
    records, room = records.take(fit), room[fit]
    at = (records.positions + body_at[fit]) + body_bytes[fit]
    data = records.file.bytes
    if expected is None:
        topic_bytes = data[at].astype(np.int64)
        room = room - topic_bytes
        good = (room >= 0) & (topic_bytes <= TOPIC_BYTES_MAX)
        lengths_at = np.where(good, at + 1 + topic_bytes, at)
        length = (data[lengths_at].astype(np.int64) << 8) | data[lengths_at + 1]
        good &= length == room
    else:
        text = np.dtype((np.void, 1 + len(expected) + 2))
        ends = records.file.gather(at, text).view(np.uint8).reshape(len(at), text.itemsize)
        length = (ends[:, -2].astype(np.int64) << 8) | ends[:, -1]
        named = np.frombuffer(bytes([len(expected)]) + expected, np.uint8)
        good = (ends[:, :-2] == named).all(axis=1) & (length == room)
        topic_bytes = np.full(len(at), len(expected), np.int64)
    records.topic_positions, records.topic_bytes, records.properties_bytes = at, topic_bytes, length
    records = records.take(_rows(good))
    return records.take(_rows(_stands_alone(records)))


def _stands_alone(records: Records) -> NumpyArray:
    """Return which records do not begin inside an earlier one.

    A body may resemble a record.
    """
    good = np.ones(len(records), np.bool_)
    if len(good) > 1:
        ends = np.maximum.accumulate(records.positions + records.record_bytes)
        good[1:] = records.positions[1:] >= ends[:-1]
    return good
