"""Checked records → Arrow record batches, column by column, without a loop over messages.

Only bodies are processed singly, if their CRC or decompressed form is requested. The columns are
those of spark/decoding/columns.py.

Bodies are as their producers sent them: decompressed, each within a limit. Clients of 4.9.7 write
ZLIB, newer ones may write LZ4 (frames) and ZSTD, whose codecs come with Arrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from protocol.codes import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZSTD,
    STORE_HOST_V6,
)
from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, decompress
from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES, host_text
from protocol.message_id import offset_message_id
from protocol.properties import KEYS, TAGS
from protocol.properties import UNIQ_KEY as UNIQUE_KEY
from spark.decoding.columns import COLUMNS, MESSAGE_COLUMNS, TIMESTAMP
from spark.decoding.properties import PropertyTexts, as_text, slices
from spark.decoding.records import BATCH_BYTES_MAX, BORN_HOST_AT, HEAD, TIMESTAMP_BYTES, Records
from spark.decoding.store_files import NumpyArray

_PIECE_BYTES = 1 << 20
_CODECS = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def plain_body(
    stored: bytes, sys_flag: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes | None:
    """Return a body without its compression.

    None if it is damaged, or longer than `max_bytes` then.
    """
    if not sys_flag & COMPRESSED:
        return stored
    if not stored:
        return None  # no codec writes nothing
    codec = _CODECS.get(sys_flag & COMPRESSION_TYPE_MASK)
    try:
        if codec is None:
            return decompress(stored, sys_flag, max_bytes)
        return _unfolded(stored, codec, max_bytes)
    except (CompressionError, OSError):
        return None


def _unfolded(stored: bytes, codec: str, max_bytes: int) -> bytes | None:
    """Return the body, None for a longer one.

    A read takes the memory that it asks for at once. `NativeFile.read` would not return it if the
    body is damaged.
    """
    parts: list[pa.Buffer] = []
    left = max_bytes + 1
    with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
        while left and (part := stream.read_buffer(min(_PIECE_BYTES, left))).size:
            parts.append(part)
            left -= part.size
    return b"".join(parts) if left else None


def with_plain(stored: pa.Array, rows: Sequence[int], plain: Sequence[bytes | None]) -> pa.Array:
    """Return the stored bodies, with `plain` in place of those of `rows` (ascending)."""
    if not rows:
        return stored
    order = list(range(len(stored)))
    for place, row in enumerate(rows):
        order[row] = len(stored) + place
    return pa.concat_arrays([stored, pa.array(plain, pa.binary())]).take(pa.array(order))


_CRC_MASK = 0x7FFFFFFF
_DAY_MS = 86_400_000
_DAY_MIN = -719_162  # 0001-01-01
_DAY_MAX = 2_932_896  # 9999-12-31; a head is under no checksum, and Spark knows no later date
_MS_MIN, _MS_MAX = _DAY_MIN * _DAY_MS, (_DAY_MAX + 1) * _DAY_MS - 1
_HEX: NumpyArray = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), ">u2")
"""The two digits of every byte."""


@dataclass(slots=True)
class Plain:
    """Bodies of a batch that are stored compressed: their rows, and what is in them."""

    rows: list[int]
    bodies: list[bytes | None]


def batches(
    records: Records,
    columns: Sequence[str] = tuple(MESSAGE_COLUMNS),
    broker_name: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the named columns in their order; only these are computed.

    One batch, or more where the decompressed bodies would make it longer than 8 MiB (one message
    may be larger).
    """
    if "body" not in columns:
        yield decode(records, columns, broker_name)
        return
    compressed = np.flatnonzero(records.heads["sys_flag"] & COMPRESSED)
    sys_flags = records.heads["sys_flag"][compressed].tolist()
    starts, ends = (edge[compressed].tolist() for edge in _body_edges(records))
    data = memoryview(records.file.map)
    first, size, plain = 0, 0, Plain([], [])
    for row, sys_flag, start, end in zip(compressed.tolist(), sys_flags, starts, ends, strict=True):
        body = plain_body(bytes(data[start:end]), sys_flag)
        size += len(body or b"")
        if size > BATCH_BYTES_MAX and row > first:
            yield decode(records.take(slice(first, row)), columns, broker_name, plain)
            first, size, plain = row, len(body or b""), Plain([], [])
        plain.rows.append(row - first)
        plain.bodies.append(body)
    yield decode(records.take(slice(first, len(records))), columns, broker_name, plain)


