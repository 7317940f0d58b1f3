"""Subscription mismatches of a group: detection, log lines and answers."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.consumers.group_changes import (
    CHANGES_MAX,
    GROUPS_MAX,
    MISMATCHES_LOGGED_MAX,
    GroupHistory,
)
from actors.consumers.mismatches import CLIENTS_MAX, mismatches_of
from actors.tables.consumer_views import NOT_SUBSCRIBED, Mismatch, Wanting
from protocol.bodies import SubscriptionData
from protocol.bodies_own import GroupChange, GroupChanges
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode
from tests.support.brokers import SimulatedBroker
from tests.support.brokers import subscription as by_tags
from tests.support.groups import Client, ask
from tests.support.pulls import broker


def sql(topic: str, expression: str) -> SubscriptionData:
    return SubscriptionData(topic, expression, expression_type="SQL92")


def found(**wants: list[SubscriptionData]) -> list[tuple[str, dict[str, list[str]]]]:
    each = {name: {data.topic: data for data in listed} for name, listed in wants.items()}
    return [
        (mismatch.topic, {one.expression: [*one.client_ids] for one in mismatch.wanted})
        for mismatch in mismatches_of(each)
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([by_tags("T")], [by_tags("T", version=2)]),
        ([by_tags("T", "A || B")], [by_tags("T", "B||A")]),
        ([by_tags("T", "A || A")], [by_tags("T", "A")]),
        ([SubscriptionData("T", "")], [SubscriptionData("T", "*")]),
        ([SubscriptionData("T", "*", expression_type="")], [by_tags("T")]),
        ([sql("T", "a > 1")], [sql("T", "a > 1")]),
        ([by_tags("T"), by_tags("%RETRY%G")], [by_tags("T")]),
        ([], []),
    ],
)
def test_equal_subscriptions_are_no_mismatch(
    one: list[SubscriptionData], other: list[SubscriptionData]
) -> None:
    assert found(a=one, b=other) == []


@pytest.mark.parametrize(
    ("one", "other", "expressions"),
    [
        ([by_tags("T", "A")], [by_tags("T", "B || A")], ("A", "A || B")),
        ([by_tags("T", "A")], [by_tags("T")], ("A", "*")),
        ([by_tags("T")], [], ("*", NOT_SUBSCRIBED)),
        ([sql("T", "a > 1")], [sql("T", "a > 2")], ("SQL92: a > 1", "SQL92: a > 2")),
        ([sql("T", "A")], [by_tags("T", "A")], ("SQL92: A", "A")),
    ],
)
def test_different_subscriptions_are_a_mismatch(
    one: list[SubscriptionData], other: list[SubscriptionData], expressions: tuple[str, str]
) -> None:
    same = [by_tags("U", "x")]
    assert found(a=[*one, *same], b=[*other, *same]) == [
        ("T", {expressions[0]: ["a"], expressions[1]: ["b"]})
    ]


def test_mismatches_are_reported_per_topic_with_some_clients() -> None:
    wants = {f"c{number:02}": {"T": by_tags("T", "A")} for number in range(2 * CLIENTS_MAX)}
    wants["x"] = {"T": by_tags("T", "B"), "U": by_tags("U")}
    first, second = mismatches_of(wants)
    names = tuple(f"c{number:02}" for number in range(CLIENTS_MAX))
    assert first == Mismatch("T", (Wanting("A", 16, names), Wanting("B", 1, ("x",))))
    assert [(each.expression, each.count) for each in second.wanted] == [("", 16), ("*", 1)]
    assert first.sentence() == f"A by 16: {', '.join(names)}, …; B by 1: x"
    assert mismatches_of({"alone": {"T": by_tags("T")}}) == ()


# --- in a broker


def lines(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


def figures(made: SimulatedBroker) -> dict[str, str]:
    return KVTable.decode(ask(made, RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def changes(made: SimulatedBroker, group: str = "consumers") -> GroupChanges:
    answer = ask(made, RequestCode.GET_GROUP_CHANGES, consumerGroup=group)
    assert answer.code == 0
    return GroupChanges.decode(answer.body)


DIFFERENT = "consumer group whose members subscribe differently"
ALIKE = "consumer group subscribes alike again"


def test_a_mismatch_is_logged_once_for_each_change_and_counted() -> None:
    made = broker()
    with capture_logs() as logs:
        one = Client(made, "c1", 1001, expressions={"Topic": "A"})
        other = Client(made, "c2", 1002, expressions={"Topic": "A"})
        assert figures(made)["subscriptionMismatchGroups"] == "0"
        other.expressions = {"Topic": "B"}
        for _ in range(3):
            one.heartbeat()
            other.heartbeat()
        (line,) = lines(logs, DIFFERENT)
        assert (line["group"], line["topic"]) == ("consumers", "Topic")
        assert line["wanted"] == "A by 1: c1; B by 1: c2"
        assert figures(made)["subscriptionMismatchGroups"] == "1"
        third = Client(made, "c3", 1003, expressions={"Topic": "B"})
        assert lines(logs, DIFFERENT)[1]["wanted"] == "A by 1: c1; B by 2: c2, c3"
        (mismatch,) = changes(made).mismatches
        assert mismatch.topic == "Topic"
        assert [(each.expression, each.count) for each in mismatch.wanted] == [("A", 1), ("B", 2)]
        assert lines(logs, ALIKE) == []
        one.close()
        assert len(lines(logs, ALIKE)) == 1
        assert figures(made)["subscriptionMismatchGroups"] == "0"
        assert changes(made).mismatches == []
        for member in (other, third):
            member.sign_off()
        assert len(lines(logs, ALIKE)) == 1


def test_a_reconnected_client_counts_once() -> None:
    made = broker()
    with capture_logs() as logs:
        Client(made, "c1", 1001, expressions={"Topic": "A"})
        made.system.advance(10)
        Client(made, "c1", 1002, expressions={"Topic": "B"})
        assert lines(logs, DIFFERENT) == []


# --- what has happened to a group


def test_recent_membership_changes_are_kept() -> None:
    made = broker()
    start_ms = made.system.clock.now_ms()
    assert changes(made) == GroupChanges("consumers")
    one = Client(made, "c1", 1001)
    made.system.advance(1000)
    other = Client(made, "c2", 1002)
    one.expressions = {"Topic": "*", "Other": "*"}
    one.heartbeat()
    one.heartbeat()
    one.sign_off()
    other.close()
    Client(made, "c3", 1003)
    made.system.advance(140_000)
    body = changes(made)
    assert (body.group, body.members, body.mismatches) == ("consumers", 0, [])
    assert [(each.client_id, each.kind, each.why, each.members) for each in body.changes] == [
        ("c1", "joined", "", 1),
        ("c2", "joined", "", 2),
        ("c1", "changed its subscription", "", 2),
        ("c1", "left", "signed off", 1),
        ("c2", "left", "connection closed", 0),
        ("c3", "joined", "", 1),
        ("c3", "left", "no heartbeat", 0),
    ]
    assert [each.timestamp - start_ms for each in body.changes[:3]] == [0, 1000, 1000]
    assert body.changes[0].client_addr == "127.0.0.1:1001"


def test_the_membership_history_is_bounded() -> None:
    kept = GroupHistory()
    for number in range(2 * CHANGES_MAX):
        kept.note("first", GroupChange(number, "joined", "c", "a"))
    assert [each.timestamp for each in kept.of("first")] == [*range(CHANGES_MAX, 2 * CHANGES_MAX)]
    for number in range(GROUPS_MAX):
        kept.note(f"g{number}", GroupChange(number, "joined", "c", "a"))
        kept.note("busy", GroupChange(number, "joined", "c", "a"))
    assert kept.of("first") == kept.of("g0") == [] == kept.of("never seen")
    assert kept.of("busy") and kept.of(f"g{GROUPS_MAX - 1}")


def test_members_are_not_compared_with_each_topic_of_the_newest() -> None:
    """A heartbeat with 10,000 topics in a group of 1,000 members stopped the loop for seconds."""

    class Counted(dict[str, SubscriptionData]):
        looks = 0

        def get(self, *about: Any) -> Any:
            Counted.looks += 1
            return super().get(*about)

        def keys(self) -> Any:
            Counted.looks += len(self)
            return super().keys()

    newest = {f"T{number}": by_tags(f"T{number}") for number in range(10_000)}
    others = {f"c{number}": Counted({"T0": by_tags("T0")}) for number in range(200)}
    assert mismatches_of({"newest": newest, **others})[0].topic == "T1"
    assert Counted.looks < 200 * 50


def test_a_change_of_a_group_with_many_mismatches_logs_the_first_topics() -> None:
    """A heartbeat with 2,400 subscriptions logged a line each: others waited for 90 ms."""
    made = broker()
    count = MISMATCHES_LOGGED_MAX + 5
    with capture_logs() as lines:
        for number, expression in enumerate(("a", "b")):
            wanted = {f"Topic-{each:02d}": expression for each in range(count)}
            Client(made, f"c{number}", 1001 + number, expressions=wanted)
        made.system.drain()
    told = [each for each in lines if each["event"] == DIFFERENT]
    assert [each["topic"] for each in told] == [
        f"Topic-{each:02d}" for each in range(MISMATCHES_LOGGED_MAX)
    ]
    assert [each.get("more_topics") for each in told] == [None] * 9 + [5]
