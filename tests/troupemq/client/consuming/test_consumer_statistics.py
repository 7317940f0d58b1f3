"""Rates and times of the last minute, under a clock wound by hand."""

from troupemq.client.consuming.consumer_statistics import ConsumerStatistics


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_rates_cover_the_last_minute_and_failures_the_last_hour() -> None:
    clock = Clock()
    statistics = ConsumerStatistics(clock)
    statistics.pulled("T", 0, 0)
    for _ in range(60):  # ten minutes: 32 messages a pull, two pulls and 60 calls each 10 s
        clock.now_ms += 10_000
        for _ in range(2):
            statistics.pulled("T", 32, 5.0)
        statistics.consumed("T", 60, 4, 30.0)
        statistics.sample()
    status = statistics.status("T")
    assert (status.pull_rt, status.pull_tps) == (5.0, 6.4)
    assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_tps) == (30.0, 6.0, 0.4)
    assert status.consume_failed_msgs == 240
    for _ in range(7):  # nothing for a minute: the time of a call is that of the hour
        clock.now_ms += 10_000
        statistics.sample()
    status = statistics.status("T")
    assert (status.pull_tps, status.consume_ok_tps, status.consume_rt) == (0.0, 0.0, 30.0)
    assert status.consume_failed_msgs == 240


def test_statistics_of_a_topic_without_messages_are_zero() -> None:
    assert ConsumerStatistics().status("T").pull_tps == 0.0
