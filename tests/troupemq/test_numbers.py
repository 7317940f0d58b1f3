"""Tests of troupemq/numbers.py: what others call numbers."""

import pytest

from troupemq.numbers import finite, first_finite, odd_number, whole

LONG_MAX = (1 << 63) - 1
HUGE = 10**5000
"""Python refuses to write it out."""

NOT_WHOLE: tuple[object, ...] = (
    "",
    "x",
    "1.5",
    "1_0",
    " 1",
    "٢",
    "9" * 20,
    "1" * 5000,
    1.0,
    True,
    None,
    {},
)


@pytest.mark.parametrize("value", [0, -1, LONG_MAX, "0", "-7", str(LONG_MAX), -(1 << 63)])
def test_a_long_is_accepted_as_text(value: object) -> None:
    assert whole(value) == int(str(value))


def test_whole_refuses_values_that_are_not_a_long() -> None:
    assert [each for each in (*NOT_WHOLE, 1 << 63, HUGE) if whole(each) is not None] == []


def test_finite_refuses_texts_that_are_not_finite_numbers() -> None:
    for text in ("nan", "inf", "-inf", "1e400", "1e30", "", "x", "1" * 5000, None):
        assert finite(text) is None and first_finite(text) is None
    assert (finite("0.5"), first_finite("7.5 6.0 5"), first_finite("  ")) == (0.5, 7.5, None)


def test_an_out_of_range_number_is_described() -> None:
    assert [odd_number(float(each)) for each in ("nan", "inf", "1.5")] == ["nan", "inf", ""]
    assert odd_number(1 << 63) == "a number of 64 bits"
    assert odd_number(HUGE) == "a number of 16610 bits"
    assert [odd_number(each) for each in (LONG_MAX, True, "x", None)] == ["", "", "", ""]
