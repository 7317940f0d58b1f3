"""The index of pending timers by due time."""

from random import Random

import pytest

from actors.delays import level_timers
from actors.delays.level_timers import TimerIndex

NOW_MS = 1_700_000_000_000


def taken(index: TimerIndex, now_ms: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while batch := index.take(now_ms, 100):
        assert len(batch) <= 100
        found += batch
    return found


@pytest.mark.parametrize("delay_ms", [1_000, 7_200_000, 366 * 86_400_000])
def test_timers_come_in_the_order_of_their_times(delay_ms: int) -> None:
    random = Random(delay_ms)
    index = TimerIndex(delay_ms)
    timers = [(NOW_MS + random.randrange(delay_ms), offset) for offset in range(3_000)]
    for due_ms, offset in timers:
        index.add(due_ms, offset)
    middle_ms = NOW_MS + delay_ms // 2
    assert (first_ms := index.next_due_ms) is not None and first_ms <= min(timers)[0]
    assert taken(index, middle_ms) == sorted(each for each in timers if each[0] <= middle_ms)
    assert taken(index, NOW_MS + delay_ms) == sorted(each for each in timers if each[0] > middle_ms)
    assert index.next_due_ms is None


def test_timer_is_not_taken_a_millisecond_early() -> None:
    index = TimerIndex(60_000)
    index.add(NOW_MS + 5, 1)
    assert index.take(NOW_MS + 4, 10) == []
    assert index.next_due_ms == NOW_MS + 5
    assert index.take(NOW_MS + 5, 10) == [(NOW_MS + 5, 1)]


def test_clock_that_goes_back_keeps_the_order_and_loses_nothing() -> None:
    index = TimerIndex(60_000)
    index.add(NOW_MS + 30_000, 1)
    assert index.take(NOW_MS + 20_000_000, 0) == []
    index.take(NOW_MS + 40_000, 10)
    index.add(NOW_MS + 50_000, 2)
    index.take(NOW_MS + 50_000 - 1, 10)
    index.add(NOW_MS + 5_000, 3)
    assert index.take(NOW_MS + 4_999, 10) == []
    assert taken(index, NOW_MS + 60_000) == [(NOW_MS + 5_000, 3), (NOW_MS + 50_000, 2)]


def test_timers_of_one_second_are_opened_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them, as at midnight, held the loop up for 0.1 s."""
    monkeypatch.setattr(level_timers, "OPENED_AT_ONCE", 100)
    index = TimerIndex(60_000)
    for offset in range(1_000):
        index.add(NOW_MS + 500 + offset % 2, offset)
    assert index.take(NOW_MS + 499, 10) == []
    assert len(index._open) == 100
    assert index.next_due_ms == NOW_MS, "it has to be called again"
    found = taken(index, NOW_MS + 501)
    assert sorted(offset for _, offset in found) == [*range(1_000)]
    assert index.next_due_ms is None
