"""Java's hash of keys: the fast way beside the plain one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.index.key_hash import (
    FAST_BYTES_MAX,
    TopicHashes,
    extend_hash,
    java_hash,
)

quick = settings(deadline=None, database=None, max_examples=300)


def plain_hash(text: str) -> int:
    """String.hashCode as Java's documentation has it."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + high * 256 + low) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def plain_index_hash(topic: str, key: str) -> int:
    value = abs(plain_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


@pytest.mark.parametrize(
    "text, value",
    [("", 0), ("a", 97), ("TagA", 2598919), ("AaAa", 2031744), ("BBBB", 2031744), ("ü", 252)],
)
def test_known_keys_have_their_known_hashes(text: str, value: int) -> None:
    assert java_hash(text.encode()) == plain_hash(text) == value


@pytest.mark.heavy
@quick
@given(st.text(st.characters(codec="utf-8"), max_size=600))
def test_any_text_hashes_as_in_java(text: str) -> None:
    assert java_hash(text.encode()) == plain_hash(text)


@pytest.mark.heavy
@quick
@given(st.text("0123456789ABCDEF", min_size=28, max_size=60), st.text("abcXYZ_-%|09", min_size=1))
def test_unique_keys_hash_as_in_java(key: str, topic: str) -> None:
    hashes = TopicHashes()
    for counter in ("0000", "0001", "FFFF"):
        wanted = plain_index_hash(topic, key + counter)
        assert hashes.index_hash(topic.encode(), (key + counter).encode()) == wanted


@pytest.mark.heavy
@quick
@given(st.binary(max_size=80))
def test_broken_text_hashes_as_java_reads_it(data: bytes) -> None:
    assert java_hash(data) == plain_hash(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("length", [0, 1, FAST_BYTES_MAX, FAST_BYTES_MAX + 1, 5000])
def test_a_long_key_hashes_in_pieces_to_the_same_value(length: int) -> None:
    text = "k0Z " * (length // 4) + "x" * (length % 4)
    assert java_hash(text.encode()) == plain_hash(text)


def test_a_hash_can_be_continued_from_another() -> None:
    assert extend_hash(extend_hash(0, b"order#"), b"\x00\x7f9") == plain_hash("order#\x00\x7f9") % (
        1 << 32
    )


def test_the_one_hash_that_stays_negative_counts_as_zero() -> None:
    key = key_with_hash("T#", 1 << 31)
    assert plain_hash(f"T#{key}") == -(1 << 31)
    assert TopicHashes().index_hash(b"T", key.encode()) == 0
    for value in (1, (1 << 31) - 1, (1 << 31) + 1, (1 << 32) - 1):
        key = key_with_hash("T#", value)
        assert TopicHashes().index_hash(b"T", key.encode()) == plain_index_hash("T", key) > 0


def key_with_hash(head: str, value: int) -> str:
    """Seven characters that give `head` and them this (unsigned) hash: its digits in base 31."""
    rest = (value - plain_hash(head + "0" * 7)) % (1 << 32)
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(chr(ord("0") + digit))
    return "".join(reversed(digits))
