"""How many messages a second a group gets: the last minute, in samples of ten seconds."""

from actors.consume_rates import SAMPLE_MS, SAMPLES_MAX, ConsumeRates


def test_a_rate_is_that_of_the_last_minute() -> None:
    rates = ConsumeRates()
    assert rates.sample(0) == {}
    rates.note("g", "t", 30)
    rates.note("g", "u", 10)
    rates.note("g", "t", 30)
    assert rates.sample(SAMPLE_MS) == {"t@g": 6.0, "u@g": 1.0}
    assert rates.sample(2 * SAMPLE_MS) == {"t@g": 3.0, "u@g": 0.5}
    for number in range(3, SAMPLES_MAX):
        assert rates.sample(number * SAMPLE_MS)
    assert rates.sample(SAMPLES_MAX * SAMPLE_MS) == {}


def test_what_has_not_moved_for_a_minute_is_forgotten_and_counted_anew() -> None:
    rates = ConsumeRates()
    rates.note("g", "t", 30)
    for number in range(SAMPLES_MAX):
        rates.sample(number * SAMPLE_MS)
    rates.note("g", "t", 12)
    now_ms = SAMPLES_MAX * SAMPLE_MS
    found = rates.sample(now_ms)
    assert found == {"t@g": 12 * 1000 / ((SAMPLES_MAX - 1) * SAMPLE_MS)}


def test_two_samples_at_one_time_say_nothing() -> None:
    rates = ConsumeRates()
    rates.note("g", "t", 30)
    assert rates.sample(5) == {} == rates.sample(5)
