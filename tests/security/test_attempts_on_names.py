"""Attempts with names of topics and groups: A17, A18."""

import re
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.consumers.heartbeat_rules import GROUPS_MAX
from protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    MessageQueue,
    ProducerData,
)
from protocol.bodies_tables import ConsumerOffsetTable, SubscriptionGroupConfig
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode, SerializeType
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from tests.support.brokers import (
    BROKER,
    SimulatedBroker,
    pull_command,
    send_command,
    subscription,
)
from tests.support.sockets import paired_lines
from tests.support.told import floods, times
from troupemq.testing.fake_disk import FakeDisk

NO_GROUP = "java.lang.NullPointerException: groupName is null"
LEGAL = "^[%|a-zA-Z0-9_-]+$"
NAMES = {
    "dots": "../../x",
    "a slash": "a/b",
    "a NUL": "a\0b",
    "128 characters": "x" * 128,
    "300 characters": "x" * 300,
    "a retry topic of dots": "%RETRY%../x",
    "dots alone": "..",
    "a newline": "a\nb",
    "nothing": "",
}
GROUP_NAMES = {name: text for name, text in NAMES.items() if name != "128 characters"}
GROUP_NAMES["256 characters"] = "x" * 256


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


def tables_of(made: SimulatedBroker) -> list[set[str]]:
    """The names in each table."""
    tables = made.broker.tables
    offsets = made.ask(RemotingCommand(Code.GET_ALL_CONSUMER_OFFSET)).body or b""
    return [
        *map(set, (tables.topics.value, tables.groups.value)),
        *map(set, (tables.consumers.value, tables.producers.value)),
        set(ConsumerOffsetTable.decode(offsets).offset_table),
    ]


def topic_text(name: str) -> str:
    """Return the text of 4.9.7 for such a topic."""
    if not name:
        return "The specified topic is blank."
    if re.fullmatch(LEGAL, name):
        return "The specified topic is longer than topic max length."
    return f"The specified topic contains illegal characters, allowing only {LEGAL}"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a17_a_topic_that_is_a_path_is_refused_and_creates_nothing(name: str) -> None:
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


def group_text(name: str) -> str:
    """Return the text of 4.9.7's clients for such a group."""
    if not name:
        return "the specified group is blank"
    if len(name) > 255:
        return "the specified group is longer than group max length 255."
    return f"the specified group[{name}] contains illegal characters, allowing only {LEGAL}"


def uses_of(group: str, made: SimulatedBroker) -> dict[str, RemotingCommand]:
    """Every request by which this group might come into a table."""
    stored = made.stored(made.send(b"body"))
    back = ConsumerSendMsgBackHeader(stored.physical_offset, group, 0)
    config = SubscriptionGroupConfig(group).encode()
    reply = send_command(producer_group=group)
    found = {
        "200": RemotingCommand(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config),
        "36": RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, back.encode()),
        "34": heartbeat(group),
        "34 beside one that is": heartbeat("consumers", group),
        "34 of a producer": heartbeat(group, producers=True),
        "34 of its retry topic": heartbeat("consumers", topic=f"%RETRY%{group}"),
        "15": RemotingCommand(
            Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, "Topic", 0, 1).encode()
        ),
        "310": send_command(producer_group=group),
        "320": send_command(b"", producer_group=group, batch=True),
        "310 to a new topic": send_command(topic="New", producer_group=group),
        "310 to a retry topic": send_command(topic="%RETRY%consumers", producer_group=group),
        "325": replace(reply, code=Code.SEND_REPLY_MESSAGE_V2),
    }
    return (
        found
        if group
        else {use: found[use] for use in found if use[:2] != "31" and use[:2] != "32"}
    )


@pytest.mark.parametrize("name", GROUP_NAMES.values(), ids=GROUP_NAMES.keys())
def test_a17_a_group_that_is_a_path_is_refused_with_a_text_and_creates_nothing(name: str) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    made.make_group()
    made.send(topic="%RETRY%consumers")
    uses = uses_of(name, made)
    made.pull()
    made.system.advance(20_000)
    before, end = tables_of(made), made.broker.store.commit_log.end_offset
    files = places_of(made)
    for use, command in uses.items():
        answer = made.ask(command)
        text = NO_GROUP if use == "200" and not name else group_text(name)
        assert (answer.code, answer.remark) == (1, text), use
        made.client.start(replace(command, flag=ONEWAY_FLAG))
    made.system.advance(20_000)
    assert tables_of(made) == before
    assert made.broker.store.commit_log.end_offset == end
    assert places_of(made) == files


@pytest.mark.parametrize("name", GROUP_NAMES.values(), ids=GROUP_NAMES.keys())
def test_a17_reads_for_a_group_that_is_a_path_answer_as_4_9_7_and_create_nothing(name: str) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    made.send()
    made.pull()
    made.system.advance(20_000)
    before, files = tables_of(made), places_of(made)
    lock = LockBatchRequest("client", name, [MessageQueue("Topic", "broker-a", 0)]).encode()
    query = QueryConsumerOffsetHeader(name, "Topic", 0)
    pull = pull_command(consumer_group=name)
    for command, code in (
        (pull, ResponseCode.SUCCESS),
        (replace(pull, code=Code.LITE_PULL_MESSAGE), ResponseCode.SUCCESS),
        (pull_command(consumer_group=name, expression=None), 24),
        (RemotingCommand(Code.QUERY_CONSUMER_OFFSET, query.encode()), ResponseCode.SUCCESS),
        (RemotingCommand(Code.LOCK_BATCH_MQ, body=lock), ResponseCode.SUCCESS),
    ):
        assert made.ask(command).code == code, command
    made.system.advance(20_000)
    assert tables_of(made) == before
    assert places_of(made) == files


