"""Tests of deleted topics and groups, and of reserved names."""

from dataclasses import replace
from random import Random

import pytest

from protocol.bodies import ConsumerData, HeartbeatData
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import ConsumerOffsetTable, SubscriptionGroupConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import DeleteSubscriptionGroupHeader, TopicHeader
from protocol.headers.client import UpdateConsumerOffsetHeader
from protocol.topic_names import is_legal_name
from tests.support.brokers import BROKER, SimulatedBroker, send_command, subscription
from troupemq.testing.fake_disk import FakeDisk

SLAVE = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)


def broker(seed: int = 1) -> SimulatedBroker:
    made = SimulatedBroker(seed)
    return made


def delete_topic(made: SimulatedBroker, topic: str = "Topic") -> RemotingCommand:
    fields = TopicHeader(topic).encode()
    return made.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, fields))


def delete_group(made: SimulatedBroker, group: str, *, offsets: bool) -> RemotingCommand:
    fields = DeleteSubscriptionGroupHeader(group, offsets).encode()
    return made.ask(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))


def commit(made: SimulatedBroker, topic: str, group: str, code: int = 0) -> None:
    fields = UpdateConsumerOffsetHeader(group, topic, 0, 7).encode()
    assert made.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == code


def offsets(made: SimulatedBroker) -> set[str]:
    answer = made.ask(RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))
    return set(ConsumerOffsetTable.decode(answer.body).offset_table)


def test_a_deleted_topic_loses_its_queues_and_restarts_at_0() -> None:
    made = broker()
    for topic in ("Topic", "Other"):
        for _ in range(3):
            made.send(topic=topic)
    made.system.advance(1000)
    version = made.broker.tables.topic_table.value.data_version
    answer = delete_topic(made)
    assert (answer.code, answer.remark, answer.fields) == (0, None, None)
    assert "Topic" not in made.broker.tables.topics.value
    assert made.broker.tables.topic_table.value.data_version.counter == version.counter + 1
    assert made.broker.store.consume_queues.get("Topic", 0) is None
    assert not made.disk.exists("/store/consumequeue/Topic/0")
    assert len(made.messages("Other")) == 3, "only its own queues go"
    assert (made.send().fields or {})["queueOffset"] == "0"
    assert len(made.messages()) == 1


def test_a_deleted_topic_stays_deleted_after_a_crash() -> None:
    made = SimulatedBroker(1)
    made.send()
    made.send(topic="Other")
    made.system.advance(1000)
    assert delete_topic(made).code == 0
    made.crash()
    made.start()
    assert "Topic" not in made.broker.tables.topics.value
    assert "Other" in made.broker.tables.topics.value


def test_deleting_a_missing_topic_succeeds() -> None:
    made = broker()
    assert delete_topic(made, "nobody").code == 0


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("broker-a", "The topic[broker-a] is conflict with system topic."),
        ("rmq_sys_x", "The topic[rmq_sys_x] is conflict with system topic."),
        ("", "The specified topic is blank."),
        ("../../etc", "allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("t" * 128, "longer than topic max length"),
    ],
)
def test_system_topics_and_illegal_names_are_not_deleted(topic: str, words: str) -> None:
    made = broker()
    answer = delete_topic(made, topic)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in (answer.remark or "")


def test_system_topics_are_as_in_4_9_7() -> None:
    made = broker()
    answer = made.ask(RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    assert set(TopicList.decode(answer.body).topic_list) == {
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC"),
        *("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        *("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster", "broker-a"),
        "DefaultCluster_REPLY_TOPIC",
    }


@pytest.mark.parametrize("with_offsets", [False, True])
def test_a_deleted_group_loses_its_offsets_on_request(with_offsets: bool) -> None:
    made = broker()
    made.make_group("G", retry_max_times=3)
    for group in ("G", "XG"):
        commit(made, "Topic", group)
        commit(made, f"%RETRY%{group}", group)
    answer = delete_group(made, "G", offsets=with_offsets)
    assert (answer.code, answer.remark, answer.fields) == (0, None, None)
    made.system.drain()
    assert "G" not in made.broker.tables.groups.value
    others = {"Topic@XG", "%RETRY%XG@XG"}
    own = {"Topic@G", "%RETRY%G@G"}
    assert offsets(made) == (others if with_offsets else others | own)
    assert delete_group(made, "nobody", offsets=True).code == 0
    made.stop()
    made.start()
    assert "G" not in made.broker.tables.groups.value
    assert offsets(made) == (others if with_offsets else others | own)


def test_a_slave_refuses_deletions() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, broker_role="SLAVE", broker_id=1))
    for answer in (delete_topic(made), delete_group(made, "G", offsets=True)):
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, SLAVE)


# --- names

BAD = ("../../etc/x", "a/b", ".", "..", "a b", "a@b", "a\0b", "ä", "a.b")


