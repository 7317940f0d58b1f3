"""Which message is nearest to a moment."""

import pytest

from storage.time_search import nearest_in_time

TIMES = [100, 100, 200, 300, 300, 500]


def search(timestamp: int, *, min_physical: int = 0, count: int = len(TIMES)) -> int | None:
    return nearest_in_time(
        lambda offset: (offset * 10, 10, 0),
        lambda physical, _: TIMES[physical // 10],
        timestamp,
        min_physical,
        0,
        count - 1,
    )


@pytest.mark.parametrize(
    "timestamp, found",
    [(0, 0), (99, 0), (200, 2), (249, 2), (250, 2), (251, 3), (400, 4), (401, 5), (999, 5)],
)
def test_the_nearer_message_wins_and_the_earlier_of_two(timestamp: int, found: int) -> None:
    assert search(timestamp) == found


def test_an_exact_match_is_any_message_of_that_time() -> None:
    assert search(100) in (0, 1)
    assert search(300) in (3, 4)


def test_messages_that_are_gone_are_not_found() -> None:
    assert search(0, min_physical=30) == 3
    assert search(0, min_physical=1000) is None


def test_nothing_is_found_among_nothing() -> None:
    assert search(100, count=0) is None


def test_a_record_that_cannot_be_read_ends_the_search_at_the_beginning() -> None:
    assert nearest_in_time(lambda n: (n, 1, 0), lambda *_: -1, 5, 0, 0, 9) == 0
    assert nearest_in_time(lambda _: None, lambda *_: 1, 5, 0, 0, 9) == 0
