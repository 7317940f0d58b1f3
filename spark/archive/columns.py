"""The columns of an archive, and the conversion of archives in the first format.

An archive has the columns of a message and of its record. It lacks the stored body and the stored
properties, as their plain forms have the same content. The first format had those two, under other
names (spark/decoding/columns.py), but neither `msgId` nor plain bodies. `renewed` converts both
formats to the current columns.
"""

from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from protocol.codes import COMPRESSED
from protocol.host import host_of, pack_host
from protocol.message_id import offset_message_id
from spark.decoding.columns import COLUMNS, NAMES_OF_FORMAT_1, TIMESTAMP
from spark.decoding.decode import plain_body, with_plain
from spark.decoding.properties import PropertyTexts

ARCHIVE_COLUMNS = tuple(
    name for name in COLUMNS if name not in ("brokerName", "storedBody", "storedProperties")
)

ALL_DIFFERENT = ("body", "keys", "commitLogOffset", "msgId", "queueOffset", "uniqKey")
"""Columns without dictionary encoding, which lowers 8.4 to 6.9 s of CPU time per 1 M messages."""

_CRC_MASK = 0x7FFFFFFF


def is_renewed(table: pa.Table) -> bool:
    """Return whether a table has the current names; `queueId` is in every current archive."""
    return "queueId" in table.column_names


def renewed(table: pa.Table) -> pa.Table:
    """Return a table of either format with the current columns that it allows.

    In a table of the first format, `body` needs `sys_flag`, `bodyCrcOk` needs `body_crc`, and
    `msgId` needs host and offset.
    """
    if is_renewed(table):
        return table
    old = table.rename_columns(
        [NAMES_OF_FORMAT_1.get(name, name) for name in table.column_names]
    ).combine_chunks()
    columns = {name: old[name].combine_chunks() for name in old.column_names}
    for name in ("bornTimestamp", "storeTimestamp"):
        if name in columns:
            columns[name] = _times(columns[name])
    stored = columns.pop("storedBody", None)
    if stored is not None and "bodyCrc" in columns:
        columns["bodyCrcOk"] = _crc_ok(stored, columns["bodyCrc"])
    if stored is not None and "sysFlag" in columns:
        columns["body"] = _plain(stored, columns["sysFlag"])
    texts = columns.pop("storedProperties", None)
    if texts is not None:
        columns["properties"] = PropertyTexts(_unsliced(texts)).maps()
    if {"storeHost", "commitLogOffset"} <= columns.keys():
        columns["msgId"] = _msg_ids(columns["storeHost"], columns["commitLogOffset"])
    order = [name for name in (*COLUMNS, *old.column_names) if name in columns]
    return pa.table({name: columns[name] for name in order})


def _times(values: pa.Array) -> pa.Array:
    years = np.clip(values.to_numpy(), -62_135_596_800_000, 253_402_300_799_999)
    return pa.array(years * 1000, pa.int64()).cast(TIMESTAMP)


def _crc_ok(stored: pa.Array, crcs: pa.Array) -> pa.Array:
    pairs = zip(stored, crcs.to_pylist(), strict=True)
    return pa.array(
        [
            not len(body.as_buffer()) or crc32(body.as_buffer()) & _CRC_MASK == crc
            for body, crc in pairs
        ],
        pa.bool_(),
    )


def _plain(stored: pa.Array, sys_flags: pa.Array) -> pa.Array:
    flags = sys_flags.to_numpy()
    rows = np.flatnonzero(flags & COMPRESSED).tolist()
    plain = [plain_body(stored[row].as_py(), int(flags[row])) for row in rows]
    return with_plain(stored, rows, plain)


def _unsliced(values: pa.Array) -> pa.Array:
    return (
        pa.concat_arrays([values])
        if not values.offset
        else values.take(pa.array(np.arange(len(values))))
    )


def _msg_ids(store_hosts: pa.Array, offsets: pa.Array) -> pa.Array:
    packed = {
        text: pack_host(host_of(text), int(text.rpartition(":")[2]))
        for text in store_hosts.unique().to_pylist()
    }
    pairs = zip(store_hosts.to_pylist(), offsets.to_pylist(), strict=True)
    return pa.array([offset_message_id(packed[host], offset) for host, offset in pairs])