@pytest.mark.parametrize("name", BAD)
def test_no_name_leads_out_of_a_directory(name: str) -> None:
    assert not is_legal_name(name)
    made = broker()
    consumer = ConsumerData(name, subscription_data_set=[subscription("Topic")])
    beat = HeartbeatData("client", consumer_data_set=[consumer]).encode()
    answer = made.ask(RemotingCommand(RequestCode.HEART_BEAT, body=beat))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "illegal characters" in (answer.remark or "")
    made.make_topic("Fine")
    body = SubscriptionGroupConfig(name).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    answer = made.ask(RemotingCommand(code, body=body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "illegal characters" in (answer.remark or "")
    made.pull(consumer_group=name, expression=None)
    commit(made, name, "G", code=1)
    commit(made, "Topic", name, code=1)
    made.send(topic=name)
    made.send(topic=f"%RETRY%{name}")
    made.system.advance(20_000)
    assert name not in made.broker.tables.groups.value
    assert not any(name in topic for topic in made.broker.tables.topics.value)
    assert offsets(made) == set()


def test_a_group_may_have_255_characters_as_in_4_9_7_and_no_more() -> None:
    made = broker()
    made.make_group("g" * 255)
    body = SubscriptionGroupConfig("g" * 256).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    answer = made.ask(RemotingCommand(code, body=body))
    assert answer.remark == "the specified group is longer than group max length 255."


@pytest.mark.trial(short=11, long=2_000)
def test_messages_acknowledged_after_the_deletion_can_be_pulled(seed: int) -> None:
    """Sends go on meanwhile, and make the topic again."""
    random = Random(seed)
    made = broker(seed)
    for _ in range(random.randrange(4)):
        made.send()
    made.system.advance(random.choice((0, 1, 300)))
    deleted: list[RemotingCommand] = []
    acknowledged: list[tuple[bool, bytes]] = []
    delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("Topic").encode())

    def send(body: bytes) -> None:
        after = bool(deleted)
        made.client.start(send_command(body), lambda answer: note(after, body, answer))

    def note(after: bool, body: bytes, answer: RemotingCommand) -> None:
        if answer.code == ResponseCode.SUCCESS:
            acknowledged.append((after, body))

    when = random.randrange(8)
    for number in range(12):
        if number == when:
            made.client.start(delete, deleted.append)
        send(b"%d" % number)
        if random.random() < 0.6:
            made.system.advance(random.choice((0, 1, 5)))
    made.system.run_until(lambda: bool(deleted))
    send(b"last")
    made.system.advance(1000)
    assert [answer.code for answer in deleted] == [ResponseCode.SUCCESS]
    found = {record.body for record in made.messages()}
    assert {body for after, body in acknowledged if after} <= found
    assert b"last" in found


@pytest.mark.parametrize("wait_ms", [0, 200, 3000, 70_000])
def test_a_recreated_topic_has_its_messages_after_a_crash(wait_ms: float) -> None:
    """Recovery meets those of the deleted topic in the log, with the same numbers."""
    made = SimulatedBroker(1)
    assert isinstance(made.disk, FakeDisk)
    made.make_topic()
    for number in range(5):
        made.send(b"old %d" % number)
    made.system.advance(1000)
    command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("Topic").encode())
    assert made.ask(command).code == 0
    made.make_topic()
    sent = [b"new %d" % number for number in range(9)]
    for body in sent:
        assert made.send(body).code == 0
    made.system.advance(wait_ms)
    made.restart_killed()
    assert [record.body for record in made.messages()] == sent


@pytest.mark.parametrize("before_ms", [0, 1000, 70_000])
def test_deleted_messages_stay_away_after_a_kill_seconds_later(before_ms: float) -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    for queue_id in range(4):
        made.send(b"old", queue_id=queue_id)
    made.system.advance(before_ms)
    assert delete_topic(made).code == 0
    made.make_topic()
    made.send(b"new")
    made.system.advance(3000)
    made.restart_killed()
    found = [[record.body for record in made.messages(queue_id=each)] for each in range(4)]
    assert found == [[b"new"], [], [], []]


def test_first_message_of_a_recreated_topic_stays_its_own_after_a_kill() -> None:
    """Another topic lacks a unit of the same number, because it was deleted just before."""
    made = SimulatedBroker(1)
    for topic in ("A", "B", "Other"):
        made.make_topic(topic)
    made.send(topic="Other")
    made.send(topic="B", queue_id=3)
    made.system.advance(70_000)
    made.send(b"old", topic="A")
    assert delete_topic(made, "A").code == 0
    made.make_topic("A")
    for body, topic, queue_id in ((b"new", "A", 0), (b"second", "B", 3), (b"newer", "A", 0)):
        assert made.send(body, topic=topic, queue_id=queue_id).code == 0
    assert delete_topic(made, "B").code == 0
    made.restart_killed()
    assert made.broker.store.damage.ranges == ()
    assert [record.body for record in made.messages("A")] == [b"new", b"newer"]
