"""Message ids: where a record lies, and what a client calls its message."""

from datetime import datetime

import pytest

from protocol.host import pack_host, unpack_host
from protocol.message_id import (
    UniqueIds,
    is_offset_message_id,
    offset_message_id,
    parse_message_id,
)

CASES = [
    ("127.0.0.1", 20911, 0x63EB, "7F000001000051AF00000000000063EB"),
    ("::1", 20911, 7791, "00000000000000000000000000000001000051AF0000000000001E6F"),
]


@pytest.mark.parametrize(("ip", "port", "offset", "text"), CASES)
def test_an_offset_id_holds_host_and_offset(ip: str, port: int, offset: int, text: str) -> None:
    host = pack_host(ip, port)
    assert offset_message_id(host, offset) == text
    assert parse_message_id(text) == (host, offset)
    assert parse_message_id(text.lower()) == (host, offset)
    assert unpack_host(host) == (ip, port)


@pytest.mark.parametrize(
    "text", ["", "7F", "x" * 32, "7F000001000051AF 0000000000063EB", "0" * 34, "0" * 54]
)
def test_other_texts_are_not_offset_ids(text: str) -> None:
    with pytest.raises(ValueError, match=r"message id|hexadecimal"):
        parse_message_id(text)


def test_a_host_is_an_address_and_has_8_or_20_bytes() -> None:
    assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)
    with pytest.raises(ValueError, match="localhost"):
        pack_host("localhost", 1)
    with pytest.raises(ValueError, match="8 or 20"):
        unpack_host(bytes(9))


def unique_id(ip: str, pid: int) -> str:
    return UniqueIds(pack_host(ip, 0)[:-4], pid, 7, lambda: 1_795_189_404_413).next()


def test_unique_ids_and_offset_ids_are_distinguished() -> None:
    for ip in ("192.0.2.1", "2001:db8::1"):
        assert is_offset_message_id(offset_message_id(pack_host(ip, 10911), 1 << 40))
        for pid in (1, 65_535, 70_000):
            assert not is_offset_message_id(unique_id(ip, pid))
        assert not is_offset_message_id(offset_message_id(pack_host(ip, 0), 5))
        assert not is_offset_message_id(offset_message_id(pack_host(ip, 10911), -5))
    for text in ("", "123", "x" * 32, "01" * 17):
        assert not is_offset_message_id(text)


def test_unique_ids_count_up_and_hold_the_ms_of_the_month() -> None:
    now_ms = int(datetime(2026, 11, 20, 15, 0).timestamp() * 1000)
    month_ms = int(datetime(2026, 11, 1).timestamp() * 1000)
    ids = UniqueIds(bytes((192, 0, 2, 2)), 0x10224, 0x30946E09, lambda: now_ms)
    first, second = ids.next(), ids.next()
    assert first == f"C0000202022430946E09{now_ms - month_ms:08X}0000"
    assert second == first[:-4] + "0001"
    v6 = UniqueIds(bytes(16), 1, 2, lambda: now_ms)
    assert len(first) == 32 and len(v6.next()) == 56


def test_unique_ids_restart_each_month_and_stay_at_zero_if_the_clock_goes_back() -> None:
    moments = iter(
        int(moment.timestamp() * 1000)
        for moment in (
            datetime(2026, 12, 31, 23, 59, 59),
            datetime(2027, 1, 1, 0, 0, 1),
            datetime(2026, 12, 31, 23, 59, 59),
        )
    )
    ids = UniqueIds(bytes(4), 0, 0, lambda: next(moments))
    since = [int(ids.next()[20:28], 16) for _ in range(3)]
    assert since[1:] == [1000, 0]
    assert since[0] > 30 * 86_400_000


def test_the_count_wraps_after_16_bits() -> None:
    ids = UniqueIds(bytes(4), 0, 0, lambda: 1_795_189_404_413)
    last = [ids.next()[-4:] for _ in range(0x10001)][-2:]
    assert last == ["FFFF", "0000"]
