"""Messages become records exactly as protocol/message.py writes them."""

import pytest

from protocol.message import (
    BLANK_MAGIC,
    SIZE_AND_MAGIC,
    MessageRecord,
    body_crc,
    decode_records,
    encode_record,
)
from storage.log.commit_log import (
    BatchPart,
    Group,
    Placed,
    PutBatch,
    PutRecord,
    blank,
    encode_groups,
    group_bytes_of,
)
from tests.support.puts import HOST, HOST_V6, batch, put

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("store_host, store_flag", [(HOST, 0), (HOST_V6, 0x20)])
@pytest.mark.parametrize("born_host, born_flag", [(HOST, 0), (HOST_V6, 0x10)])
def test_an_appended_record_equals_the_codecs_encoding(
    store_host: bytes, store_flag: int, born_host: bytes, born_flag: int
) -> None:
    record = put(
        b"some body",
        topic="Täg",
        queue_id=3,
        queue_offset=9,
        sys_flag=0x1,
        born_host=born_host,
        properties=b"TAGS\x01a",
        prepared_offset=77,
    )
    placed: list[Placed] = []
    pieces, _, end = encode_groups([record], 0, 5000, 1 << 20, NOW_MS, store_host, placed)
    expected = encode_record(
        MessageRecord(
            topic="Täg",
            body=b"some body",
            properties=b"TAGS\x01a",
            queue_id=3,
            queue_offset=9,
            physical_offset=5000,
            flag=7,
            sys_flag=0x1 | store_flag | born_flag,
            born_timestamp=1_600_000_000_000,
            born_host=born_host,
            store_timestamp=NOW_MS,
            store_host=store_host,
            prepared_transaction_offset=77,
            body_crc=body_crc(b"some body"),
        )
    )
    assert b"".join(pieces) == expected
    assert placed == [(5000, len(expected))]
    assert end == 5000 + len(expected)
    assert group_bytes_of(record, store_host) == len(expected)


def test_records_of_a_chunk_follow_each_other() -> None:
    both = batch(put(b"a"), put(b"bb"))
    groups: list[Group] = [both, put(b""), put(b"ccc")]
    placed: list[Placed] = []
    pieces, number, end = encode_groups(groups, 0, 0, 1 << 20, NOW_MS, HOST, placed)
    records = list(decode_records(b"".join(pieces)))
    assert [record.body for record in records] == [b"a", b"bb", b"", b"ccc"]
    places = [(each.physical_offset, each.record_bytes) for each in records]
    assert [(0, sum(places[1])), *places[2:]] == placed
    assert both.offsets == [offset for offset, _ in places[:2]]
    assert (number, end) == (3, sum(size for _, size in placed))


def test_an_append_needs_eight_bytes_more_for_the_blank() -> None:
    size = group_bytes_of(put(), HOST)
    for room, fits in [(size + 8, 1), (size + 7, 0)]:
        placed: list[Placed] = []
        pieces, number, end = encode_groups([put()], 0, 100, 100 + room, NOW_MS, HOST, placed)
        assert (number, len(placed), end) == (fits, fits, 100 + size * fits)
        assert bool(pieces) == bool(fits)


def test_a_batch_that_does_not_fit_is_omitted_whole() -> None:
    size = group_bytes_of(put(), HOST)
    groups: list[Group] = [put(), batch(put(), put()), put()]
    placed: list[Placed] = []
    pieces, number, end = encode_groups(groups, 0, 0, 3 * size, NOW_MS, HOST, placed)
    assert (number, end, placed) == (1, size, [(0, size)])
    assert len(b"".join(pieces)) == size


@pytest.mark.parametrize("store_host", [HOST, HOST_V6])
@pytest.mark.parametrize("born_host", [HOST, HOST_V6])
def test_a_batch_is_encoded_as_its_records_are(store_host: bytes, born_host: bytes) -> None:
    parts: list[BatchPart] = [
        (7, body_crc(b"one"), b"one", b"TAGS\x01a", b"\x02WAIT\x01true"),
        (-1, body_crc(b""), b"", b"", b"WAIT\x01true"),
    ]
    sent = PutBatch("Täg".encode(), 3, 9, 0x1, 5, born_host, 2, parts, 40, [0, 0], [(), ()])
    records = [
        PutRecord(sent.topic, 3, 9 + n, flag, 0x1, 5, born_host, 2, 0, body, own + behind, crc)
        for n, (flag, crc, body, own, behind) in enumerate(parts)
    ]
    sent.parts_bytes = sum(len(record.body) + len(record.properties) for record in records)
    size = group_bytes_of(sent, store_host)
    assert size == sum(group_bytes_of(record, store_host) for record in records)
    found = []
    for groups in ([sent], records):
        placed: list[Placed] = []
        pieces, number, end = encode_groups(
            groups, 0, 5000, 5000 + size + 8, NOW_MS, store_host, placed
        )
        assert (number, end) == (len(groups), 5000 + size)
        found.append(b"".join(pieces))
        offsets = [offset for offset, _ in placed]
        assert (offsets[0], sum(placed[-1])) == (5000, 5000 + size)
    assert found[0] == found[1]
    assert sent.offsets == offsets
    full = encode_groups([sent], 0, 5000, 5000 + size + 7, NOW_MS, store_host, [])
    assert full == ([], 0, 5000)


def test_blank_says_how_much_is_left() -> None:
    assert SIZE_AND_MAGIC.unpack(blank(65)) == (65, BLANK_MAGIC)


def test_a_topic_over_127_bytes_is_a_programming_error() -> None:
    with pytest.raises(ValueError):
        encode_groups([put(topic="t" * 128)], 0, 0, 1 << 20, NOW_MS, HOST, [])
