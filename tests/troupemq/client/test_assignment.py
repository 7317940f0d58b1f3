"""Every member works out the same shares."""

from collections.abc import Sequence

import pytest

from troupemq.client.assignment import averagely
from troupemq.client.message import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(8)]


@pytest.mark.parametrize(
    "member_count, shares",
    [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (8, [1] * 8)],
)
def test_shares_differ_by_one_at_most(member_count: int, shares: list[int]) -> None:
    assert [len(share) for share in all_shares(member_count)] == shares


@pytest.mark.parametrize("member_count", range(1, 12))
def test_every_queue_has_exactly_one_owner(member_count: int) -> None:
    owned = [queue for share in all_shares(member_count) for queue in share]
    assert owned == QUEUES


def test_more_members_than_queues_leave_some_without() -> None:
    assert all_shares(10)[8:] == [[], []]


def test_a_client_that_is_not_in_the_group_gets_nothing() -> None:
    assert not averagely("z", ["a", "b"], QUEUES)


def all_shares(member_count: int) -> list[Sequence[MessageQueue]]:
    members = [f"m{number:02}" for number in range(member_count)]
    return [list(averagely(member, members, QUEUES)) for member in members]
