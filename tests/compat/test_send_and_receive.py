"""Official clients send in every way they know and consume it: what comes out is what went in."""

from collections.abc import Callable

import pytest

from tests.compat.agent import Agent
from tests.compat.comparison import assert_same, gaps, order_differences
from tests.compat.conftest import CLIENTS, MakeTopic, wait_for_route
from tests.compat.corpus import tagged, varied
from tests.compat.groups import receive, settle_group
from tests.compat.servers import Broker

WAYS = ("sync", "async", "oneway", "batch")
HALF = 42
ClientOf = Callable[[str], Agent]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_receives_its_messages_unchanged(
    kind: str, way: str, client_of: ClientOf, new_topic: MakeTopic, broker: Broker
) -> None:
    client = client_of(kind)
    topic = new_topic(f"{kind}-{way}")
    member = f"member-of-{topic}"
    batch = way == "batch"
    before = client.send(way, topic, varied(f"{topic}-a", HALF, waits=batch))
    client.join(member, f"group-of-{topic}", topic)
    receive(client, member, HALF)
    after = client.send(way, topic, varied(f"{topic}-b", HALF, waits=batch))  # wakes held pulls
    receive(client, member, 2 * HALF)
    client.leave(member)
    got = client.received(member)
    assert [result["status"] for result in before.results + after.results if result] == (
        ["SEND_OK"] * (0 if way == "oneway" else 2 if batch else 2 * HALF)
    )
    assert_same([before, after], got, broker)
    assert gaps(got) == []
    if kind != "go":  # the Go client hands its messages to goroutines
        assert order_differences(got) == []


@pytest.mark.parametrize("sender, receiver", [("java", "go"), ("go", "java-binary")])
def test_clients_of_different_languages_understand_each_other(
    sender: str, receiver: str, client_of: ClientOf, new_topic: MakeTopic, broker: Broker
) -> None:
    topic = new_topic(f"{sender}-to-{receiver}")
    member = f"member-of-{topic}"
    single = client_of(sender).send("sync", topic, varied(f"{topic}-single", HALF))
    batch = client_of(sender).send("batch", topic, varied(f"{topic}-batch", HALF))
    client = client_of(receiver)
    client.join(member, f"group-of-{topic}", topic)
    receive(client, member, 2 * HALF)
    client.leave(member)
    assert_same([single, batch], client.received(member), broker)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_topic_is_created_by_the_first_message_to_it(
    kind: str, client_of: ClientOf, broker: Broker
) -> None:
    client = client_of(kind)
    topic = f"IT-first-message-{kind}"
    sent = client.send("sync", topic, varied(topic, 8))
    wait_for_route(broker, topic)
    client.join(topic, f"group-of-{topic}", topic)
    got = receive(client, topic, 8)
    client.leave(topic)
    assert_same([sent], got, broker)
    assert {event["queueId"] for event in got} == {0, 1, 2, 3}


def test_a_group_continues_at_its_last_offset(
    client_of: ClientOf, new_topic: MakeTopic, broker: Broker
) -> None:
    java = client_of("java")
    topic = new_topic("goes-on")
    group = f"group-of-{topic}"
    settle_group(java, group, topic, 4)
    first = java.send("sync", topic, varied(f"{topic}-first", 20))
    java.join("early", group, topic)
    receive(java, "early", 20)
    java.leave("early")
    second = java.send("sync", topic, varied(f"{topic}-second", 20))
    java.join("late", group, topic)
    receive(java, "late", 20)
    java.leave("late")
    assert_same([first], java.received("early"), broker)
    assert_same([second], java.received("late"), broker)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_group_gets_only_its_subscribed_tags(
    kind: str, client_of: ClientOf, new_topic: MakeTopic, broker: Broker
) -> None:
    client = client_of(kind)
    topic = new_topic(f"tags-{kind}")
    # "AaAa" and "BBBB" have one hash code: the broker lets both pass, the client sorts them out.
    wanted = client.send("sync", topic, tagged(f"{topic}-wanted", ("TagA", "AaAa"), 20))
    client.send("sync", topic, tagged(f"{topic}-other", ("TagB", "BBBB", None), 21))
    client.join(topic, f"group-of-{topic}", topic, "TagA || AaAa")
    receive(client, topic, 20)
    more = client.send("sync", topic, tagged(f"{topic}-more", ("AaAa",), 5))
    got = receive(client, topic, 25)
    client.leave(topic)
    assert_same([wanted, more], got, broker)
