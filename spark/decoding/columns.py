"""The columns of a message in a table, with their names in older archives.

column            Arrow type           what it is
topic             string
brokerName        string               of the broker whose store it is; null if unknown
queueId           int32
queueOffset       int64                position in the queue
commitLogOffset   int64                position of the record in the commit log
msgId             string               the broker's: store host and commitLogOffset, hexadecimal
uniqKey           string               the client's id, UNIQ_KEY of the properties; null without one
keys, tags        string               those properties; null without one
body              binary               as its producer gave it; null where it cannot be decompressed
bodyCrcOk         bool                 whether the stored body has its CRC-32
flag              int32                the application's
sysFlag           int32                bits of protocol/codes.py, as stored
properties        map<string, string>  in the order of the text
bornTimestamp     timestamp, UTC       the producer's clock
storeTimestamp    timestamp, UTC       the broker's clock
bornHost          string               address:port, [address]:port for IPv6
storeHost         string
reconsumeTimes    int32

Columns of the record itself are returned on request:

recordBytes                 int32      of the whole record in the log
tagsCode                    int64      of the consume queue unit; 0 if read by file
bodyCrc                     int32      CRC-32 of the stored body, 31 bits
storedBody                  binary     as stored: compressed where sysFlag says so
storedProperties            binary     the raw text, byte for byte
preparedTransactionOffset   int64
day                         date32     UTC day of storeTimestamp
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from storage.errors import StoreError

TIMESTAMP = pa.timestamp("us", "UTC")

MESSAGE_COLUMNS: dict[str, Any] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "commitLogOffset": pa.int64(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "bodyCrcOk": pa.bool_(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
}

RECORD_COLUMNS: dict[str, Any] = {
    "recordBytes": pa.int32(),
    "tagsCode": pa.int64(),
    "bodyCrc": pa.int32(),
    "storedBody": pa.binary(),
    "storedProperties": pa.binary(),
    "preparedTransactionOffset": pa.int64(),
    "day": pa.date32(),
}

COLUMNS = {**MESSAGE_COLUMNS, **RECORD_COLUMNS}

NAMES_OF_FORMAT_1 = {
    "queue_id": "queueId",
    "queue_offset": "queueOffset",
    "physical_offset": "commitLogOffset",
    "record_bytes": "recordBytes",
    "tags_code": "tagsCode",
    "sys_flag": "sysFlag",
    "body_crc": "bodyCrc",
    "born_timestamp": "bornTimestamp",
    "born_host": "bornHost",
    "store_timestamp": "storeTimestamp",
    "store_host": "storeHost",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
    "uniq_key": "uniqKey",
    "body": "storedBody",
    "properties": "storedProperties",
}
"""Column names of the first archive format; other names are the same in both."""

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


def sql_schema(names: Sequence[str] = tuple(MESSAGE_COLUMNS)) -> str:
    """Return the declaration of the named columns in Spark's SQL."""
    return ", ".join(f"{name} {_SQL_TYPES[COLUMNS[name]]}" for name in names)


def check_columns(names: Sequence[str], sql_types: Sequence[str]) -> None:
    """Check that each column exists with this type. Raises StoreError."""
    for name, wanted in zip(names, sql_types, strict=True):
        if name not in COLUMNS:
            raise StoreError(f"a message has no column {name}; it has {', '.join(COLUMNS)}")
        kind = _SQL_TYPES[COLUMNS[name]]
        if wanted != kind:
            raise StoreError(f"column {name} is {kind}, not {wanted}: declare it as {name} {kind}")
