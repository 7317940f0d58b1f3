"""The parts of a record that the ledger of transactions reads: head fields and properties.

The layout is that of protocol/message.py.
"""

from struct import Struct
from struct import error as StructError
from typing import Any, Final

from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES
from protocol.message import (
    HEAD_START,
    HEADS,
    PROPERTIES_LENGTH,
    RECORD_MAGIC,
    SYS_FLAG_POSITION,
    RecordError,
)

_HOST_FLAGS_POSITION: Final = SYS_FLAG_POSITION + 3
"""Lowest byte of sys_flag, which has the host bits."""
_HOST_BYTES: Final = HOST_V4_BYTES, HOST_V6_BYTES


def _head_layout(born_host_bytes: int, store_host_bytes: int) -> Struct:
    return Struct(
        f"{HEAD_START.format}"
        "q"  # born_timestamp, ms
        f"{born_host_bytes}x"
        "8x"  # store_timestamp
        f"{store_host_bytes}x"
        "4x"  # reconsume_times
        "q"  # prepared_transaction_offset
        "i"  # body length
    )


_HEADS: Final = tuple(_head_layout(born, store) for store in _HOST_BYTES for born in _HOST_BYTES)
"""Layouts of the head with the fields for the ledger, by the two host bits of sys_flag."""
assert [head.size for head in _HEADS] == [head.size for head in HEADS]
_BORN_HOST_POSITION: Final = SYS_FLAG_POSITION + 12


def head_at(data: memoryview, at: int, offset: int, size: int) -> tuple[tuple[Any, ...], int]:
    """Return the head fields of the record that begins at `at`, and the start of its body.

    A MessageRecord would cost twice as much. Raise RecordError.
    """
    try:
        layout = _HEADS[data[at + _HOST_FLAGS_POSITION] >> 4 & 3]
        head = layout.unpack_from(data, at)
    except (IndexError, StructError):
        raise RecordError(f"the record at {offset} is cut off") from None
    if head[0] != size or head[1] != RECORD_MAGIC or head[5] != offset or head[9] < 0:
        raise RecordError(f"another record is at {offset}")
    return head, at + layout.size


def properties_at(data: memoryview, body_end: int, end: int) -> int:
    """Return the start of the properties in a record with these ends. Raise RecordError."""
    try:
        length_at = body_end + 1 + data[body_end]
        length = data[length_at] << 8 | data[length_at + 1]
    except IndexError:
        raise RecordError("the record is cut off") from None
    start = length_at + PROPERTIES_LENGTH.size
    if start + length != end:
        raise RecordError("the lengths of the record do not add up")
    return start


def raw_at(data: memoryview, start: int, end: int) -> bytes:
    """Return the properties behind 0x02, for `property_of`."""
    return b"\x02" + data[start:end]


def born_host_at(data: memoryview, at: int) -> bytes:
    """Return the packed born host of the record that begins at `at`."""
    start = at + _BORN_HOST_POSITION
    is_v6 = data[at + _HOST_FLAGS_POSITION] >> 4 & 1
    return bytes(data[start : start + _HOST_BYTES[is_v6]])
