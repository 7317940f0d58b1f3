"""Message bodies that look like records of the commit log, as any sender can make them."""

from struct import pack, pack_into
from zlib import crc32

from protocol.message import HEAD_V4, MessageRecord, encode_record
from tests.support.brokers import SimulatedBroker


def next_body_at(made: SimulatedBroker) -> int:
    """Return the physical offset of the next message's body."""
    made.system.drain()
    return made.broker.store.commit_log.end_offset + HEAD_V4.size


def forged_record(
    at: int,
    topic: str,
    properties: bytes = b"",
    *,
    body: bytes = b"x",
    queue_offset: int = 0,
    queue_id: int = 0,
    beyond_bytes: int = 0,
) -> bytes:
    """A whole record if it lies at `at`; its properties reach so much further than it does."""
    record = MessageRecord(topic, body, properties, queue_id, queue_offset, at)
    record.body_crc = crc32(body) & 0x7FFFFFFF
    data = bytearray(encode_record(record))
    pack_into(">i", data, 0, len(data) + beyond_bytes)
    length_at = len(data) - len(properties) - 2
    data[length_at : length_at + 2] = pack(">h", len(properties) + beyond_bytes)
    return bytes(data)
