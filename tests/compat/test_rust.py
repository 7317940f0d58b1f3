"""The independent client rocketmq-client-rust 1.0.0, unmodified, in all that it can do.

It is written from 5.x's classes and insists on their fields: it works with no 4.9.7 name server.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.bodies_assignment import POP, RequestMode
from tests.compat.agent import Agent, Event, closing
from tests.compat.conftest import ASKS_SOON, SHORT_DELAYS, MakeBroker, wait_for_route
from tests.compat.corpus import Outgoing, tagged, varied
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.remoting import exchange
from tests.compat.servers import Broker, OurNameServer
from tests.compat.test_transactions import transaction
from tests.compat.toolchain import MissingTool, rust_agent
from troupemq import ConsumeFrom, Message, Producer, PullConsumer

pytestmark = pytest.mark.whole

COUNT = 30
QUEUES = 4
SET_MESSAGE_REQUEST_MODE = 401
MakeTopic = Callable[[str], str]


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the client's program; a clone without cargo skips these tests."""
    try:
        return rust_agent()
    except MissingTool as tool:
        pytest.skip(f"no Rust client here: {tool}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make_broker: MakeBroker) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("rust-servers")
    settings = ASKS_SOON | SHORT_DELAYS
    with (
        OurNameServer(folder / "names") as names,
        make_broker("ours", folder / "broker", names, **settings) as broker,
    ):
        yield broker


@pytest.fixture
def rust(program: Path, served: Broker, tmp_path: Path) -> Iterator[Agent]:
    quiet = {"RUST_LOG": "warn", "HOME": str(tmp_path)}
    agent = Agent("rust", [str(program)], tmp_path / "rust.log", served, quiet)
    with closing(agent) as client:
        yield client


@pytest.fixture
def new_topic(rust: Agent, served: Broker, request: pytest.FixtureRequest) -> MakeTopic:
    def make(label: str) -> str:
        topic = f"Rust-{label}-{os.getpid()}"
        rust.create_topic(topic, QUEUES)
        wait_for_route(served, topic)
        return topic

    return make


def serials(events: list[Event]) -> list[str]:
    return [event["properties"]["serial"] for event in events]


@pytest.mark.parametrize("way", ["sync", "oneway", "batch"])
def test_rust_client_gets_back_what_it_sent(way: str, rust: Agent, new_topic: MakeTopic) -> None:
    """Under load it fails some messages before its listener sees them; these are retried."""
    topic = new_topic(f"sent-{way}")
    rust.join("eater", f"of-{topic}", topic)
    messages = varied(topic, COUNT, waits=way == "batch")
    sent = rust.send(way, topic, messages)
    assert {each["status"] for each in sent.results if each} <= {"SEND_OK"}
    got = {event["properties"]["serial"]: event for event in receive(rust, "eater", COUNT)}
    for message in messages:
        event = got[message.serial]
        assert event["body"] == message.as_json()["body"]
        assert (event["tags"], event["keys"]) == (message.tags, message.keys)
        assert message.user_properties().items() <= event["properties"].items()


def test_our_client_and_it_understand_each_other(
    rust: Agent, new_topic: MakeTopic, served: Broker
) -> None:
    topic = new_topic("both")
    rust.join("eater", f"of-{topic}", topic)
    address = served.name_server.address
    with Producer("rust-peers", address) as producer:
        for number in range(COUNT):
            producer.send(Message(topic, b"x", properties={"serial": f"ours-{number}"}))
    assert len(serials(receive(rust, "eater", COUNT))) == COUNT
    rust.send("sync", topic, tagged("rust", ("TagA",), COUNT))
    found: set[str] = set()
    group = f"readers-of-{topic}"
    with PullConsumer(group, address, begin=ConsumeFrom.FIRST_OFFSET) as reader:
        reader.subscribe(topic, "TagA")

        def is_read() -> bool:
            found.update(each.properties["serial"] for each in reader.poll(500))
            return len(found) == COUNT

        wait_until(is_read, "what the Rust client sent")


def test_order_is_kept_within_a_queue(rust: Agent, new_topic: MakeTopic) -> None:
    topic = new_topic("order")
    messages = [
        Outgoing(f"{number}", b"%d" % number, properties={"order": str(number % QUEUES)})
        for number in range(COUNT)
    ]
    rust.send("order", topic, messages)
    rust.join("orderly", f"of-{topic}", topic, orderly=True)
    got = receive(rust, "orderly", COUNT)
    for queue in range(QUEUES):
        own = [int(event["properties"]["serial"]) for event in got if event["queueId"] == queue]
        assert own == sorted(own) and {each % QUEUES for each in own} == {queue}


def test_delayed_messages_come_when_they_are_due(rust: Agent, new_topic: MakeTopic) -> None:
    topic = new_topic("delay")
    rust.join("eater", f"of-{topic}", topic)
    rust.send("sync", topic, [Outgoing("now", b"x"), Outgoing("later", b"x", delay_level=2)])
    got = {event["properties"]["serial"]: event for event in receive(rust, "eater", 2)}
    assert got["later"]["storeTimestamp"] - got["later"]["bornTimestamp"] >= 1900


def test_transactions_are_committed_rolled_back_and_checked(
    rust: Agent, new_topic: MakeTopic
) -> None:
    topic = new_topic("halves")
    rust.join("eater", f"of-{topic}", topic)
    outcomes = [
        transaction("commit", "commit"),
        transaction("rollback", "rollback"),
        transaction("later", "unknown", checked="unknown,commit"),
    ]
    rust.transact(f"halving-{topic}", topic, outcomes)
    wait_until(
        lambda: set(serials(rust.received("eater"))) == {"commit", "later"}, "what is committed"
    )
    assert rust.checks()


@pytest.mark.parametrize(
    ("expression", "kind"), [("TagA || TagB", "TAG"), ("TAGS IN ('TagA','TagB')", "SQL92")]
)
def test_filters_choose(expression: str, kind: str, rust: Agent, new_topic: MakeTopic) -> None:
    topic = new_topic(f"filter-{kind}")
    rust.join("choosy", f"of-{topic}", topic, expression, kind)
    rust.send("sync", topic, tagged(topic, ("TagA", "TagB", "TagC"), COUNT))
    got = receive(rust, "choosy", COUNT * 2 // 3)
    assert {event["tags"] for event in got} == {"TagA", "TagB"}


def test_failed_messages_are_retried(rust: Agent, new_topic: MakeTopic) -> None:
    topic = new_topic("retry")
    rust.join("failing", f"of-{topic}", topic, fails=True)
    rust.send("sync", topic, tagged(topic, (None,), 5))
    got = receive(rust, "failing", 10)
    assert sorted(event["reconsumeTimes"] for event in got) == [0] * 5 + [1] * 5
    assert {event["topic"] for event in got} == {topic}


def test_a_lite_pull_consumer_polls_everything(rust: Agent, new_topic: MakeTopic) -> None:
    topic = new_topic("lite")
    rust.send("sync", topic, tagged(topic, (None,), COUNT))
    details = {"group": f"of-{topic}", "topic": topic, "expression": "*"}
    rust._ask("lite", member="poller", **details)
    rust.send("sync", topic, tagged(f"{topic}-after", (None,), COUNT))
    assert len(set(serials(receive(rust, "poller", 2 * COUNT)))) == 2 * COUNT


def test_rust_client_receives_message_by_message(
    rust: Agent, new_topic: MakeTopic, served: Broker
) -> None:
    topic = new_topic("pop")
    mode = RequestMode(f"of-{topic}", POP, 0, topic).encode()
    assert exchange(served.address, SET_MESSAGE_REQUEST_MODE, body=mode).code == 0
    rust.join("popper", f"of-{topic}", topic, pop=True)
    rust.send("sync", topic, tagged(topic, (None,), COUNT))
    assert len(set(serials(receive(rust, "popper", COUNT)))) == COUNT
