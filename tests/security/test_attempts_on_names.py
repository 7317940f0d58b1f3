"""Attempts with names of topics and groups, and with what is shown of them: A17, A18, A41."""

import re
from dataclasses import replace

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from actors.consumers.heartbeat_rules import GROUPS_MAX
from protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionGroupConfig
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.offset import UpdateConsumerOffsetHeader
from tests.support.brokers import (
    BROKER,
    SimulatedBroker,
    pull_command,
    send_command,
    subscription,
)
from tests.support.fake_disk import FakeDisk
from troupemq.cli.admin.text import escaped, one_line
from troupemq.logs import set_up_logs, shut_down_logs

NAMES = {
    "dots": "../../x",
    "a slash": "a/b",
    "a NUL": "a\0b",
    "300 characters": "x" * 300,
    "a retry topic of dots": "%RETRY%../x",
    "dots alone": "..",
    "a newline": "a\nb",
    "nothing": "",
}


def heartbeat(*groups: str, topic: str = "Topic", producers: bool = False) -> RemotingCommand:
    if producers:
        data = HeartbeatData("client", producer_data_set=[ProducerData(each) for each in groups])
    else:
        wanted = [subscription(topic)]
        data = HeartbeatData(
            "client",
            consumer_data_set=[
                ConsumerData(each, "CONSUME_PASSIVELY", "CLUSTERING", None, wanted)
                for each in groups
            ],
        )
    return RemotingCommand(Code.HEART_BEAT, body=data.encode())


def places_of(made: SimulatedBroker) -> set[str]:
    """Every file and folder there is, but for what grows with any traffic."""
    assert isinstance(made.disk, FakeDisk)
    return {path for path in made.disk.paths() if "/commitlog/" not in path}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a17_a_topic_that_is_a_path_is_refused_and_makes_nothing(name: str) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    made.send(b"body")
    made.pull()
    made.system.advance(20_000)
    before = places_of(made)
    topics = {*made.broker.tables.topics.value}
    header = CreateTopicHeader(name, "TBW102", 4, 4, 6, "SINGLE_TAG")
    asked = [
        RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, header.encode()),
        send_command(topic=name),
        send_command(topic=name, default_topic="Topic"),
        pull_command(topic=name),
    ]
    for command in asked:
        answer = made.ask(command)
        assert answer.code != ResponseCode.SUCCESS and answer.remark
        assert "\n" not in name or name not in (answer.remark or "").splitlines()
    made.system.advance(20_000)
    assert {*made.broker.tables.topics.value} == topics
    assert places_of(made) == before
    made.stop()


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a17_a_group_that_is_a_path_is_refused_or_forgotten_and_makes_nothing(name: str) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    stored = made.stored(made.send(b"body"))
    made.pull()
    made.system.advance(20_000)
    groups, topics = {*made.broker.tables.groups.value}, {*made.broker.tables.topics.value}
    before = places_of(made)
    back = ConsumerSendMsgBackHeader(stored.physical_offset, name, 0)
    commit = UpdateConsumerOffsetHeader(name, "Topic", 0, 1)
    for command in (
        RemotingCommand(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig(name).encode()
        ),
        RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, back.encode()),
        pull_command(consumer_group=name),
        heartbeat(name),
        RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, commit.encode()),
    ):
        made.ask(command)
    made.system.advance(20_000)
    assert {*made.broker.tables.groups.value} == groups
    assert {*made.broker.tables.topics.value} == topics
    assert {path for path in places_of(made) if ".." in path or "\0" in path} == set()
    assert {path.rpartition("/")[0] for path in places_of(made)} == {
        path.rpartition("/")[0] for path in before
    }
    made.stop()


# --- A18: made up by the thousand


def test_a18_topics_that_sends_make_have_a_ceiling() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_topics_max=40, auto_groups_max=10))
    with capture_logs() as logs:
        codes = [made.send(topic=f"made-up-{n}").code for n in range(100)]
    table = made.broker.tables.topics.value
    assert len(table) == 40
    assert codes.count(ResponseCode.TOPIC_NOT_EXIST) == 100 - codes.count(0) > 50
    assert codes == sorted(codes), "the first ones, and then none"
    full = [each for each in logs if each["event"] == "topic not created: maxAutoTopics"]
    assert len(full) == 1
    made.make_topic("by-an-administrator")
    assert made.send(topic="by-an-administrator").code == 0
    assert made.send(topic="made-up-1").code == 0, "those that are there go on"
    retries = [made.send(topic=f"%RETRY%group-{n}").code for n in range(60)]
    assert retries.count(0) <= 20
    made.stop()


def test_a18_groups_that_consumers_make_have_a_ceiling() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_groups_max=30))
    made.make_topic()
    with capture_logs() as logs:
        for first in range(0, 200, 20):
            names = [f"made-up-{n}" for n in range(first, first + 20)]
            assert made.ask(heartbeat(*names)).code == 0
            assert made.ask(heartbeat(*names, producers=True)).code == 0
        made.system.advance(1000)
        assert len(made.broker.tables.groups.value) == 30
        assert len(made.broker.tables.producers.value) == 30
        assert made.pull(consumer_group="another").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert made.pull(consumer_group="made-up-1").code == ResponseCode.PULL_NOT_FOUND
    full = [each["event"] for each in logs if "maxAutoGroups" in str(each["event"])]
    assert sorted(full) == [
        "group not created: maxAutoGroups",
        "group not registered: maxAutoGroups",
    ]
    made.make_group("by-an-administrator")
    assert made.ask(heartbeat("by-an-administrator")).code == 0
    assert "by-an-administrator" in made.broker.tables.consumers.value
    made.stop()


def test_a18_a_client_is_in_so_many_groups() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    answer = made.ask(heartbeat(*(f"g{n}" for n in range(GROUPS_MAX + 1)), producers=True))
    assert (answer.code, answer.remark) == (1, "a client may be in 1000 groups at the most")
    assert made.ask(heartbeat(*(f"g{n}" for n in range(GROUPS_MAX)), producers=True)).code == 0
    made.stop()


# --- A41: what is shown

NASTY = "\x1b[2J\x1b]0;owned\x07 \r\n[error] a line of its own \u202egnp.exe"


def test_a41_a_log_line_stays_one_line_whatever_clients_call_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        for as_json in (False, True):
            set_up_logs(as_json=as_json)
            get_logger("test").warning("group changed", group=NASTY, client=NASTY, key=NASTY)
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", said), repr(said)
    finally:
        shut_down_logs()


def test_a41_tables_of_commands_show_such_characters_escaped() -> None:
    for found in (escaped(NASTY), one_line(NASTY)):
        assert not re.search("[\x00-\x1f\x7f\u202e]", found)
