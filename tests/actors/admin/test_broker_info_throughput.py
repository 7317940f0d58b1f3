"""Counts per second and per day."""

from actors.admin.broker_info import DailyTotals, Throughput


def test_a_counter_is_reported_per_second_for_each_window() -> None:
    throughput = Throughput()
    assert throughput.text(0) == "0.0 0.0 0.0"
    throughput.sample(0, (0, 0))
    assert throughput.text(0) == "0.0 0.0 0.0"
    for second in range(1, 31):
        throughput.sample(second * 1000, (second * 10, 0))
    assert throughput.text(0) == "10.0 10.0 10.0"
    for second in range(31, 41):
        throughput.sample(second * 1000, (300, 0))
    assert throughput.text(0) == "0.0 7.5 7.5"
    assert throughput.text(1) == "0.0 0.0 0.0"


def test_old_samples_are_dropped() -> None:
    throughput = Throughput()
    for second in range(2000):
        throughput.sample(second * 1000, (second if second < 1300 else 1300,))
    assert throughput.text(0) == "0.0 0.0 0.0"


def test_totals_are_recorded_at_the_start_of_a_day() -> None:
    totals = DailyTotals()
    totals.note("2024-05-01", 5)
    assert (totals.yesterday_morning, totals.today_morning) == (0, 0)
    totals.note("2024-05-02", 8)
    totals.note("2024-05-02", 9)
    assert (totals.yesterday_morning, totals.today_morning) == (0, 8)
    totals.note("2024-05-03", 20)
    assert (totals.yesterday_morning, totals.today_morning) == (8, 20)
