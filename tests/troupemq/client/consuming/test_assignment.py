"""Every member works out the same shares."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from troupemq.client.consuming.assignment import (
    Assignment,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
)
from troupemq.client.message import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(8)]


@pytest.mark.parametrize(
    "member_count, shares",
    [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (8, [1] * 8)],
)
def test_the_number_of_queues_per_member_differs_by_at_most_one(
    member_count: int, shares: list[int]
) -> None:
    assert [len(share) for share in all_shares(member_count)] == shares


@pytest.mark.parametrize("member_count", range(1, 12))
def test_every_queue_has_exactly_one_owner(member_count: int) -> None:
    owned = [queue for share in all_shares(member_count) for queue in share]
    assert owned == QUEUES


def test_extra_members_get_no_queue() -> None:
    assert all_shares(10)[8:] == [[], []]


def test_a_client_outside_the_group_gets_no_queue() -> None:
    assert not averagely("z", ["a", "b"], QUEUES)


def all_shares(member_count: int) -> list[Sequence[MessageQueue]]:
    members = [f"m{number:02}" for number in range(member_count)]
    return [list(averagely(member, members, QUEUES)) for member in members]


VECTORS = Path(__file__).with_name("allocations.json")
"""Answers of the official 4.9.7 client (tests/compat/java, Allocations), written by
tests/compat/test_python_allocation.py."""


def rule_of(question: dict[str, Any]) -> Assignment:
    rules: dict[str, Assignment] = {
        "averagely": averagely,
        "averagely_by_circle": averagely_by_circle,
        "consistent_hash": consistent_hash(),
        "by_machine_room": by_machine_room(question["rooms"]),
    }
    return rules[question["strategy"]]


def answer_of(question: dict[str, Any]) -> list[int]:
    """The indexes of the queues that `member` gets."""
    queues = sorted(MessageQueue(*each) for each in question["queues"])
    given = rule_of(question)(question["member"], sorted(question["members"]), queues)
    return [queues.index(queue) for queue in given]


@pytest.mark.parametrize("number", range(80))
def test_each_strategy_equals_the_official_clients(number: int) -> None:
    vector = json.loads(VECTORS.read_text())[number]
    assert answer_of(vector) == vector["answer"]


def test_a_configured_assignment_is_applied_per_topic() -> None:
    other = MessageQueue("U", "b", 0)
    rule = by_config([QUEUES[3], other])
    assert list(rule("a", ["a", "b"], QUEUES)) == [QUEUES[3]]
    assert list(rule("b", ["a", "b"], [other])) == [other]


@pytest.mark.parametrize("rule", [averagely_by_circle, consistent_hash(), by_machine_room(["r"])])
def test_every_strategy_assigns_each_queue_to_one_member(rule: Assignment) -> None:
    queues = [MessageQueue("T", "r@b", number) for number in range(50)]
    members = [f"m{number}" for number in range(7)]
    owned = [queue for member in members for queue in rule(member, members, queues)]
    assert sorted(owned) == queues
    assert not rule("stranger", members, queues)
