"""The marks of a sink's messages, and the body of its request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteError
from protocol.headers.own import SinkBatchHeader, SinkLaneHeader
from protocol.sink import (
    CHAIN_START,
    KEY_TIME,
    NO_TIME,
    SINK_MESSAGES_MAX,
    SinkMark,
    SinkMessage,
    chain_behind,
    decode_sink_body,
    encode_sink_body,
    is_query_name,
    parse_mark,
)

CHAIN = bytes(range(8))
MARK = SinkMark("2f0c-a_b.7", 3, 11, 42, CHAIN)

names = st.from_regex(r"[A-Za-z0-9_.\-]{1,128}", fullmatch=True)
longs = st.integers(0, 2**63 - 1)
chains = st.binary(min_size=8, max_size=8)


def test_a_mark_is_readable_text() -> None:
    assert MARK.text() == b"2f0c-a_b.7:3:11:42:0001020304050607"
    assert parse_mark(MARK.text()) == MARK


@pytest.mark.heavy
@given(names, longs, longs, longs, chains)
def test_every_mark_is_read_back(
    query: str, partition: int, batch: int, sequence: int, chain: bytes
) -> None:
    mark = SinkMark(query, partition, batch, sequence, chain)
    assert is_query_name(query)
    assert parse_mark(mark.text()) == mark


@pytest.mark.parametrize(
    "text",
    [b"", b"a:1:2:3", b"a:1:2:3:00", b"a:1:2:x:0001020304050607", b"a: 1:2:3:0001020304050607"],
)
def test_an_invalid_mark_is_ignored(text: bytes) -> None:
    assert parse_mark(text) is None


@pytest.mark.parametrize("name", ["", "a:b", "a b", "ä", "x" * 129, "a\x01b"])
def test_names_that_could_not_be_read_back_are_refused(name: str) -> None:
    assert not is_query_name(name)


def test_a_unique_key_looks_like_any_other_and_never_changes() -> None:
    key = MARK.unique_key("Orders")
    assert key == MARK.unique_key("Orders")
    assert len(key) == 32
    assert key == key.upper()
    assert key[KEY_TIME] == NO_TIME
    assert b"C0A80102279300000000946E09652E8C"[KEY_TIME] == b"946E0965"
    assert MARK._replace(chain=CHAIN_START).unique_key("Orders") == key
    others = [MARK._replace(partition=9), MARK._replace(batch=9), MARK._replace(sequence=9)]
    keys = {key, MARK.unique_key("Other"), *(each.unique_key("Orders") for each in others)}
    assert len(keys) == 5


def test_the_keys_of_two_versions_are_the_same() -> None:
    """Keys are stored in logs: another derivation would make repeats look new."""
    assert MARK.unique_key("Orders") == b"B9F105145C6A7B72078900000000E320"


def test_marks_follow_the_messages_own_properties() -> None:
    marks = b"UNIQ_KEY\x01%b\x02TROUPE_SINK\x01%b" % (MARK.unique_key("T"), MARK.text())
    assert MARK.properties(b"TAGS\x01a", "T") == b"TAGS\x01a\x02" + marks
    assert MARK.properties(b"", "T") == marks


def test_a_chain_depends_on_every_message_and_on_their_order() -> None:
    def of(*messages: tuple[int, bytes, bytes]) -> bytes:
        chain = CHAIN_START
        for message in messages:
            chain = chain_behind(chain, *message)
        return chain

    a, b = (0, b"a", b""), (0, b"b", b"")
    found = [of(), of(a), of(b), of(a, b), of(b, a), of((1, b"a", b"")), of((0, b"", b"a"))]
    assert len(set(found)) == len(found)


messages = st.builds(
    SinkMessage,
    st.integers(0, 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**63 - 1),
    chains,
    st.binary(max_size=40),
    st.binary(max_size=40),
)


@pytest.mark.heavy
@given(st.lists(messages, max_size=5))
def test_a_body_is_read_back_and_a_truncated_one_refused(
    sent: list[SinkMessage],
) -> None:
    body = encode_sink_body(sent)
    assert decode_sink_body(body) == sent
    ends = {len(encode_sink_body(sent[:count])) for count in range(len(sent) + 1)}
    for cut in set(range(len(body))) - ends:
        with pytest.raises(RemoteError, match="ends in the middle"):
            decode_sink_body(body[:cut])


def test_too_many_messages_are_refused() -> None:
    one = SinkMessage(0, 0, 0, CHAIN, b"", b"")
    assert len(decode_sink_body(encode_sink_body([one] * SINK_MESSAGES_MAX))) == SINK_MESSAGES_MAX
    with pytest.raises(RemoteError, match="more than 1024"):
        decode_sink_body(encode_sink_body([one] * (SINK_MESSAGES_MAX + 1)))


def test_a_negative_length_is_refused() -> None:
    body = bytearray(encode_sink_body([SinkMessage(0, 0, 0, CHAIN, b"", b"")]))
    body[24:28] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteError, match="below 0"):
        decode_sink_body(bytes(body))


FIELDS = {
    "query": "q",
    "partition": "0",
    "topic": "T",
    "batch": "0",
    "sequence": "0",
    "chain": CHAIN.hex(),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": "a:b"},
        {"partition": "-1"},
        {"batch": "-1"},
        {"sequence": "-2"},
        {"chain": "00"},
        {"chain": "z" * 16},
    ],
)
def test_an_invalid_header_is_refused(wrong: dict[str, str]) -> None:
    assert SinkBatchHeader.decode(FIELDS) == SinkBatchHeader("q", 0, "T", 0, 0, CHAIN.hex())
    assert SinkLaneHeader.decode(FIELDS) == SinkLaneHeader("q", 0, "T")
    with pytest.raises(RemoteError):
        SinkBatchHeader.decode(FIELDS | wrong)
