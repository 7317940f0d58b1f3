"""Tests of actors/tables/tables.py: rates from the first and the last sample."""

from actors.tables.tables import Rates


def test_rates_are_those_between_the_first_and_the_last_sample() -> None:
    span = (1000, 10, 500, 1), (3000, 14, 900, 2)
    rates = Rates({"T": span}, {"T@g": span}, {"T@g": span}, span)
    assert rates.put("T") == rates.got("T@g") == (2.0, 200.0)
    assert rates.sent_back("T@g") == 4
    assert (rates.of_broker(is_put=True), rates.of_broker(is_put=False)) == (2.0, 0.0)


def test_one_sample_or_none_gives_no_rate() -> None:
    first = 1000, 10, 500, 1
    rates = Rates({"T": (first, first)})
    assert rates.put("T") == rates.put("unknown") == (0.0, 0.0)
    assert rates.sent_back("unknown") == 0
