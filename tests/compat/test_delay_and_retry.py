"""The official Java client's delayed messages, failed messages and dead letters.

Against a broker of its own whose delay levels are short.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import Outgoing
from tests.compat.groups import receive
from tests.compat.toolchain import Java

LEVELS_S = (1, 2, 2, 3, 4)
LATE_MS = 1000
"""Delay that a busy machine may add; simulated tests measure the broker itself."""

RETRY_DEADLINE_S = 90.0
"""A client learns of its new retry topic with its next routes, every 30 s, and rebalance, 20 s."""


pytestmark = pytest.mark.whole  # test_consuming.py has the same of every client


@pytest.fixture(scope="module")
def java(
    java_tools: Java,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Agent]:
    """A client of a broker with these levels."""
    scratch: Path = tmp_path_factory.mktemp("delays")
    with make_name_server(SERVER_KIND, scratch / "name-server") as name_server:
        broker = make_broker(SERVER_KIND, scratch / "broker", name_server)
        levels = " ".join(f"{seconds}s" for seconds in LEVELS_S)
        broker.settings = {**broker.settings, "messageDelayLevel": levels}
        with broker, closing(java_agent("java", java_tools, scratch, broker)) as agent:
            yield agent


def topic_of(java: Agent, topic: str) -> str:
    java.create_topic(topic, 1)
    wait_for_route(java.broker, topic)
    return topic


def test_delayed_messages_arrive_when_due(java: Agent) -> None:
    topic = topic_of(java, "IT-delayed")
    java.join("delayed", "group-of-delayed", topic)
    messages = [
        Outgoing(str(number), b"%d" % number, tags="t", delay_level=number % 6)
        for number in range(24)
    ]
    sent = java.send("sync", topic, messages)
    assert {result["status"] for result in sent.results} == {"SEND_OK"}
    got = receive(java, "delayed", len(messages), RETRY_DEADLINE_S)
    java.leave("delayed")
    assert len(got) == len(messages)
    by_serial = {event["properties"]["serial"]: event for event in got}
    for message in messages:
        event = by_serial[message.serial]
        level = message.delay_level
        waited_ms = event["storeTimestamp"] - event["bornTimestamp"]
        delay_ms = 1000 * LEVELS_S[level - 1] if level else 0
        assert delay_ms <= waited_ms <= delay_ms + LATE_MS
        assert (event["topic"], event["tags"]) == (topic, "t")
        assert event["properties"].get("DELAY") == (str(level) if level else None)
    for level in range(6):  # those of one level in the order in which they were sent
        serials = [int(event["properties"]["serial"]) for event in got]
        of_level = [serial for serial in serials if serial % 6 == level]
        assert of_level == sorted(of_level)


def test_a_failing_listener_gets_retries_until_a_dead_letter(java: Agent) -> None:
    topic, group = topic_of(java, "IT-failing"), "group-of-failing"
    java.send("sync", topic, [Outgoing("1", b"body", tags="t", keys="k")])
    java.join("failing", group, topic, fails=True, maxReconsumeTimes=2)
    got = receive(java, "failing", 3, RETRY_DEADLINE_S)
    wait_for_route(java.broker, f"%DLQ%{group}")
    java.leave("failing")
    assert [event["reconsumeTimes"] for event in got] == [0, 1, 2]
    first, second, third = (event["storeTimestamp"] for event in got)
    assert second - first >= 2000 and third - second >= 3000  # levels 3 and 4
    java.join("undertaker", "group-of-undertaker", f"%DLQ%{group}")
    (dead,) = receive(java, "undertaker", 1, RETRY_DEADLINE_S)
    java.leave("undertaker")
    assert (dead["reconsumeTimes"], dead["body"], dead["keys"]) == (3, got[0]["body"], "k")
    properties = dead["properties"]
    assert properties["RETRY_TOPIC"] == topic
    assert properties["ORIGIN_MESSAGE_ID"] == got[0]["offsetMsgId"]
    assert {event["msgId"] for event in (*got, dead)} == {dead["msgId"]}
