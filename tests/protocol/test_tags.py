"""Java's hash, and expressions of tags."""

import pytest

from protocol.codes import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    ResponseCode,
    has_queue_unit,
    transaction_type,
)
from protocol.errors import RemoteError
from protocol.tags import TagFilter, java_hash_code, tags_code

HASHES = [
    ("", 0),
    ("a", 97),
    ("TagA", 2598919),
    ("AaAa", 2031744),
    ("BBBB", 2031744),
    ("polygenelubricants", -2147483648),
    ("é", 233),
    ("𝄞", 0xD834 * 31 + 0xDD1E),
    ("x𝄞東", ((120 * 31 + 0xD834) * 31 + 0xDD1E) * 31 + 0x6771),
]


@pytest.mark.parametrize(("text", "value"), HASHES)
def test_a_hash_runs_over_utf_16_units_in_32_bits(text: str, value: int) -> None:
    expected = (value + (1 << 31)) % (1 << 32) - (1 << 31)
    assert java_hash_code(text) == expected
    assert tags_code(text) == expected


def test_a_message_without_tags_has_code_0() -> None:
    assert tags_code(None) == tags_code("") == 0


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_a_missing_expression_matches_everything(expression: str | None) -> None:
    chosen = TagFilter.parse(expression)
    assert chosen.codes is None
    assert chosen.matches(0) and chosen.matches(-5)


def test_an_expression_names_tags_between_bars() -> None:
    chosen = TagFilter.parse(" TagA||\tTagB || ")
    assert chosen.tags == {"TagA", "TagB"}
    assert chosen.matches(2598919) and not chosen.matches(0)


def test_only_the_low_32_bits_are_compared() -> None:
    chosen = TagFilter.parse("polygenelubricants")
    assert chosen.matches(-2147483648)
    assert chosen.matches(2147483648)
    assert chosen.matches(-2147483648 & (1 << 64) - 1)


def test_tags_with_equal_hashes_are_not_distinguished() -> None:
    assert TagFilter.parse("AaAa").matches(tags_code("BBBB"))


def test_blanks_between_bars_match_nothing_and_bars_alone_are_an_error() -> None:
    assert TagFilter.parse(" || ").codes == frozenset()
    with pytest.raises(RemoteError) as caught:
        TagFilter.parse("||")
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_only_prepared_and_rolled_back_records_have_no_queue_unit() -> None:
    assert has_queue_unit(0) and has_queue_unit(TRANSACTION_COMMIT | 0x3)
    assert not has_queue_unit(TRANSACTION_PREPARED | 0x1)
    assert not has_queue_unit(TRANSACTION_ROLLBACK)
    assert transaction_type(0x301 | TRANSACTION_PREPARED) == TRANSACTION_PREPARED