def decode(
    records: Records,
    columns: Sequence[str],
    broker_name: str | None = None,
    plain: Plain | None = None,
) -> pa.RecordBatch:
    """Return one batch; `plain` has the decompressed bodies for the column `body`."""
    source = _Source(records, broker_name, plain)
    arrays = [source.column(name) for name in columns]
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Source:
    """Columns of one batch; shared intermediate results are computed once."""

    def __init__(self, records: Records, broker_name: str | None, plain: Plain | None) -> None:
        self.records = records
        self.broker_name = broker_name
        self.plain = plain or Plain([], [])
        self._texts: PropertyTexts | None = None

    def column(self, name: str) -> pa.Array:
        computed = _COMPUTED.get(name)
        if computed is not None:
            return computed(self)
        return _numbers(self.records.heads[_FIELDS[name]], COLUMNS[name])

    @property
    def texts(self) -> PropertyTexts:
        if self._texts is None:
            self._texts = PropertyTexts(stored_properties(self.records))
        return self._texts

    def constant(self, value: str | None) -> pa.Array:
        return pa.repeat(pa.scalar(value, pa.string()), len(self.records))

    def body(self) -> pa.Array:
        return with_plain(_stored_body(self.records), self.plain.rows, self.plain.bodies)


_FIELDS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "commitLogOffset": "physical_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "recordBytes": "record_bytes",
    "bodyCrc": "body_crc",
}
"""Columns that are a field at a fixed place of the record."""
assert HEAD.fields is not None and set(_FIELDS.values()) <= HEAD.fields.keys()


def _numbers(values: NumpyArray, kind: Any) -> pa.Array:
    return pa.array(values.astype(kind.to_pandas_dtype()), kind)


def _times(values: NumpyArray) -> pa.Array:
    """Return times in ms since 1970, kept within the years that Spark knows."""
    times = np.clip(values.astype(np.int64), _MS_MIN, _MS_MAX) * 1000
    return pa.array(times, pa.int64()).cast(TIMESTAMP)


def _topic(source: _Source) -> pa.Array:
    records = source.records
    if records.topic is not None:
        return source.constant(records.topic)
    return as_text(slices(records.file.bytes, records.topic_positions + 1, records.topic_bytes))


def _body_edges(records: Records) -> tuple[NumpyArray, NumpyArray]:
    return records.topic_positions - records.body_bytes, records.topic_positions


def _stored_body(records: Records) -> pa.Array:
    start, end = _body_edges(records)
    return slices(records.file.bytes, start, end - start)


