"""The first message stored at a time or later."""

from collections.abc import Container

import pytest

from storage.reading.queue_times import NEVER, first_at_time

TIMES = [100, 100, 200, 300, 300, 500]


def search(
    timestamp: int,
    times: list[int],
    *,
    missing: Container[int] = (),
    near: int | None = None,
) -> int:
    def time_from(first: int, end: int) -> tuple[int, int] | None:
        for offset in range(first, end):
            if offset not in missing:
                return offset, times[offset]
        return end, NEVER

    return first_at_time(time_from, timestamp, 0, len(times), near)


@pytest.mark.parametrize(
    "timestamp, found",
    [(0, 0), (100, 0), (101, 2), (200, 2), (249, 3), (300, 3), (301, 5), (500, 5), (501, 6)],
)
def test_the_first_message_at_or_after_a_time_is_found(timestamp: int, found: int) -> None:
    assert search(timestamp, TIMES) == found


def test_the_first_of_several_messages_in_one_millisecond_is_found() -> None:
    """Any of them was: 34 in place of 10."""
    times = [1000] * 10 + [2000] * 50 + [3000] * 10
    assert [search(time, times) for time in (1000, 2000, 3000, 3001)] == [0, 10, 60, 70]


def test_a_search_in_an_empty_queue_finds_nothing() -> None:
    assert search(100, []) == 0


@pytest.mark.parametrize("near", range(-3, 9))
@pytest.mark.parametrize("timestamp", [0, 100, 150, 300, 400, 999])
def test_a_starting_hint_does_not_change_the_result(near: int, timestamp: int) -> None:
    assert search(timestamp, TIMES, near=near) == search(timestamp, TIMES)


@pytest.mark.parametrize("missing", [{50}, set(range(40, 60)), {0}, {99}, set(range(49, 100, 50))])
def test_an_unreadable_message_hides_no_other(missing: set[int]) -> None:
    """Unreadable messages right before the found one may be the right one."""
    times = [offset * 100 for offset in range(100)]
    for offset in range(100):
        wanted = offset
        while wanted > 0 and wanted - 1 in missing:
            wanted -= 1
        assert search(offset * 100, times, missing=missing) == wanted


def test_unreadable_neighbours_cause_no_message_to_be_skipped() -> None:
    """A long damaged part: what is behind it may have been stored since."""

    def time_from(first: int, end: int) -> tuple[int, int] | None:
        if first < 20:
            return first, first
        return (first, first) if first >= 90 else None

    assert first_at_time(time_from, 95, 0, 100) == 20
    assert first_at_time(time_from, 10, 0, 100) == 10


@pytest.mark.parametrize("low_at", range(1, 64))
def test_an_early_store_time_among_later_ones_skips_no_message(low_at: int) -> None:
    times = [1000 + offset for offset in range(64)]
    times[low_at] = 5
    assert search(1000, times) == 0


@pytest.mark.parametrize("back_ms", [10, 300])
def test_messages_stored_before_the_clock_went_back_are_found(back_ms: int) -> None:
    """Times of a store of 4.9.7 come twice."""
    times = [*range(1000, 1500), *range(1500 - back_ms, 2000)]
    for timestamp in (1000, 1200, 1500 - back_ms, 1499 - back_ms // 4, 1700):
        assert times[search(timestamp, times)] >= timestamp
        assert search(timestamp, times) == next(n for n, t in enumerate(times) if t >= timestamp)
