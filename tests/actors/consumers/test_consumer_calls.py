"""Requests passed on to consumers, and their answers, passed back unchanged."""

from dataclasses import replace

import pytest

from actors.consumers import consumer_calls
from protocol.bodies import MessageQueue
from protocol.bodies_client import ConsumerStatusBody
from protocol.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from protocol.frame import RemotingCommand
from protocol.signature import CREDENTIALS
from tests.support.brokers import SimulatedBroker
from tests.support.groups import Client, ask, start
from tests.support.pulls import broker

RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
STATUS_OF_CLIENT = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
QUEUE = MessageQueue("Topic", "broker-a", 0)


@pytest.mark.parametrize("kind", SerializeType)
def test_a_request_is_forwarded_without_credentials_and_the_answer_unchanged(
    kind: SerializeType,
) -> None:
    made = broker()
    member = Client(made, "c1", 1001)
    fields = {
        "consumerGroup": "consumers",
        "clientId": "c1",
        "jstackEnable": "true",
        "AccessKey": "who",
        "Signature": "it is",
        "SecurityToken": "lent",
        "Timestamp": "1",
    }
    answers: list[RemotingCommand] = []
    made.client.start(RemotingCommand(RUNNING, fields, serialize_type=kind), answers.append)
    made.system.drain()
    (asked,) = member.asked(RUNNING)
    passed_on = {name: fields[name] for name in fields if name not in CREDENTIALS}
    assert (asked.fields, asked.body) == (passed_on, None)
    assert asked.serialize_type == SerializeType.JSON
    assert not answers
    given = replace(asked.answer(7, {"x": "y"}, remark="mine", body=b"running"))
    given.language, given.version = LanguageCode.GO, 317
    member.peer.reply(given)
    made.system.drain()
    (answer,) = answers
    assert (answer.code, answer.fields, answer.remark) == (7, {"x": "y"}, "mine")
    assert (answer.body, answer.serialize_type) == (b"running", kind)
    assert (answer.language, answer.version) == (LanguageCode.GO, 317)


def test_a_message_is_consumed_directly() -> None:
    made = broker()
    member = Client(made, "c1", 1001)
    msg_id = (made.send(b"once more").fields or {})["msgId"]
    fields = {"consumerGroup": "consumers", "clientId": "c1", "msgId": msg_id}
    answers = start(made, DIRECTLY, **fields)
    (asked,) = member.asked(DIRECTLY)
    assert asked.fields == {**fields, "brokerName": "broker-a"}
    assert asked.body == made.broker.store.commit_log.view(
        int(msg_id[-16:], 16), len(asked.body or b"")
    )
    member.peer.reply(asked.answer(body=b"{}"))
    made.system.drain()
    assert [answer.body for answer in answers] == [b"{}"]
    for wrong in (msg_id[:-2] + "FF", "nonsense", msg_id[:-16] + "FF" * 8):
        answer = ask(made, DIRECTLY, **{**fields, "msgId": wrong})
        assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark
    del fields["msgId"]
    assert ask(made, DIRECTLY, **fields).code == ResponseCode.SYSTEM_ERROR
    assert member.asked(DIRECTLY) == []


def running(made: SimulatedBroker, group: str = "consumers", client: str = "c1") -> RemotingCommand:
    return ask(made, RUNNING, consumerGroup=group, clientId=client)


def test_a_missing_or_too_old_client_is_not_called() -> None:
    made = broker()
    Client(made, "old", 1001, version=61)
    Client(made, "new", 1002)
    for group, client in (("nobody", "x"), ("consumers", "x")):
        answer = running(made, group, client)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The Consumer <{group}> <{client}> not online"
    assert running(made, "consumers", "old").remark == (
        "The Consumer <old> Version <V3_1_7> too low to finish,"
        " please upgrade it to V3_1_8_SNAPSHOT"
    )


def test_a_consumer_that_does_not_answer_in_ten_seconds_times_out() -> None:
    made = broker()
    member = Client(made, "c1", 1001)
    answers = start(made, RUNNING, consumerGroup="consumers", clientId="c1")
    made.system.advance(9_999)
    assert answers == []
    made.system.advance(1)
    (answer,) = answers
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert answer.remark == (
        "consumer <consumers> <c1> Timeout: org.apache.rocketmq.remoting.exception."
        "RemotingTimeoutException: wait response on the channel <127.0.0.1:1001> timeout, 10000(ms)"
    )
    (late,) = member.asked(RUNNING)
    member.peer.reply(late.answer())
    made.system.drain()
    assert len(answers) == 1


