"""Tests of protocol/properties_file.py: Java's properties format."""

import pytest

from protocol.properties_file import format_properties, parse_properties, updated_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a\t=\tb", {"a": "b"}),
        ("a==b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a=b  ", {"a": "b"}),
        ("# a=b\n! c=d\n\n   \ne=f", {"e": "f"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=b\nc=d\na=e", {"a": "e", "c": "d"}),
        ("a=b\\\n   c\\\n  d\ne=f", {"a": "bcd", "e": "f"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=C:\\\\store\\tx\\u00e9", {"a": "C:\\store\txé"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"}),
    ],
)
def test_properties_are_parsed_as_in_java(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


@pytest.mark.parametrize(
    "text", ["a=\\u12", "a=\\uxyzw", "a=\\u0x1f", "a=\\u 12f", "a=\\ud800", "a=\\ude00\\ud83d"]
)
def test_a_broken_unicode_escape_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_properties(text)


@pytest.mark.parametrize(
    "value", ["", " a ", "a\\b", "a\nb=c", "é\tx", "a=b:c", "# no comment", "\U0001f600"]
)
def test_a_written_value_is_read_back(value: str) -> None:
    written = updated_properties("x=1\n", {"key": value})
    assert parse_properties(written) == {"x": "1", "key": value.rstrip(" ")}
    assert parse_properties(format_properties({"key": value})) == {"key": value.rstrip(" ")}


@pytest.mark.parametrize(
    ("text", "updated"),
    [
        ("", "k=v\n"),
        ("a=1", "a=1\nk=v\n"),
        ("# k=1\nk = 1\n", "# k=1\nk = v\n"),
        ("k=1\na=2\nk:3\n\n# end", "k=1\na=2\nk=v\n\n# end\n"),
        ("k=1\\\n  2\na=3\n", "k=v\n\na=3\n"),
        ("# k=1\\\nk=2\n", "# k=1\\\nk=v\n"),
        ("a=1;\\\n", "a=1;\\\n\nk=v\n"),
        ("a=1;\\\n  ", "a=1;\\\n  \nk=v\n"),
        ("a=1;\\", "a=1;\\\n\nk=v\n"),
        ("a=1\\\\\n", "a=1\\\\\nk=v\n"),
        ("k=1\\\n", "k=v\n\n"),
        ("# a\\", "# a\\\nk=v\n"),
    ],
)
def test_a_setting_is_changed_in_its_line(text: str, updated: str) -> None:
    assert updated_properties(text, {"k": "v"}) == updated
    found = parse_properties(updated)
    assert found == {**parse_properties(text), "k": "v"}


def test_each_written_setting_is_one_line() -> None:
    assert format_properties({"a": "1", "b": "true"}) == "a=1\nb=true\n"


def test_written_settings_are_ascii() -> None:
    assert format_properties({"key": "\xe9\U0001f600"}) == "key=\\u00e9\\ud83d\\ude00\n"
