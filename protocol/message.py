"""The message record, stored in the commit log and returned unchanged by pulls.

All integers big-endian.  H is 8 bytes for an IPv4 host and 20 for an IPv6 one; bits 0x10 and 0x20
of sys_flag say which, for the born host and the store host.  Offsets below are for two IPv4 hosts.

    offset  size  type   field
    0       4     i32    record_bytes                 whole record, this field included
    4       4     u32    magic                        0xDAA320A7; 0xCBD43194 for BLANK
    8       4     i32    body_crc                     CRC-32 of the stored body, 31 bits
    12      4     i32    queue_id
    16      4     i32    flag                         the application's own
    20      8     i64    queue_offset                 counts messages of the queue
    28      8     i64    physical_offset              first byte of this record in the log
    36      4     i32    sys_flag
    40      8     i64    born_timestamp               ms
    48      H     bytes  born_host
    56      8     i64    store_timestamp              ms
    64      H     bytes  store_host
    72      4     i32    reconsume_times
    76      8     i64    prepared_transaction_offset
    84      4     i32    body length, then the body
    88+n    1     u8     topic length (at most 127), then the topic, UTF-8
    89+n+t  2     i16    properties length, then their text, UTF-8

BLANK fills the end of a log file: `i32 remaining bytes | u32 0xCBD43194`, the rest untouched.

Source: store/CommitLog.java (MessageExtEncoder, calMsgLength), common/message/MessageDecoder.java.

The body's CRC is masked to 31 bits because RocketMQ keeps it in a signed int and never wants a
negative one (common/UtilAll.java, crc32). CRC-32C (Castagnoli) is for manifests and other files of
our own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias
from zlib import crc32

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6

_31_BITS = 0x7FFFFFFF


def body_crc(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of a stored body, compressed or not, without its highest bit."""
    return crc32(data) & _31_BITS


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """Return the unsigned CRC-32C of `data`, continuing from `previous`."""
    return _castagnoli()(bytes(data), previous)


@cache
def _castagnoli() -> Callable[[bytes, int], int]:
    # Imported here, since readers of records, such as Spark workers, may lack the package.
    from crcmod.predefined import mkPredefinedCrcFun  # type: ignore[import-untyped]

    function: Callable[[bytes, int], int] = mkPredefinedCrcFun("crc-32c")
    return function


RECORD_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
TOPIC_BYTES_MAX = 127

Buffer: TypeAlias = bytes | bytearray | memoryview


HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
"""Host bits of sys_flag; without them both hosts have IPv4 addresses."""


def _head(born_host_bytes: int, store_host_bytes: int, *, whole: bool = True) -> Struct:
    i, q, s = ("i", "q", "s") if whole else ("4x", "8x", "x")
    return Struct(
        ">i"  # record_bytes
        "I"  # magic
        "i"  # body_crc
        "i"  # queue_id
        f"{i}"  # flag
        "q"  # queue_offset
        "q"  # physical_offset
        "i"  # sys_flag
        f"{q}"  # born_timestamp, ms
        f"{born_host_bytes}{s}"
        "q"  # store_timestamp, ms
        f"{store_host_bytes}{s}"
        f"{i}"  # reconsume_times
        f"{q}"  # prepared_transaction_offset
        "i"  # body length
    )


_HOSTS = (8, 8), (20, 8), (8, 20), (20, 20)
HEADS = tuple(_head(born, store) for born, store in _HOSTS)
"""Heads by the two host bits of sys_flag: `HEADS[sys_flag >> 4 & 3]`."""
HEAD_V4, HEAD_V6 = HEADS[0], HEADS[-1]
SCAN_HEADS = tuple(_head(born, store, whole=False) for born, store in _HOSTS)
"""Heads without flag, born_timestamp, hosts, reconsume_times, prepared_transaction_offset."""
assert BORN_HOST_V6 == 1 << 4 and STORE_HOST_V6 == 2 << 4
assert HEAD_V4.size == 88 and HEAD_V6.size == 112

HEAD_START = Struct(
    ">i"  # record_bytes
    "I"  # magic
    "i"  # body_crc
    "i"  # queue_id
    "4x"  # flag
    "q"  # queue_offset
    "q"  # physical_offset
    "i"  # sys_flag
)
"""First fields of every head, independent of its hosts."""
SIZE_AND_MAGIC = Struct(">iI")
PROPERTIES_LENGTH = Struct(">h")
BLANK_BYTES = SIZE_AND_MAGIC.size
SYS_FLAG_POSITION = Struct(">iIiiiqq").size
QUEUE_OFFSET_POSITION = Struct(">iIiii").size
PHYSICAL_OFFSET_POSITION = Struct(">iIiiiq").size
_SYS_FLAG = Struct(">i")
_TOPIC_LENGTH_BYTES = 1
LENGTH_FIELDS_BYTES = _TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH.size
"""Bytes of both length fields, of topic and properties."""
RECORD_BYTES_MIN = HEAD_V4.size + LENGTH_FIELDS_BYTES
assert (QUEUE_OFFSET_POSITION, PHYSICAL_OFFSET_POSITION, SYS_FLAG_POSITION) == (20, 28, 36)
assert RECORD_BYTES_MIN == 91


class RecordError(ValueError):
    """Bytes that are not a whole, intact record."""


@dataclass(slots=True)
class MessageRecord:
    """One stored message. `body` is as stored (compressed, if sys_flag says so)."""

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_timestamp: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    record_bytes: int = 0