def test_a_consumer_that_disconnects_before_the_answer_is_an_error() -> None:
    made = broker()
    member = Client(made, "c1", 1001)
    answers = start(made, RUNNING, consumerGroup="consumers", clientId="c1")
    member.close()
    (answer,) = answers
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "invoke consumer <consumers> <c1> Exception: org.apache.rocketmq.remoting.exception."
        "RemotingSendRequestException: send request to <127.0.0.1:1001> failed"
    )


# --- the status of a group


def offsets(answer: RemotingCommand) -> dict[str, dict[MessageQueue, int]]:
    assert (answer.code, answer.remark) == (0, "not set any response code")
    return ConsumerStatusBody.decode(answer.body).consumer_table


def reply_status(member: Client, offset: int) -> None:
    (asked,) = member.asked(STATUS_OF_CLIENT)
    assert asked.fields == {"topic": "Topic", "group": "consumers"}
    member.peer.reply(asked.answer(body=ConsumerStatusBody({QUEUE: offset}).encode()))


def test_every_member_is_asked_for_its_progress() -> None:
    made = broker()
    one, other = Client(made, "c1", 1001), Client(made, "c2", 1002)
    answers = start(made, STATUS, topic="Topic", group="consumers", clientAddr="")
    reply_status(other, 5)
    made.system.drain()
    assert answers == []
    reply_status(one, 4)
    made.system.drain()
    assert offsets(answers[0]) == {"c1": {QUEUE: 4}, "c2": {QUEUE: 5}}
    answers = start(made, STATUS, topic="Topic", group="consumers", clientAddr="c2")
    reply_status(other, 6)
    made.system.drain()
    assert one.asked(STATUS_OF_CLIENT) == []
    assert offsets(answers[0]) == {"c2": {QUEUE: 6}}
    answer = ask(made, STATUS, topic="Topic", group="consumers", clientAddr="c3")
    assert offsets(answer) == {}


def test_answers_that_were_read_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_calls, "WAITING_BYTES_MAX", 100)
    made = broker()
    member = Client(made, "c1", 1001)
    for offset in range(5):
        answers = start(made, STATUS, topic="Topic", group="consumers")
        reply_status(member, offset)
        made.system.drain()
        assert offsets(answers[0]) == {"c1": {QUEUE: offset}}


def test_members_past_the_queues_of_an_answer_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker()
    monkeypatch.setattr(consumer_calls, "QUEUES_MAX", 1)
    members = [Client(made, name, 1001 + n) for n, name in enumerate(("c1", "c2"))]
    answers = start(made, STATUS, topic="Topic", group="consumers")
    for each in members:
        reply_status(each, 7)
    made.system.drain()
    assert offsets(answers[0]) == {"c1": {QUEUE: 7}}


def test_members_with_unusable_answers_are_omitted() -> None:
    made = broker()
    names = ("fine", "silent", "gone", "error", "empty", "broken")
    members = {name: Client(made, name, 1001 + each) for each, name in enumerate(names)}
    answers = start(made, STATUS, topic="Topic", group="consumers")
    reply_status(members["fine"], 1)
    for name, code, body in (("error", 1, b"{}"), ("empty", 0, None), ("broken", 0, b"[")):
        (asked,) = members[name].asked(STATUS_OF_CLIENT)
        members[name].peer.reply(asked.answer(code, body=body))
    members["gone"].close()
    made.system.advance(4_999)
    assert answers == []
    made.system.advance(1)
    assert offsets(answers[0]) == {"fine": {QUEUE: 1}}


def test_a_group_without_reachable_members_is_an_error() -> None:
    made = broker()
    answer = ask(made, STATUS, topic="Topic", group="consumers")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "No Any Consumer online in the consumer group: [consumers]",
    )
    Client(made, "old", 1001, version=27)
    new = Client(made, "new", 1002)
    answer = ask(made, STATUS, topic="Topic", group="consumers")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the client does not support this feature. version=V3_0_6",
    )
    assert new.asked(STATUS_OF_CLIENT) == []
