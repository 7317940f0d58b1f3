"""Queues whose numbers begin again, consumed by the official Java client: nothing is skipped.

A slave that began empty becomes the master of a topic that was idle meanwhile; then an official
broker opens its store. And a topic is deleted and made again under a consumer that goes on.
"""

from pathlib import Path
from random import Random

import pytest

from protocol.codes import RequestCode
from protocol.headers.admin import TopicHeader
from tests.compat.agent import Agent, Event, closing, java_agent
from tests.compat.conftest import MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import SERIAL, Outgoing
from tests.compat.groups import receive, wait_for_commits
from tests.compat.patience import wait_until
from tests.compat.remoting import SUCCESS, ask
from tests.compat.servers import Broker
from tests.compat.test_replication import FOLLOW_DEADLINE_S, QUICK, table_of
from tests.compat.toolchain import Java

pytestmark = pytest.mark.slow(seconds=65)

COUNT = 30
SMALL_LOG = {"mappedFileSizeCommitLog": str(1 << 20), **QUICK}


def numbered(label: str, count: int = COUNT, body: bytes = b"x") -> list[Outgoing]:
    return [Outgoing(f"{label}-{number}", body) for number in range(count)]


def sent(client: Agent, topic: str, messages: list[Outgoing]) -> None:
    results = client.send("sync", topic, messages).results
    assert {each["status"] for each in results} == {"SEND_OK"}


def offsets_of(events: list[Event]) -> list[int]:
    return sorted(event["queueOffset"] for event in events)


def consumes(client: Agent, broker: Broker, member: str, first: int) -> None:
    """The group gets all that is sent now, and nothing else."""
    client.join(member, "G", "Idle")
    sent(client, "Idle", numbered(member))
    found = receive(client, member, COUNT, FOLLOW_DEADLINE_S)
    assert offsets_of(found) == [*range(first, first + COUNT)]
    wait_for_commits(broker, "G", "Idle", {0: first + COUNT})
    client.leave(member)


def test_a_promoted_slave_that_began_empty_gives_an_idle_topics_group_30_of_30(
    java_tools: Java, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    with make_name_server("ours", tmp_path / "names") as names:
        slave = make_broker(
            "ours", tmp_path / "slave", names, brokerRole="SLAVE", brokerId="1", **SMALL_LOG
        )
        with (
            make_broker("ours", tmp_path / "master", names, **SMALL_LOG) as master,
            closing(java_agent("client", java_tools, tmp_path, master)) as client,
        ):
            client.create_topic("Idle", 1)
            client.create_topic("Busy", 1)
            for topic in ("Idle", "Busy"):
                wait_for_route(master, topic)
            consumes(client, master, "before", 0)
            sent(client, "Busy", numbered("busy", 40, Random(1).randbytes(100_000)))
            with slave:
                codes = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET)
                wait_until(
                    lambda: all(table_of(slave, code) == table_of(master, code) for code in codes),
                    "equal tables",
                    FOLLOW_DEADLINE_S,
                )
                logs = sorted(each.name for each in (slave.store / "commitlog").iterdir())
                assert int(logs[0]) > 0, "it has not what the master stored at first"
        first = COUNT
        for kind in ("ours", "ours", "official"):
            scratch = tmp_path / f"promoted-{first}"
            promoted = make_broker(kind, scratch, names, store=slave.store, **SMALL_LOG)
            with promoted, closing(java_agent(f"at-{first}", java_tools, scratch, promoted)) as new:
                wait_for_route(promoted, "Idle")
                consumes(new, promoted, f"after-{first}", first)
            first += COUNT


@pytest.mark.whole
def test_a_consumer_continues_after_its_topic_is_recreated(
    java_tools: Java, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    with (
        make_name_server("ours", tmp_path / "names") as names,
        make_broker("ours", tmp_path / "broker", names) as broker,
        closing(java_agent("client", java_tools, tmp_path, broker)) as client,
    ):
        client.create_topic("T", 1)
        wait_for_route(broker, "T")
        client.join("member", "G", "T")
        sent(client, "T", numbered("old"))
        receive(client, "member", COUNT)
        wait_for_commits(broker, "G", "T", {0: COUNT})
        header = TopicHeader("T").encode()
        assert ask(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)[0] == SUCCESS
        client.create_topic("T", 1)
        sent(client, "T", numbered("new", 2 * COUNT))
        found = receive(client, "member", 3 * COUNT, 2 * FOLLOW_DEADLINE_S)[COUNT:]
        assert {event["properties"][SERIAL] for event in found} == {
            message.serial for message in numbered("new", 2 * COUNT)
        }
        wait_for_commits(broker, "G", "T", {0: 2 * COUNT})
