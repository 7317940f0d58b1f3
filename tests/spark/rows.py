"""What the columns of spark/decode.py should hold, told from other sources than the decoder."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeAlias

from protocol.host import unpack_host
from protocol.message import MessageRecord
from protocol.properties import KEYS, TAGS, parse
from protocol.properties import UNIQ_KEY as UNIQUE_KEY

Row: TypeAlias = dict[str, Any]


def row_of_record(record: MessageRecord, tags_code: int = 0) -> Row:
    """The row of a message that a test has written itself."""
    named = {
        name: getattr(record, name)
        for name in [
            "topic",
            "queue_id",
            "queue_offset",
            "physical_offset",
            "record_bytes",
            "flag",
            "sys_flag",
            "born_timestamp",
            "store_timestamp",
            "reconsume_times",
            "prepared_transaction_offset",
            "body",
            "properties",
        ]
    }
    return {
        **named,
        "tags_code": tags_code,
        "born_host": _host(record.born_host),
        "store_host": _host(record.store_host),
        **_properties(record.properties),
        "day": _day(record.store_timestamp),
    }


def rows_of_manifest(manifest: Mapping[str, Any]) -> list[Row]:
    """The rows of a golden store, from what was recorded of it; bodies as their SHA-256."""
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
        rows.append(
            {
                "topic": record["topic"],
                "queue_id": record["queueId"],
                "queue_offset": record["queueOffset"],
                "physical_offset": record["commitLogOffset"],
                "record_bytes": record["storeSize"],
                "tags_code": tags_code,
                "flag": record["flag"],
                "sys_flag": record["sysFlag"],
                "body_crc": record["bodyCRC"],
                "born_timestamp": record["bornTimestamp"],
                "born_host": record["bornHost"],
                "store_timestamp": record["storeTimestamp"],
                "store_host": record["storeHost"],
                "reconsume_times": record["reconsumeTimes"],
                "prepared_transaction_offset": record["preparedTransactionOffset"],
                "body": record["rawBodySha256"],
                "properties": properties,
                **_properties(properties),
                "day": _day(record["storeTimestamp"]),
            }
        )
    return in_order(rows)


def with_hashed_bodies(rows: Iterable[Row]) -> list[Row]:
    """For the comparison with a golden store."""
    return [{**row, "body": sha256(row["body"]).hexdigest()} for row in rows]


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def _properties(raw: bytes) -> Row:
    properties = parse(raw)
    return {
        "keys": properties.get(KEYS),
        "tags": properties.get(TAGS),
        "uniq_key": properties.get(UNIQUE_KEY),
    }


def _host(packed: bytes) -> str:
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _day(timestamp_ms: int) -> Any:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()
