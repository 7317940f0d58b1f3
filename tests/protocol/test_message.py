"""Message records: both host lengths, and every way a record can be broken."""

from dataclasses import replace
from struct import pack

import pytest

from protocol.host import pack_host
from protocol.message import (
    BLANK_MAGIC,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    MessageRecord,
    RecordError,
    decode_record,
    decode_records,
    encode_record,
    scan_head,
)
from tests.protocol.vectors import RECORD_V4, RECORD_V6

LOOPBACK = pack_host("127.0.0.1", 20911)
V4 = MessageRecord(
    topic="RMQ_SYS_TRANS_OP_HALF_TOPIC",
    body=b"1",
    properties=b"WAIT\x01true\x02TAGS\x01d",
    queue_offset=1,
    physical_offset=133642,
    born_timestamp=1795189466606,
    born_host=LOOPBACK,
    store_timestamp=1795189466621,
    store_host=LOOPBACK,
    body_crc=64810935,
    record_bytes=135,
)
V6 = MessageRecord(
    topic="GS_T2",
    body=b"\x00\x01\x02",
    properties=b"UNIQ_KEY\x01FD000000000000000000000000000002324130946E09653F49080020"
    b"\x02CLUSTER\x01DefaultCluster",
    queue_offset=5,
    physical_offset=7791,
    sys_flag=0x30,
    born_timestamp=1795189846280,
    born_host=pack_host("::1", 42750),
    store_timestamp=1795189846282,
    store_host=pack_host("::1", 20911),
    body_crc=139757951,
    record_bytes=211,
)
CASES = {"IPv4": (V4, RECORD_V4), "IPv6": (V6, RECORD_V6)}


@pytest.mark.parametrize(("record", "data"), CASES.values(), ids=CASES.keys())
def test_a_record_is_read_and_written_as_by_the_original(
    record: MessageRecord, data: bytes
) -> None:
    assert encode_record(record) == data
    for buffer in (data, bytearray(data), memoryview(data)):
        assert decode_record(buffer) == record
    assert decode_record(b"junk" + data + b"trailing", 4) == record


@pytest.mark.parametrize(("record", "data"), CASES.values(), ids=CASES.keys())
def test_the_head_has_all_fields_that_dispatch_needs(record: MessageRecord, data: bytes) -> None:
    head = scan_head(b"xx" + data, 2)
    assert (head.record_bytes, head.magic) == (record.record_bytes, RECORD_MAGIC)
    assert (head.queue_id, head.queue_offset) == (record.queue_id, record.queue_offset)
    assert (head.physical_offset, head.sys_flag) == (record.physical_offset, record.sys_flag)
    assert head.store_timestamp == record.store_timestamp
    assert head.prepared_transaction_offset == record.prepared_transaction_offset
    assert (head.topic, head.properties) == (record.topic.encode(), record.properties)


@pytest.mark.parametrize("sys_flag", [0x00, 0x10, 0x20, 0x30])
def test_born_and_store_host_have_separate_lengths(sys_flag: int) -> None:
    v4, v6 = pack_host("1.2.3.4", 5), pack_host("fd00::9", 6)
    record = MessageRecord(
        "t",
        b"body",
        sys_flag=sys_flag,
        born_host=v6 if sys_flag & 0x10 else v4,
        store_host=v6 if sys_flag & 0x20 else v4,
    )
    data = encode_record(record)
    assert len(data) == 91 + len("body") + len("t") + 12 * (sys_flag >> 4 & 3).bit_count()
    back = decode_record(data)
    assert (back.born_host, back.store_host) == (record.born_host, record.store_host)


def test_the_smallest_record_has_91_bytes() -> None:
    assert len(encode_record(MessageRecord("", b""))) == RECORD_BYTES_MIN == 91


def test_a_pull_answer_is_records_in_a_row() -> None:
    assert list(decode_records(RECORD_V4 + RECORD_V6)) == [V4, V6]
    assert list(decode_records(b"")) == []
    with pytest.raises(RecordError):
        list(decode_records(RECORD_V4 + RECORD_V6[:-1]))


def broken(position: int, data: bytes) -> bytes:
    return RECORD_V4[:position] + data + RECORD_V4[position + len(data) :]


BROKEN = {
    "nothing": b"",
    "zeros": bytes(200),
    "a cut head": RECORD_V4[:50],
    "a cut tail": RECORD_V4[:-1],
    "a size too small": broken(0, pack(">i", 40)),
    "a size too large": broken(0, pack(">i", 4000)),
    "a size one too small": broken(0, pack(">i", 134)),
    "a negative size": broken(0, pack(">i", -135)),
    "another magic": broken(4, pack(">I", RECORD_MAGIC + 1)),
    "a body longer than the record": broken(84, pack(">i", 100)),
    "a negative body": broken(84, pack(">i", -1)),
    "a long topic": broken(89, b"\x60"),
    "a negative topic length": broken(89, b"\x80"),
    "properties that do not reach the end": broken(117, pack(">h", 5)),
    "negative properties": broken(117, pack(">h", -1)),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_a_record_with_contradictory_lengths_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(data)
    with pytest.raises(RecordError):
        scan_head(data, 0)


def test_a_flipped_body_bit_is_found_unless_the_check_is_off() -> None:
    data = broken(88, b"2")
    with pytest.raises(RecordError, match="CRC"):
        decode_record(data)
    assert decode_record(data, check_crc=False).body == b"2"
    assert scan_head(data, 0).record_bytes == len(data)


def test_the_blank_at_a_files_end_is_distinguished() -> None:
    blank = pack(">iI", 4321, BLANK_MAGIC)
    head = scan_head(blank, 0)
    assert (head.record_bytes, head.magic) == (4321, BLANK_MAGIC)
    with pytest.raises(RecordError):
        decode_record(blank + bytes(100))


def test_values_out_of_a_records_range_are_refused() -> None:
    for record in (
        replace(V4, topic="t" * 128),
        replace(V4, properties=b"x" * 32_768),
        replace(V4, born_host=pack_host("::1", 1)),
        replace(V4, store_host=pack_host("::1", 1)),
        replace(V4, queue_id=1 << 31),
    ):
        with pytest.raises(RecordError):
            encode_record(record)