class RecordHead(NamedTuple):
    """Fields of a record for recovery and dispatch, without its body."""

    record_bytes: int
    magic: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    prepared_transaction_offset: int
    topic: bytes
    properties: bytes


def encode_record(record: MessageRecord) -> bytes:
    """Return the bytes of a record; size and body CRC are computed.

    Raises RecordError if topic or properties are too long for their length fields, or if a host's
    size does not agree with sys_flag.
    """
    topic = record.topic.encode("utf-8", "replace")
    properties = record.properties
    sys_flag = record.sys_flag
    head = HEADS[sys_flag >> 4 & 3]
    if len(topic) > TOPIC_BYTES_MAX:
        raise RecordError(f"a topic of {len(topic)} bytes; at most {TOPIC_BYTES_MAX}")
    born_host_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
    store_host_bytes = 20 if sys_flag & STORE_HOST_V6 else 8
    if len(record.born_host) != born_host_bytes or len(record.store_host) != store_host_bytes:
        raise RecordError("the host bits of sys_flag do not agree with the hosts")
    body = record.body
    try:
        properties_length = PROPERTIES_LENGTH.pack(len(properties))
        packed = head.pack(
            head.size + len(body) + LENGTH_FIELDS_BYTES + len(topic) + len(properties),
            RECORD_MAGIC,
            body_crc(body),
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            sys_flag,
            record.born_timestamp,
            record.born_host,
            record.store_timestamp,
            record.store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(body),
        )
    except StructError as error:
        raise RecordError(f"a field does not fit the record: {error}") from None
    topic_length = bytes((len(topic),))
    return b"".join((packed, body, topic_length, topic, properties_length, properties))


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> MessageRecord:
    """Return the record at `position`.

    Raises RecordError for a BLANK, a wrong magic, lengths that do not add up, a truncated record,
    and, unless told not to check, a body with a wrong CRC.
    """
    try:
        head = HEADS[_SYS_FLAG.unpack_from(buffer, position + SYS_FLAG_POSITION)[0] >> 4 & 3]
        (
            record_bytes,
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        ) = head.unpack_from(buffer, position)
    except StructError:
        raise RecordError(f"a record at {position} is cut off") from None
    body_start = position + head.size
    topic_start, properties_start = _tail(
        buffer, position, record_bytes, magic, body_start, body_length
    )
    body = bytes(buffer[body_start : body_start + body_length])
    if check_crc and body_length and body_crc(body) != crc:
        raise RecordError(f"the body of the record at {position} does not have its CRC")
    topic = bytes(buffer[topic_start : properties_start - PROPERTIES_LENGTH.size])
    return MessageRecord(
        topic.decode("utf-8", "replace"),
        body,
        bytes(buffer[properties_start : position + record_bytes]),
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        crc,
        record_bytes,
    )


def decode_records(body: Buffer) -> Iterator[MessageRecord]:
    """Return every record of a pull answer. Raises RecordError for an invalid one."""
    position = 0
    while position < len(body):
        record = decode_record(body, position)
        position += record.record_bytes
        yield record


def scan_head(buffer: Buffer, position: int) -> RecordHead:
    """Return size, magic and dispatch fields of the record at `position`, without reading its body.

    For a BLANK only size and magic are set. Raises RecordError for anything that is not a record,
    zeros included. The body's CRC is not checked.
    """
    try:
        record_bytes, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic == BLANK_MAGIC:
            return RecordHead(record_bytes, magic, 0, 0, 0, 0, 0, 0, b"", b"")
        head = HEADS[_SYS_FLAG.unpack_from(buffer, position + SYS_FLAG_POSITION)[0] >> 4 & 3]
        fields = head.unpack_from(buffer, position)
    except StructError:
        raise RecordError(f"a record at {position} is cut off") from None
    body_start = position + head.size
    topic_start, properties_start = _tail(
        buffer, position, record_bytes, magic, body_start, fields[14]
    )
    return RecordHead(
        record_bytes,
        magic,
        fields[3],
        fields[5],
        fields[6],
        fields[7],
        fields[10],
        fields[13],
        bytes(buffer[topic_start : properties_start - PROPERTIES_LENGTH.size]),
        bytes(buffer[properties_start : position + record_bytes]),
    )


def _tail(
    buffer: Buffer, position: int, record_bytes: int, magic: int, body_start: int, body_length: int
) -> tuple[int, int]:
    """Validate a record; return the starts of topic and properties."""
    end = position + record_bytes
    if magic != RECORD_MAGIC:
        raise RecordError(f"no record at {position}: magic {magic:08x}")
    if body_length < 0 or record_bytes < RECORD_BYTES_MIN or end > len(buffer):
        raise RecordError(f"the lengths of the record at {position} cannot be true")
    topic_at = body_start + body_length
    if topic_at + LENGTH_FIELDS_BYTES > end:
        raise RecordError(f"the lengths of the record at {position} do not add up")
    topic_start = topic_at + _TOPIC_LENGTH_BYTES
    properties_at = topic_start + buffer[topic_at]
    properties_start = properties_at + PROPERTIES_LENGTH.size
    if buffer[topic_at] > TOPIC_BYTES_MAX or properties_start > end:
        raise RecordError(f"the topic of the record at {position} is too long")
    if PROPERTIES_LENGTH.unpack_from(buffer, properties_at)[0] != end - properties_start:
        raise RecordError(f"the lengths of the record at {position} do not add up")
    return topic_start, properties_start