def _body_crc_ok(source: _Source) -> pa.Array:
    records = source.records
    data = memoryview(records.file.map)
    starts, ends = _body_edges(records)
    found = [
        crc32(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    wanted = records.heads["body_crc"].astype(np.int64)
    # As 4.9.7 has it, a body without bytes has nothing to check.
    return pa.array(((np.array(found, np.int64) & _CRC_MASK) == wanted) | (starts == ends))


def stored_properties(records: Records) -> pa.Array:
    """Return the property texts as they are stored."""
    starts = records.topic_positions + 1 + records.topic_bytes + 2
    return slices(records.file.bytes, starts, records.properties_bytes)


def _day(source: _Source) -> pa.Array:
    days = source.records.store_timestamps.astype(np.int64) // _DAY_MS
    return pa.array(np.clip(days, _DAY_MIN, _DAY_MAX).astype(np.int32), pa.date32())


def _born_host(source: _Source) -> pa.Array:
    records = source.records
    return _hosts(records, records.positions + BORN_HOST_AT, "born_host", BORN_HOST_V6)


def _store_host_at(records: Records) -> NumpyArray:
    at: NumpyArray = records.positions + BORN_HOST_AT + records.born_host_bytes + TIMESTAMP_BYTES
    return at


def _store_host(source: _Source) -> pa.Array:
    at = _store_host_at(source.records)
    return _hosts(source.records, at, "store_host", STORE_HOST_V6)


def _hosts(records: Records, at: NumpyArray, field: str, v6_bit: int) -> pa.Array:
    """Return hosts as text. A batch has few different ones, so each is formatted once."""
    v6 = (records.heads["sys_flag"] & v6_bit) != 0
    if v6.any():
        packed = _packed_hosts(records, at, v6)
        names = {host: host_text(host) for host in set(packed)}
        return pa.array([names[host] for host in packed], pa.string())
    moved = (records.heads["sys_flag"] & (BORN_HOST_V6 | STORE_HOST_V6)).any()
    values = records.file.gather(at, np.dtype(">u8")) if moved else records.heads[field]
    hosts = pa.array(values.astype("<u8")).dictionary_encode()
    names_v4 = [
        host_text(value.to_bytes(HOST_V4_BYTES, "big")) for value in hosts.dictionary.to_pylist()
    ]
    return pa.array(names_v4, pa.string()).take(hosts.indices)


def _packed_hosts(records: Records, at: NumpyArray, v6: NumpyArray) -> list[bytes]:
    # The widest layout: a v4 host's bytes are followed by others, which are cut off.
    wide = records.file.gather(at, np.dtype((np.void, HOST_V6_BYTES)))
    sizes = np.where(v6, HOST_V6_BYTES, HOST_V4_BYTES)
    return [value.tobytes()[:size] for value, size in zip(wide, sizes, strict=True)]


def _msg_id(source: _Source) -> pa.Array:
    """Return the packed store host and the offset as hexadecimal digits."""
    records = source.records
    offsets = records.heads["physical_offset"].astype(">i8")
    v6 = (records.heads["sys_flag"] & STORE_HOST_V6) != 0
    at = _store_host_at(records)
    if v6.any():
        hosts = _packed_hosts(records, at, v6)
        ids = [
            offset_message_id(host, offset)
            for host, offset in zip(hosts, offsets.tolist(), strict=True)
        ]
        return pa.array(ids, pa.string())
    packed = np.empty((len(records), 2 * HOST_V4_BYTES), np.uint8)
    packed[:, :HOST_V4_BYTES] = (
        records.file.gather(at, np.dtype((np.void, HOST_V4_BYTES)))
        .view(np.uint8)
        .reshape(-1, HOST_V4_BYTES)
    )
    packed[:, HOST_V4_BYTES:] = offsets.view(np.uint8).reshape(-1, HOST_V4_BYTES)
    digits = np.ascontiguousarray(_HEX[packed])
    edges = np.arange(len(records) + 1, dtype=np.int32) * (4 * HOST_V4_BYTES)
    return pa.Array.from_buffers(
        pa.string(), len(records), [None, pa.py_buffer(edges), pa.py_buffer(digits)]
    )


_COMPUTED: dict[str, Callable[[_Source], pa.Array]] = {
    "topic": _topic,
    "brokerName": lambda source: source.constant(source.broker_name),
    "msgId": _msg_id,
    "uniqKey": lambda source: source.texts.column(UNIQUE_KEY),
    "keys": lambda source: source.texts.column(KEYS),
    "tags": lambda source: source.texts.column(TAGS),
    "body": _Source.body,
    "bodyCrcOk": _body_crc_ok,
    "properties": lambda source: source.texts.maps(),
    "bornTimestamp": lambda source: _times(source.records.heads["born_timestamp"]),
    "storeTimestamp": lambda source: _times(source.records.store_timestamps),
    "bornHost": _born_host,
    "storeHost": _store_host,
    "reconsumeTimes": lambda source: _numbers(
        source.records.behind_hosts["reconsume_times"], pa.int32()
    ),
    "tagsCode": lambda source: _numbers(source.records.tags_codes, pa.int64()),
    "storedBody": lambda source: _stored_body(source.records),
    "storedProperties": lambda source: stored_properties(source.records),
    "preparedTransactionOffset": lambda source: _numbers(
        source.records.behind_hosts["prepared_transaction_offset"], pa.int64()
    ),
    "day": _day,
}
assert COLUMNS.keys() == _COMPUTED.keys() | _FIELDS.keys()
