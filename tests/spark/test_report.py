"""Tables, durations and times in reports of jobs."""

import pytest

from spark.report import cell, duration, moment, text_table


def test_a_table_aligns_numbers_right_and_texts_left() -> None:
    rows = [{"topic": "Orders", "count": 12_345}, {"topic": "Pay", "count": 7}]
    assert [*text_table(rows, {"topic": "topic", "count": "messages"})] == [
        "topic   messages",
        "Orders    12,345",
        "Pay            7",
    ]


def test_a_table_without_rows_has_its_headings() -> None:
    assert [*text_table([], {"topic": "topic"})] == ["topic"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), ("", "-"), (0, "0"), (True, "yes"), (False, "no"), (1234.56, "1,234.6")],
)
def test_a_missing_value_is_a_dash(value: object, shown: str) -> None:
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("ms", "said"),
    [(20, "20 ms"), (999, "999 ms"), (1000, "1.0 s"), (90_000, "1.5 min"), (12_600_000, "3.5 h"),
     (86_400_000, "1.0 d"), (-2000, "-2.0 s")],
)  # fmt: skip
def test_a_duration_has_the_largest_unit_that_fits(ms: float, said: str) -> None:
    assert duration(ms) == said


def test_a_moment_is_utc_and_a_damaged_one_stays_a_number() -> None:
    assert moment(0) == "1970-01-01 00:00:00"
    assert moment(1 << 62) == str(1 << 62)
