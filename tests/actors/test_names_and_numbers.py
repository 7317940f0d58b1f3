"""Tests of names and numbers from requests that become files or entries of tables."""

import pytest

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.admin import CloneGroupOffsetHeader, CreateTopicHeader, TopicHeader
from protocol.headers.client import UpdateConsumerOffsetHeader
from tests.support.brokers import SimulatedBroker

ODD = ["../x", "a/b", "a@b", " ", ".", "\0", "\xe4", "a\nb"]
BLANK = "The specified topic is blank."
LONGEST, TOO_LONG = "t" * 127, "t" * 128


def broker() -> SimulatedBroker:
    made = SimulatedBroker(1)
    made.make_topic()
    return made


def create(name: str, queues: int = 4) -> RemotingCommand:
    header = CreateTopicHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG")
    return RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, header.encode())


def commit(topic: str, group: str) -> RemotingCommand:
    header = UpdateConsumerOffsetHeader(group, topic, 0, 7)
    return RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, header.encode())


def group(text: str) -> RemotingCommand:
    return RemotingCommand(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=text.encode())


def offsets(made: SimulatedBroker) -> bytes:
    return bytes(made.ask(RemotingCommand(Code.GET_ALL_CONSUMER_OFFSET)).body or b"")


@pytest.mark.parametrize("name", [*ODD, TOO_LONG])
def test_a_topic_name_must_be_a_directory_name(name: str) -> None:
    made = broker()
    before = set(made.broker.tables.topics.value)
    assert made.ask(create(name)).code == 1
    assert made.ask(create(LONGEST)).code == 0
    assert set(made.broker.tables.topics.value) == before | {LONGEST}
    delete = RemotingCommand(Code.DELETE_TOPIC_IN_BROKER, TopicHeader(name).encode())
    assert made.ask(delete).code == 1


def test_a_blank_topic_name_is_refused() -> None:
    made = broker()
    fields = create("x").fields or {}
    for code in (Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER):
        left = {key: value for key, value in fields.items() if key != "topic"}
        answer = made.ask(RemotingCommand(code, left))
        assert (answer.code, answer.remark) == (1, BLANK)
    del fields["defaultTopic"]  # it is not read
    assert made.ask(RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, fields)).code == 0


@pytest.mark.parametrize("name", ODD)
def test_an_offset_for_an_invalid_name_is_refused(name: str) -> None:
    made = broker()
    before = offsets(made)
    assert made.ask(commit(name, "consumers")).code == 1
    assert made.ask(commit("Topic", name)).code == 1
    assert offsets(made) == before
    assert made.ask(commit("Topic", "consumers")).code == 0
    assert offsets(made) != before


@pytest.mark.parametrize("name", ["", *ODD, "g" * 256])
def test_offsets_are_not_cloned_to_an_invalid_name(name: str) -> None:
    made = broker()
    made.ask(commit("Topic", "consumers"))
    before = offsets(made)
    header = CloneGroupOffsetHeader("consumers", name, "Topic", offline=True)
    assert made.ask(RemotingCommand(Code.CLONE_GROUP_OFFSET, header.encode())).code == 1
    assert offsets(made) == before


def test_the_number_of_a_topics_queues_is_limited() -> None:
    """4.9.7 accepts 2,147,483,647; a request for their offsets then fills its memory."""
    made = broker()
    answer = made.ask(create("Wide", 65_537))
    assert answer.remark == "readQueueNums is 65537: a topic has 65536 queues at the most."
    assert made.ask(create("Wide", 65_536)).code == 0


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ('"retryMaxTimes":2147483648', "it has to be from -2147483648 to 2147483647"),
        ('"retryQueueNums":65537', "a topic has 65536 queues at the most"),
        ('"brokerId":1e30', "com.alibaba.fastjson.JSONException"),
    ],
)
def test_group_numbers_out_of_javas_range_are_refused(number: str, said: str) -> None:
    """One of them in subscriptionGroup.json, and a slave of 4.9.7 takes no group at all."""
    made = broker()
    answer = made.ask(group(f'{{"groupName":"g",{number}}}'))
    assert answer.code == 1
    assert said in (answer.remark or "")
    assert "g" not in made.broker.tables.groups.value
    assert made.ask(group('{"groupName":"g","retryMaxTimes":2147483647}')).code == 0


@pytest.mark.parametrize(
    "code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.CHECK_CLIENT_CONFIG]
)
def test_a_long_body_does_not_block_the_loop(code: Code) -> None:
    made = broker()
    answer = made.ask(RemotingCommand(code, body=b"{%b}" % (b" " * (1 << 20))))
    assert (answer.code, answer.remark) == (1, "the body is longer than 1048576 bytes")
    answer = made.ask(RemotingCommand(code, body=b"{%b}" % (b" " * ((1 << 20) - 2))))
    assert "longer" not in (answer.remark or "")
