"""Which message is nearest to a moment."""

import pytest

from storage.queues.time_search import nearest_in_time

TIMES = [100, 100, 200, 300, 300, 500]


def search(timestamp: int, *, min_physical: int = 0, count: int = len(TIMES)) -> int | None:
    return nearest_in_time(
        lambda offset: (offset * 10, 10, 0),
        lambda physical, *_: TIMES[physical // 10],
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


def with_gaps(
    timestamp: int, unreadable: set[int], holes: frozenset[int] = frozenset()
) -> int | None:
    """A message every 100 ms, from 0; some cannot be read, some have no unit."""
    return nearest_in_time(
        lambda offset: (0, 0, 0) if offset in holes else (offset * 10, 10, 0),
        lambda physical, size, _: -1 if not size or physical // 10 in unreadable else physical * 10,
        timestamp,
        0,
        0,
        99,
    )


@pytest.mark.parametrize("missing", [{50}, set(range(40, 60)), {0}, {99}, set(range(49, 100, 50))])
def test_what_cannot_be_read_hides_no_other_message(missing: set[int]) -> None:
    for offset in set(range(100)) - missing:
        assert with_gaps(offset * 100, missing) == offset
        assert with_gaps(offset * 100, set(), frozenset(missing)) == offset


def test_the_neighbours_stand_in_for_a_message_that_cannot_be_read() -> None:
    assert with_gaps(5_010, {50}) in (49, 51)
    assert with_gaps(5_450, set(range(50, 60))) == 49
    assert with_gaps(5_451, set(range(50, 60))) == 60
    assert with_gaps(0, set(range(5))) == 5
    assert with_gaps(10_000, set(range(95, 100))) == 94


def test_where_nothing_can_be_read_nothing_is_found() -> None:
    assert with_gaps(5, set(range(100))) is None
    assert nearest_in_time(lambda _: None, lambda *_: 1, 5, 0, 0, 9) == 0


def test_a_unit_that_points_before_the_log_alone_is_damaged_not_gone() -> None:
    units = {offset: (offset * 10 + 1000, 10, 0) for offset in range(10)} | {4: (7, 10, 0)}
    found = nearest_in_time(
        units.get, lambda physical, *_: physical if physical >= 1000 else -1, 1010, 1000, 0, 9
    )
    assert found == 1
