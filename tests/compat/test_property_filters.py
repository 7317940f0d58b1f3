"""Official consumers that filter by an SQL92 expression get what matches it, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.agent import Agent, Event, Sent, closing, java_agent
from tests.compat.comparison import assert_same, serial_of
from tests.compat.conftest import (
    SERVER_KIND,
    MakeBroker,
    MakeNameServer,
    MakeTopic,
    wait_for_route,
)
from tests.compat.corpus import Outgoing
from tests.compat.patience import wait_until
from tests.compat.servers import BIT_MAPS, Broker
from tests.compat.toolchain import Java

ClientOf = Callable[[str], Agent]

EXPRESSION = "(a BETWEEN 3 AND 7 OR colour IN ('red', 'blue')) AND TAGS IS NOT NULL"
COLOURS = ("red", "green", "blue", None)
TAGS = ("TagA", None, "TagB")


def is_wanted(message: Outgoing) -> bool:
    """The expression, told in another way."""
    number = message.properties.get("a")
    in_range = number is not None and 3 <= int(number) <= 7
    of_colour = message.properties.get("colour") in ("red", "blue")
    return (in_range or of_colour) and message.tags is not None


def various(prefix: str, count: int) -> list[Outgoing]:
    """Messages of which some match; some lack a property that the expression names."""
    made = []
    for number in range(count):
        properties = {} if number % 7 == 6 else {"a": str(number % 11 - 1)}
        colour = COLOURS[number % len(COLOURS)]
        if colour is not None:
            properties["colour"] = colour
        body = f"body {number} of {prefix}".encode()
        tags = TAGS[number % len(TAGS)]
        made.append(Outgoing(f"{prefix}-{number}", body, tags, properties=properties))
    return made


def wanted_of(sent: Sent) -> Sent:
    """Return the send with only the matching messages, and the client's results for those."""
    kept = [n for n, message in enumerate(sent.messages) if is_wanted(message)]
    messages = [sent.messages[n] for n in kept]
    results = [sent.results[n] for n in kept]
    return Sent(sent.way, sent.topic, messages, results, sent.wire, sent.began_ms, sent.ended_ms)


def receive(client: Agent, member: str, wanted: list[Sent]) -> list[Event]:
    """Return the received messages once every expected one has arrived."""
    serials = {message.serial for sent in wanted for message in sent.messages}
    wait_until(
        lambda: serials <= {serial_of(event) for event in client.received(member)},
        f"{len(serials)} messages at {member}",
    )
    return client.received(member)


def consume(client: Agent, topic: str, broker: Broker, group: str = "") -> None:
    """Sends before a group comes and while it waits, and compares what it gets."""
    group = group or f"group-of-{topic}"
    member = f"member-of-{group}"
    before = client.send("sync", topic, various(f"{topic}-{group}-a", 60))
    client.join(member, group, topic, EXPRESSION, "SQL92")
    wanted = [wanted_of(before)]
    assert 0 < len(wanted[0].messages) < 60
    receive(client, member, wanted)
    after = client.send("sync", topic, various(f"{topic}-{group}-b", 60))  # wakes held pulls
    wanted.append(wanted_of(after))
    receive(client, member, wanted)
    client.leave(member)
    assert_same(wanted, client.received(member), broker)


@pytest.mark.parametrize(
    "kind",
    [
        "java",
        "go",
        pytest.param("java-binary", marks=pytest.mark.whole),
        pytest.param("java-5", marks=pytest.mark.whole),
    ],
)
def test_a_group_gets_only_messages_that_its_expression_matches(
    kind: str, client_of: ClientOf, new_topic: MakeTopic, broker: Broker
) -> None:
    consume(client_of(kind), new_topic(f"sql-{kind}"), broker)


def test_an_invalid_expression_is_refused_when_the_consumer_starts(
    client_of: ClientOf, new_topic: MakeTopic
) -> None:
    topic = new_topic("sql-wrong")
    with pytest.raises(AssertionError, match=r"CODE: 23.*ParseException"):
        client_of("java").join(topic, f"group-of-{topic}", topic, "a >> 1", "SQL92")


def test_bit_maps_hide_no_message(
    java_tools: Java,
    scratch: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    """With ConsumeQueueExt; again after a stop, when the groups' expressions come from the file."""
    folder = scratch / "bit-maps"
    with make_name_server(SERVER_KIND, folder / "name-server") as name_server:
        for run in ("first", "second"):
            made = make_broker(SERVER_KIND, folder / "broker", name_server, **BIT_MAPS)
            with made as broker:
                agent = java_agent(f"bit-maps-{run}", java_tools, folder, broker)
                with closing(agent):
                    topic = f"IT-bit-maps-{run}"
                    agent.create_topic(topic, 2)
                    wait_for_route(broker, topic)
                    consume(agent, topic, broker, f"{run}-a")
                    agent.send("sync", topic, various(f"{topic}-other", 40))
                assert (broker.store / "config" / "consumerFilter.json").exists() or run == "first"
