"""Property text, as 4.9.7 reads and writes it."""

import pytest

from protocol.properties import KEYS, RESERVED_NAMES, TAGS, UNIQ_KEY, format, parse

CASES = [
    (b"", {}),
    (b"TAGS\x01d", {"TAGS": "d"}),
    (b"WAIT\x01true\x02TAGS\x01d", {"WAIT": "true", "TAGS": "d"}),
    ("städte\x01Köln, 東京 🚀".encode(), {"städte": "Köln, 東京 🚀"}),
    (b"a\x01b\x01c", {"a": "b\x01c"}),
    (b"KEYS\x01k1 k2", {"KEYS": "k1 k2"}),
]


@pytest.mark.parametrize(("text", "properties"), CASES)
def test_properties_are_pairs_without_a_trailing_separator(
    text: bytes, properties: dict[str, str]
) -> None:
    assert parse(text) == properties
    assert format(properties) == text
    assert list(parse(memoryview(text))) == list(properties)


ODD = [
    (b"TAGS\x01d\x02", {"TAGS": "d"}),
    (b"\x02\x02TAGS\x01d\x02\x02", {"TAGS": "d"}),
    (b"a\x01\x02b\x011", {"b": "1"}),
    (b"\x01v\x02b\x011", {"b": "1"}),
    (b"lonely\x02b\x011", {"b": "1"}),
    (b"U\x01old\x02U\x01new", {"U": "new"}),
    (b"a\x01\xff", {"a": "\ufffd"}),
]


@pytest.mark.parametrize(("text", "properties"), ODD)
def test_unusual_text_is_read_as_by_the_original(text: bytes, properties: dict[str, str]) -> None:
    assert parse(text) == properties


def test_reserved_names_are_those_of_the_original() -> None:
    assert {KEYS, TAGS, UNIQ_KEY, "RETRY_TOPIC", "INNER_MULTI_QUEUE_OFFSET"} <= RESERVED_NAMES
    assert " " not in RESERVED_NAMES and "PROPERTY_SEPARATOR" not in RESERVED_NAMES
