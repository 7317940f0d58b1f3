"""Drills of the night at a real broker: from the overview to the cause, by commands alone."""

import json
from threading import Event

import pytest
from click.testing import CliRunner

from tests.compat.patience import wait_until
from tests.troupemq.client.copies import TOPIC
from troupemq.cli import cli
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings
from troupemq.testing import LocalBroker

STUCK = ("--stuck-after", "0.2")


@pytest.fixture
def namesrv(local_broker: LocalBroker) -> str:
    local_broker.admin.create_topic(TOPIC, 2)
    return local_broker.namesrv


def run(namesrv: str, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "-n", namesrv])
    assert result.exit_code == 0, result.output
    return result.output


def wait_for(text: str, namesrv: str, *words: str) -> str:
    """Repeat a command until it prints a text; a new group is unknown at first."""
    found = ""

    def is_there() -> bool:
        nonlocal found
        found = CliRunner().invoke(cli, [*words, "-n", namesrv]).output
        return text in found

    wait_until(is_there, f"{words} prints {text!r}")
    return found


def send(namesrv: str, count: int, tag: str = "new") -> None:
    with Producer("till", namesrv) as producer:
        for number in range(count):
            producer.send(Message("Orders", b"%d" % number, tag, (f"key{number}",)))


def consumer(namesrv: str, group: str, listener: object, tags: str = "*") -> PushConsumer:
    made = PushConsumer(
        group,
        listener,  # type: ignore[arg-type]
        namesrv,
        begin=ConsumeFrom.FIRST_OFFSET,
        settings=ConsumerSettings(consume_threads=2, commit_interval_ms=50, suspend_ms=500),
        instance_name=group,
    )
    made.subscribe("Orders", tags)
    return made


def test_three_commands_lead_from_a_stuck_group_to_the_function(namesrv: str) -> None:
    release, calls = Event(), []

    def slow() -> None:
        release.wait(60)

    def listen(messages: object) -> None:
        calls.append(messages)
        slow()

    send(namesrv, 6)
    with consumer(namesrv, "billing", listen):
        wait_until(lambda: len(calls) == 2, "both threads are busy")
        lines = wait_for("stuck for ", namesrv, "top", *STUCK).splitlines()
        (top,) = (line for line in lines if line[:2] == "! ")
        verdict = "2 of 2 threads busy in slow(), test_drills.py:"
        for text in (verdict, "nothing finished for "):
            wait_for(text, namesrv, "admin", "memberProgress", "-g", "billing", *STUCK)
        progress = run(namesrv, "admin", "consumerProgress", "-g", "billing", "--json", *STUCK)
        member = json.loads(
            run(namesrv, "admin", "memberProgress", "-g", "billing", "--json", *STUCK)
        )
        shown = run(namesrv, "admin", "memberProgress", "-g", "billing", "-s", *STUCK)
        life = run(namesrv, "trace", member["current_message_id"])
        release.set()
    assert top.startswith("! billing is stuck for ") and "Orders" in top
    rows = [json.loads(line) for line in progress.splitlines()]
    stuck = [row for row in rows if row["is_stuck"]]
    assert sum(row["lag"] for row in stuck) == 6
    assert all(row["stuck_since_ms"] and row["in_flight"] for row in stuck)
    assert member["is_stuck"] is True
    assert member["verdict"].startswith("nothing finished for ") and verdict in member["verdict"]
    assert member["current_topic"] == "Orders" and member["current_since_ms"]
    assert "listen(), test_drills.py" in shown and "library calls" in shown
    assert "delivered for billing" in life and "its listener has not returned" in life


def test_a_tag_that_no_group_wants_is_named_although_nothing_lags(namesrv: str) -> None:
    with consumer(namesrv, "picky", lambda _: None, "paid"):
        send(namesrv, 2, "new")
        wait_for("filtered by picky", namesrv, "trace", "key1")
        rows = run(namesrv, "admin", "consumerProgress", "-g", "picky", "--json")
    assert all(json.loads(line)["lag"] == 0 for line in rows.splitlines())


def test_a_member_that_pulls_nothing_and_a_group_without_members_are_told_apart(
    namesrv: str,
) -> None:
    member = consumer(namesrv, "billing", lambda _: None)
    member.suspend()  # before its start, since a pull that the broker holds brings messages
    with member:
        send(namesrv, 4)
        words = ("admin", "memberProgress", "-g", "billing", *STUCK)
        wait_for("it has pulled no message", namesrv, *words)
    groups = run(namesrv, "admin", "consumerProgress", "--json", *STUCK)
    (billing,) = (json.loads(line) for line in groups.splitlines() if "billing" in line)
    assert billing["verdict"].endswith("; it has no member")
