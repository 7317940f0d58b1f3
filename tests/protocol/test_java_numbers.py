"""Numbers in text from outside, read as Java 17 reads them (each case was tried in jshell)."""

import pytest

from protocol.java_numbers import (
    CHARS_MAX,
    NumberFormatError,
    int_in,
    long_in,
    parse_double,
    parse_int,
    parse_long,
    plain_number,
)
from protocol.sql92.nodes import to_double

ARABIC_2, BENGALI_2, FULL_WIDTH_2 = "\u0662", "\u09e8", "\uff12"
NONE = ["", "+", "-", "+-2", "--2", " 2", "2 ", "\u00a02", "1_0", "2.0", "1e1", "0x2", "²", "２ "]
BEYOND = ["\U0001d7da", "\U00011068", "\u0de8", "\ua9f2", "2\0", "\ud835", "two", "1" * 4301]
"""Digits of planes above the first, and of scripts that Java 8 does not know yet."""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("2", 2), ("+2", 2), ("-2", -2), ("007", 7), ("-0", 0), ("0" * 200 + "9", 9)),
        *((ARABIC_2, 2), (BENGALI_2 + "3", 23), (FULL_WIDTH_2, 2), ("\u0660" * 30 + ARABIC_2, 2)),
        *(("2147483647", 2147483647), ("-2147483648", -2147483648)),
    ],
)
def test_texts_that_java_parses_as_an_int_are_read(text: str, number: int) -> None:
    assert parse_int(text) == int_in(text.encode()) == number
    assert parse_long(text) == long_in(text.encode()) == number


@pytest.mark.parametrize("text", NONE + BEYOND)
def test_texts_that_only_python_parses_are_refused_with_javas_text(text: str) -> None:
    with pytest.raises(NumberFormatError) as refused:
        parse_int(text)
    shown = text[:CHARS_MAX]
    assert str(refused.value) == f'java.lang.NumberFormatException: For input string: "{shown}"'
    with pytest.raises(NumberFormatError):
        parse_long(text)


def test_an_int_and_a_long_have_their_ranges() -> None:
    for text in ("2147483648", "-2147483649", "9" * 19):
        with pytest.raises(NumberFormatError):
            parse_int(text)
    assert parse_long("9223372036854775807") == (1 << 63) - 1
    assert parse_long("-9223372036854775808") == -(1 << 63)
    for text in ("9223372036854775808", "-9223372036854775809", "9" * 20):
        with pytest.raises(NumberFormatError):
            parse_long(text)


def test_bytes_that_are_not_utf_8_are_not_a_number() -> None:
    for raw in (b"\xff", b"2\xff", b"\xd9"):
        with pytest.raises(NumberFormatError):
            int_in(raw)


def test_plain_numbers_have_ascii_digits_and_a_limit() -> None:
    assert [plain_number(text) for text in ("0", "42", "9" * 18)] == [0, 42, int("9" * 18)]
    assert plain_number("65535", 65535) == 65535 and plain_number("65536", 65535) is None
    for text in ("", "-1", "+1", " 1", "²", ARABIC_2, "9" * 19, "1" * 5000):
        assert plain_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1.5", 1.5), (" 1.5\t", 1.5), ("1.", 1.0), (".5", 0.5), ("-1e3", -1000.0)),
        *(("2f", 2.0), ("2D", 2.0), ("0x1p3", 8.0), ("0x.8p1", 1.0), ("-Infinity", float("-inf"))),
        *(("1e999", float("inf")), ("0x1p99999", float("inf")), ("9" * 400, float("inf"))),
    ],
)
def test_doubles_are_read_as_java_reads_them(text: str, number: float) -> None:
    assert parse_double(text) == to_double(text) == number


@pytest.mark.parametrize(
    "text", ["", ".", "1_0", ARABIC_2, "nan", "inf", "0x1", "1e", "1..0", "e1"]
)
def test_a_double_that_java_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(NumberFormatError):
        parse_double(text)
