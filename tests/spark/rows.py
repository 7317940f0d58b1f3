"""Rows with the columns of spark/decoding/columns.py, from other sources than the decoder."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, TypeAlias
from zlib import crc32

from protocol.compression import decompress
from protocol.host import pack_host, unpack_host
from protocol.message import MessageRecord
from protocol.message_id import offset_message_id
from protocol.properties import KEYS, TAGS, parse
from protocol.properties import UNIQ_KEY as UNIQUE_KEY
from spark.decoding.columns import COLUMNS, MESSAGE_COLUMNS

Row: TypeAlias = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_of_record(record: MessageRecord, tags_code: int = 0, broker_name: str | None = None) -> Row:
    """Return the row of a message that a test has written, decoded field by field."""
    crc = crc32(record.body) & 0x7FFFFFFF
    row = {
        "topic": record.topic,
        "brokerName": broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "msgId": offset_message_id(record.store_host, record.physical_offset),
        "body": decompress(record.body, record.sys_flag),
        "bodyCrcOk": True,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": moment(record.born_timestamp),
        "storeTimestamp": moment(record.store_timestamp),
        "bornHost": _host(record.born_host),
        "storeHost": _host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "recordBytes": record.record_bytes,
        "tagsCode": tags_code,
        "bodyCrc": crc,
        "storedBody": record.body,
        "storedProperties": record.properties,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "day": _day(record.store_timestamp),
        **_properties(record.properties),
    }
    return {name: row[name] for name in COLUMNS}


def rows_of_manifest(manifest: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a golden store from its manifest, stored bodies as their SHA-256.

    The manifest has no `body`, as it records no compressed contents.
    """
    tags_codes = {
        (name, unit[0]): unit[3]
        for name, units in manifest["consumeQueues"].items()
        for unit in units
    }
    rows = []
    for record in manifest["rawRecords"]:
        tags_code = tags_codes.get(
            (f"{record['topic']}/{record['queueId']}", record["queueOffset"])
        )
        if tags_code is None:
            continue  # in no queue
        properties = record["propertiesRaw"].encode()
        store_host, _, store_port = record["storeHost"].rpartition(":")
        packed = pack_host(store_host.strip("[]"), int(store_port))
        row = {
            "topic": record["topic"],
            "brokerName": None,
            "queueId": record["queueId"],
            "queueOffset": record["queueOffset"],
            "commitLogOffset": record["commitLogOffset"],
            "msgId": offset_message_id(packed, record["commitLogOffset"]),
            "bodyCrcOk": True,
            "flag": record["flag"],
            "sysFlag": record["sysFlag"],
            "bornTimestamp": moment(record["bornTimestamp"]),
            "storeTimestamp": moment(record["storeTimestamp"]),
            "bornHost": record["bornHost"],
            "storeHost": record["storeHost"],
            "reconsumeTimes": record["reconsumeTimes"],
            "recordBytes": record["storeSize"],
            "tagsCode": tags_code,
            "bodyCrc": record["bodyCRC"],
            "storedBody": record["rawBodySha256"],
            "storedProperties": properties,
            "preparedTransactionOffset": record["preparedTransactionOffset"],
            "day": _day(record["storeTimestamp"]),
            **_properties(properties),
        }
        rows.append({name: row[name] for name in COLUMNS if name in row})
    return in_order(rows)


def with_hashed_bodies(rows: Iterable[Row]) -> list[Row]:
    """Return rows with bodies as their SHA-256, to compare with a golden store."""
    hashed = [{**row, "storedBody": sha256(row["storedBody"]).hexdigest()} for row in rows]
    return [{name: row[name] for name in row if name != "body"} for row in hashed]


def message_rows(rows: Iterable[Row]) -> list[Row]:
    """Return only the columns of a message, the default of the data source."""
    return [{name: row[name] for name in MESSAGE_COLUMNS} for row in rows]


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def moment(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)


def _properties(raw: bytes) -> Row:
    properties = parse(raw)
    return {
        "keys": properties.get(KEYS),
        "tags": properties.get(TAGS),
        "uniqKey": properties.get(UNIQUE_KEY),
        "properties": list(properties.items()),
    }


def _host(packed: bytes) -> str:
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _day(timestamp_ms: int) -> Any:
    return moment(timestamp_ms).date()
