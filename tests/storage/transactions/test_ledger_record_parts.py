"""The ledger reads the fields of a record correctly, and inconsistent records raise errors."""

from dataclasses import replace

import pytest

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from protocol.message import MessageRecord, RecordError, decode_record, encode_record
from storage.transactions.ledger import born_host_at, head_at, properties_at, raw_at
from tests.support.puts import HOST, HOST_V6

BEFORE = 7
RECORD = MessageRecord(
    "Topic", b"body", b"UNIQ_KEY\x01K", 3, 5, 900, 1, 8, 1_600_000_000_000, HOST,
    1_700_000_000_000, HOST, 2, 400,
)  # fmt: skip


def encoded(born_host: bytes = HOST, store_host: bytes = HOST) -> tuple[MessageRecord, bytes]:
    flags = BORN_HOST_V6 * (born_host == HOST_V6) | STORE_HOST_V6 * (store_host == HOST_V6)
    data = encode_record(
        replace(RECORD, born_host=born_host, store_host=store_host, sys_flag=8 | flags)
    )
    return decode_record(data), data


@pytest.mark.parametrize("store_host", [HOST, HOST_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("born_host", [HOST, HOST_V6], ids=["v4", "v6"])
def test_the_parts_are_the_fields_of_the_record(born_host: bytes, store_host: bytes) -> None:
    record, data = encoded(born_host, store_host)
    size, view = len(data), memoryview(bytes(BEFORE) + data + b"more")
    head, body_at = head_at(view, BEFORE, 900, size)
    assert head == (
        size, 0xDAA320A7, record.body_crc, 3, 5, 900, record.sys_flag, 1_600_000_000_000, 400, 4,
    )  # fmt: skip
    assert bytes(view[body_at : body_at + 4]) == b"body"
    assert born_host_at(view, BEFORE) == born_host
    text_at = properties_at(view, body_at + 4, BEFORE + size)
    assert raw_at(view, text_at, BEFORE + size) == b"\x02UNIQ_KEY\x01K"


def test_another_record_at_the_offset_is_an_error() -> None:
    _, data = encoded()
    size, view = len(data), memoryview(data)
    for at, offset, length in ((0, 901, size), (0, 900, size + 1), (1, 900, size)):
        with pytest.raises(RecordError):
            head_at(view, at, offset, length)
    for cut in (0, 30, 80):
        with pytest.raises(RecordError):
            head_at(view[:cut], 0, 900, size)
    _, body_at = head_at(view, 0, 900, size)
    for wrong in (view[: body_at + 4], view[: body_at + 9]):
        with pytest.raises(RecordError):
            properties_at(wrong, body_at + 4, size)
    with pytest.raises(RecordError):
        properties_at(view, body_at + 4, size + 1)
