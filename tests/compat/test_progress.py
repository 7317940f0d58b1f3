"""Progress of groups and lives of messages at an official broker: what is unknown there is told."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner

from tests.compat import python_clients
from tests.compat.agent import Agent
from tests.compat.conftest import MakeBroker, MakeNameServer, MakeTopic
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.python_members import member
from tests.compat.servers import Broker
from troupemq.cli import cli
from troupemq.client.admin import Admin
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer

TOPIC, GROUP = "ProgressOrders", "progress-billing"


@pytest.fixture
def official(
    tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> Iterator[Broker]:
    with (
        make_name_server("official", tmp_path / "namesrv") as name_server,
        make_broker("official", tmp_path / "broker", name_server) as broker,
    ):
        python_clients.new_topic(broker, TOPIC, 2)
        yield broker


def run(broker: Broker, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "-n", broker.name_server.address])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.whole
def test_an_official_broker_tells_the_lag_and_members_tell_what_is_stuck(official: Broker) -> None:
    release, called = Event(), Event()

    def slow(_: object) -> None:
        called.set()
        release.wait(120)

    namesrv = official.name_server.address
    with Producer("till", namesrv) as producer:
        for number in range(4):
            producer.send(Message(TOPIC, b"%d" % number, "new", (f"key{number}",)))
    with Admin(namesrv) as admin, member(GROUP, slow, namesrv) as consumer:
        consumer.subscribe(TOPIC)
        assert called.wait(60)

        def is_listed() -> bool:
            return any(each.lag for each in admin.all_progress() if each.group == GROUP)

        wait_until(is_listed, "the broker has offsets of the group", 60)
        (group,) = (each for each in admin.all_progress() if each.group == GROUP)
        unknown = group.stuck_queues, group.late_ms, group.in_flight, group.consumed_at_ms
        assert unknown == (None, None, None, None)
        assert group.verdict == "unknown: nothing reports when messages are consumed"

        report = admin.progress(GROUP, stuck_after_s=0.2)
        assert report.group.is_stuck, "by the member's report and the waiting messages"
        assert report.group.late_ms is not None, "of the messages themselves"
        (one,) = report.members
        assert "busy in slow(), test_progress.py:" in one.verdict
        assert one.current is not None and one.current.since_ms is not None

        rows = run(official, "admin", "consumerProgress", "-g", GROUP, "--json")
        waiting = [row for row in map(json.loads, rows.splitlines()) if row["lag"]]
        assert {row["is_stuck"] for row in waiting} == {None}
        assert TOPIC in run(official, "top") and "?" in run(official, "top")
        life = run(official, "trace", str(one.current.message_id))
        release.set()
    assert f"delivered for {GROUP}" in life and "stored at offset" in life


def test_a_stuck_member_of_javas_client_is_told_with_its_function(
    broker: Broker, start_client: Callable[[str], Agent], new_topic: MakeTopic
) -> None:
    agent = start_client("java")
    topic = new_topic("stuck", 1)
    group, namesrv = f"group-{topic}", broker.name_server.address
    with Producer("till", namesrv) as producer:
        for number in range(3):
            producer.send(Message(topic, b"%d" % number, keys=(f"java-{topic}",)))
    agent.join("hung", group, topic, orderly=True, pause=60_000)
    receive(agent, "hung", 1)
    with Admin(namesrv) as admin:

        def verdicts() -> list[str]:
            found = admin.progress(group, stuck_after_s=0.2).members
            return [each.verdict for each in found if each.is_stuck]

        wait_until(lambda: bool(verdicts()), "the member is stuck", 60)
        (verdict,) = verdicts()
    assert verdict.startswith("nothing finished for ")
    assert "1 of " in verdict and "Members.java:" in verdict, verdict
