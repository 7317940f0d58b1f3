"""Stored numbers that no Java reads: which records have one, and what 4.9.7 does there."""

import pytest

from storage.dispatching.unreadable_numbers import has_unreadable_delay


@pytest.mark.parametrize(
    ("properties", "is_unreadable"),
    [
        (b"DELAY\x01 2", True),
        (b"a\x01b\x02DELAY\x011_0\x02c\x01d", True),
        (b"DELAY\x01" + b"9" * 30_000, True),
        (b"DELAY\x01+2", False),
        (b"DELAY\x01", False),
        (b"a\x01DELAY\x02DELAYED\x01x", False),
        (b"DELAY\x01x\x02DELAY\x012", False),
        (b"", False),
    ],
)
def test_a_delay_level_that_java_cannot_parse_is_detected(
    properties: bytes, is_unreadable: bool
) -> None:
    assert has_unreadable_delay(properties) is is_unreadable
