"""Tests of protocol/tags.py; those of the client compare it with recorded shares of 4.9.7."""

from collections.abc import Sequence

import pytest

from protocol.allocation import averagely, averagely_by_circle

MEMBERS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("queues", "run", "circle"),
    [
        (7, [[0, 1, 2], [3, 4], [5, 6]], [[0, 3, 6], [1, 4], [2, 5]]),
        (3, [[0], [1], [2]], [[0], [1], [2]]),
        (2, [[0], [1], []], [[0], [1], []]),
        (0, [[], [], []], [[], [], []]),
    ],
)
def test_every_queue_has_one_member(
    queues: int, run: list[list[int]], circle: list[list[int]]
) -> None:
    everything: Sequence[int] = range(queues)
    assert [[*averagely(each, MEMBERS, everything)] for each in MEMBERS] == run
    assert [[*averagely_by_circle(each, MEMBERS, everything)] for each in MEMBERS] == circle


def test_a_stranger_has_none() -> None:
    assert not averagely("d", MEMBERS, range(7))
    assert not averagely_by_circle("d", MEMBERS, range(7))
