"""Checked records → Arrow record batches, column by column, without a loop over messages.

column                        type    what it is
topic                         string
queue_id                      int32
queue_offset                  int64   position in the queue
physical_offset               int64   position of the record in the commit log
record_bytes                  int32   of the whole record in the log
tags_code                     int64   of the consume queue unit
flag                          int32   the application's
sys_flag                      int32   bits of protocol/sysflag.py
body_crc                      int32   CRC-32 of `body`, 31 bits
born_timestamp                int64   ms since 1970, the producer's clock
born_host                     string  address:port, [address]:port for IPv6
store_timestamp               int64   ms since 1970, the broker's clock
store_host                    string
reconsume_times               int32
prepared_transaction_offset   int64
body                          binary  as stored: compressed where sys_flag says so
properties                    binary  the raw text, byte for byte
keys, tags, uniq_key          string  those properties; null if absent
day                           date32  UTC day of store_timestamp
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES, unpack_host
from protocol.properties import KEYS, TAGS
from protocol.properties import UNIQ_KEY as UNIQUE_KEY
from protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from spark.properties import PropertyTexts, slices
from spark.records import BORN_HOST_AT, HEAD, TIMESTAMP_BYTES, Records
from spark.store_files import NumpyArray

COLUMNS: dict[str, Any] = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "physical_offset": pa.int64(),
    "record_bytes": pa.int32(),
    "tags_code": pa.int64(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "body_crc": pa.int32(),
    "born_timestamp": pa.int64(),
    "born_host": pa.string(),
    "store_timestamp": pa.int64(),
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body": pa.binary(),
    "properties": pa.binary(),
    "keys": pa.string(),
    "tags": pa.string(),
    "uniq_key": pa.string(),
    "day": pa.date32(),
}

_PROPERTY_OF = {"keys": KEYS, "tags": TAGS, "uniq_key": UNIQUE_KEY}
_DAY_MS = 86_400_000
_DAY_MIN = -719_162  # 0001-01-01
_DAY_MAX = 2_932_896  # 9999-12-31; a head is under no checksum, and Spark knows no later date


def decode(records: Records, columns: Sequence[str] = tuple(COLUMNS)) -> pa.RecordBatch:
    """One batch with the named columns, in their order; only these are computed."""
    texts: list[PropertyTexts] = []
    arrays = [_column(records, name, texts) for name in columns]
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(records: Records, name: str, texts: list[PropertyTexts]) -> pa.Array:
    computed = _COMPUTED.get(name)
    if computed is not None:
        return computed(records)
    if name in _PROPERTY_OF:
        if not texts:
            texts.append(PropertyTexts(_properties(records)))
        return texts[0].column(_PROPERTY_OF[name])
    layout = HEAD.fields
    assert layout is not None and name in layout, name
    return _numbers(records.heads[name], COLUMNS[name])


def _numbers(values: NumpyArray, kind: Any) -> pa.Array:
    return pa.array(values.astype(kind.to_pandas_dtype()), kind)


def _topic(records: Records) -> pa.Array:
    return pa.repeat(pa.scalar(records.topic, pa.string()), len(records))


def _body(records: Records) -> pa.Array:
    lengths = records.body_bytes
    return slices(records.file.bytes, records.topic_positions - lengths, lengths)


def _properties(records: Records) -> pa.Array:
    starts = records.topic_positions + 1 + len(records.topic.encode()) + 2
    return slices(records.file.bytes, starts, records.properties_bytes)


def _day(records: Records) -> pa.Array:
    days = records.store_timestamps.astype(np.int64) // _DAY_MS
    return pa.array(np.clip(days, _DAY_MIN, _DAY_MAX).astype(np.int32), pa.date32())


def _born_host(records: Records) -> pa.Array:
    return _hosts(records, records.positions + BORN_HOST_AT, "born_host", BORN_HOST_V6)


def _store_host(records: Records) -> pa.Array:
    at = records.positions + BORN_HOST_AT + records.born_host_bytes + TIMESTAMP_BYTES
    return _hosts(records, at, "store_host", STORE_HOST_V6)


def _hosts(records: Records, at: NumpyArray, field: str, v6_bit: int) -> pa.Array:
    """Hosts as text. A batch has few different ones, so each is formatted once."""
    v6 = (records.heads["sys_flag"] & v6_bit) != 0
    if v6.any():
        # The widest layout: a v4 host's bytes are followed by others, which are cut off below.
        wide = records.file.gather(at, np.dtype((np.void, HOST_V6_BYTES)))
        sizes = np.where(v6, HOST_V6_BYTES, HOST_V4_BYTES)
        packed = [value.tobytes()[:size] for value, size in zip(wide, sizes, strict=True)]
        names = {host: host_text(host) for host in set(packed)}
        return pa.array([names[host] for host in packed], pa.string())
    moved = (records.heads["sys_flag"] & (BORN_HOST_V6 | STORE_HOST_V6)).any()
    values = records.file.gather(at, np.dtype(">u8")) if moved else records.heads[field]
    distinct, indices = np.unique(values, return_inverse=True)
    names_v4 = [host_text(int(value).to_bytes(HOST_V4_BYTES, "big")) for value in distinct]
    return pa.array(names_v4, pa.string()).take(pa.array(indices))


def host_text(packed: bytes) -> str:
    """address:port as people write it."""
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if len(packed) == HOST_V6_BYTES else f"{address}:{port}"


_COMPUTED: dict[str, Callable[[Records], pa.Array]] = {
    "topic": _topic,
    "tags_code": lambda records: _numbers(records.units["tags_code"], pa.int64()),
    "store_timestamp": lambda records: _numbers(records.store_timestamps, pa.int64()),
    "reconsume_times": lambda records: _numbers(
        records.behind_hosts["reconsume_times"], pa.int32()
    ),
    "prepared_transaction_offset": lambda records: _numbers(
        records.behind_hosts["prepared_transaction_offset"], pa.int64()
    ),
    "body": _body,
    "properties": _properties,
    "day": _day,
    "born_host": _born_host,
    "store_host": _store_host,
}