def test_a17_a_send_without_a_group_is_accepted() -> None:
    made = SimulatedBroker(1)
    assert made.send(producer_group="").code == 0


@pytest.mark.parametrize("kind", SerializeType, ids=lambda kind: kind.name)
def test_a17_a_cached_send_head_with_an_invalid_group_is_refused_each_time(
    kind: SerializeType,
) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    sent = [
        replace(send_command(producer_group=group), serialize_type=kind)
        for group in ("../../x", "producers", "../../x", "../../x", "producers")
    ]
    with paired_lines(made, 1) as (line,):
        line.send(*sent)
        answers = sorted(line.receive_now(), key=lambda answer: answer.opaque)
        refused = 1, group_text("../../x")
        assert [(each.code, each.remark) for each in answers] == [
            *(refused, (0, None), refused, refused, (0, None))
        ]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a17_subscriptions_and_commits_for_a_topic_that_is_a_path_are_refused(
    name: str,
) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    made.system.advance(20_000)
    before = tables_of(made)
    retried = name.removeprefix("%RETRY%")
    text = topic_text(name) if retried == name else group_text(retried)
    answer = made.ask(heartbeat("consumers", topic=name))
    assert (answer.code, answer.remark) == (1, text)
    commit = UpdateConsumerOffsetHeader("consumers", name, 0, 1)
    answer = made.ask(RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, commit.encode()))
    assert (answer.code, answer.remark) == (1, topic_text(name))
    made.system.advance(20_000)
    assert tables_of(made) == before


def test_a17_every_name_that_official_clients_accept_is_accepted() -> None:
    """With namespaces, the longest, the clients' own."""
    made = SimulatedBroker(1)
    for topic in ("NS%Topic", "a|b", "t" * 127):
        made.make_topic(topic)
    for group in ("NS%group", "a|b", "g" * 255, "%RETRY%x", "CLIENT_INNER_PRODUCER"):
        for topic in ("NS%Topic", "a|b", "t" * 127, "NotYet", f"%RETRY%{group}"):
            assert made.ask(heartbeat(group, topic=topic)).code == 0
        assert group in made.broker.tables.consumers.value
        assert made.pull(consumer_group=group, topic="a|b").code == ResponseCode.PULL_NOT_FOUND
        assert made.ask(heartbeat(group, producers=True)).code == 0
        assert made.send(topic="NS%Topic", producer_group=group).code == 0


def test_a17_names_in_a_store_of_4_9_7_are_accepted() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    tables = made.broker.tables
    old = SubscriptionGroupConfig("old.group")
    tables.groups.value = {**tables.groups.value, "old.group": old}
    tables.topics.value = {**tables.topics.value, "old.topic": tables.topics.value["Topic"]}
    for topic in ("old.topic", "%RETRY%old.group", "Topic"):
        assert made.ask(heartbeat("old.group", topic=topic)).code == 0
    assert "old.group" in tables.consumers.value
    query = QueryConsumerOffsetHeader("old.group", "Topic", 0).encode()
    assert made.ask(RemotingCommand(Code.QUERY_CONSUMER_OFFSET, query)).code == 0
    lock = LockBatchRequest("client", "old.group", [MessageQueue("Topic", "broker-a", 0)])
    assert made.ask(RemotingCommand(Code.LOCK_BATCH_MQ, body=lock.encode())).code == 0
    assert made.pull(consumer_group="old.group").code == ResponseCode.PULL_NOT_FOUND


# --- A18: made up by the thousand


def test_a18_topics_created_by_sends_are_limited() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_topics_max=40, auto_groups_max=10))
    with capture_logs() as logs:
        codes = [made.send(topic=f"made-up-{n}").code for n in range(100)]
    table = made.broker.tables.topics.value
    assert len(table) == 40
    assert codes.count(ResponseCode.TOPIC_NOT_EXIST) == 100 - codes.count(0) > 50
    assert codes == sorted(codes), "the first ones, and then none"
    with capture_logs() as more:
        made.system.advance(60_000)
    full = times([*logs, *more], "topic not created: maxAutoTopics")
    assert len(full) == 2 and full[0] == 1
    assert sum(full) == codes.count(ResponseCode.TOPIC_NOT_EXIST)
    made.make_topic("by-an-administrator")
    assert made.send(topic="by-an-administrator").code == 0
    assert made.send(topic="made-up-1").code == 0, "those that are there go on"
    retries = [made.send(topic=f"%RETRY%group-{n}").code for n in range(60)]
    assert retries.count(0) <= 20


def test_a18_groups_created_by_consumers_are_limited() -> None:
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
    assert floods(logs) == []
    made.make_group("by-an-administrator")
    assert made.ask(heartbeat("by-an-administrator")).code == 0
    assert "by-an-administrator" in made.broker.tables.consumers.value


def test_a18_the_groups_of_a_client_are_limited() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    with capture_logs() as logs:
        for _ in range(10):
            answer = made.ask(heartbeat(*(f"g{n}" for n in range(GROUPS_MAX + 1)), producers=True))
            assert (answer.code, answer.remark) == (1, "a client may be in at most 1000 groups")
        assert times(logs, "client group limit reached") == [1]
        made.system.advance(60_000)
    assert times(logs, "client group limit reached") == [1, 9]
    assert made.ask(heartbeat(*(f"g{n}" for n in range(GROUPS_MAX)), producers=True)).code == 0
