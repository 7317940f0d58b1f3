"""Transactions ended by their producers: what is stored, what is answered, what is refused."""

from dataclasses import replace

import pytest

from actors.dispatching.messages import WritesForbidden
from actors.sending.messages import InternalAppend
from actors.transactions import transaction_finisher
from actors.transactions.half_messages import HalfMessage
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.transaction import ResumeCheckHalfMessageHeader
from protocol.message import MessageRecord
from protocol.message_id import offset_message_id
from protocol.properties import find_pairs
from storage.transactions.units import COMMITTED, COMMITTING, PREPARED, ROLLED_BACK
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.golden import manifest
from tests.support.transacting import (
    COMMIT,
    GROUP,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    broker,
    end,
    end_command,
    half,
    of_topic,
)
from troupemq.testing.fake_disk import FakeDisk

NOT_SET = "not set any response code"
NOT_FOUND = "Find prepared transaction message failed"


def state_of(made: SimulatedBroker, record: MessageRecord) -> int:
    unit = made.broker.store.transaction_table.find(record.physical_offset)
    assert unit is not None
    return unit.state


def test_a_commit_delivers_the_message_and_settles_the_half_message() -> None:
    made = broker()
    prepared = half(made, "K", queue_id=3, flag=9, properties={"TAGS": "T", "KEYS": "a b"})
    assert made.messages(queue_id=3) == []
    answer = end(made, prepared, COMMIT)
    assert (answer.code, answer.remark, answer.fields) == (0, None, None)
    (message,) = made.messages(queue_id=3)
    assert message.body == b"body of K" and message.flag == 9
    assert message.properties == prepared.properties
    assert message.sys_flag == COMMIT
    assert message.prepared_transaction_offset == prepared.physical_offset
    assert (message.born_timestamp, message.born_host) == (
        prepared.born_timestamp,
        prepared.born_host,
    )
    (op,) = of_topic(made, OP)
    store_host = made.broker.store.commit_log.store_host
    assert (op.body, op.properties, op.queue_id) == (b"0", b"WAIT\x01true\x02TAGS\x01d", 0)
    assert (op.born_host, op.store_host) == (store_host, store_host)
    assert state_of(made, prepared) == COMMITTED
    tagged = made.pull(queue_id=3, expression="T")
    assert tagged.code == 0 and made.pull(queue_id=3, expression="U").code != 0


def test_a_rollback_delivers_nothing() -> None:
    made = broker()
    prepared = half(made)
    answer = end(made, prepared, ROLLBACK)
    assert (answer.code, answer.remark) == (0, NOT_SET)
    assert made.messages() == []
    assert [op.body for op in of_topic(made, OP)] == [b"0"]
    assert state_of(made, prepared) == ROLLED_BACK


@pytest.mark.parametrize("from_check", [False, True])
def test_an_unknown_state_is_not_answered_and_the_message_stays_pending(from_check: bool) -> None:
    made = broker()
    prepared = half(made)
    answers: list[RemotingCommand] = []
    command = end_command(prepared, UNKNOWN, from_transaction_check=from_check)
    made.client.start(command, answers.append)
    made.system.advance(1000)
    assert answers == [] and state_of(made, prepared) == PREPARED


def test_one_way_commits_and_rollbacks_are_executed_and_not_answered() -> None:
    made = broker()
    prepared = half(made)
    answers: list[RemotingCommand] = []
    made.client.start(end_command(prepared, COMMIT, oneway=True), answers.append)
    made.system.advance(100)
    assert answers == [] and len(made.messages()) == 1


def test_invalid_end_requests_get_the_originals_texts() -> None:
    made = broker()
    prepared = half(made)
    made.send(b"plain")
    (plain,) = of_topic(made, "Topic")
    wrong = {
        "The producer group wrong": end_command(prepared, COMMIT, producer_group="others"),
        "The transaction state table offset wrong": end_command(
            prepared, COMMIT, tran_state_table_offset=1
        ),
        NOT_FOUND: end_command(prepared, COMMIT, commit_log_offset=1),
    }
    for remark, command in wrong.items():
        rollback = replace(command, fields={**(command.fields or {}), "commitOrRollback": "12"})
        for each in (command, rollback):
            answer = made.ask(each)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    for offset in (-1, 1 << 40, plain.physical_offset):
        answer = made.ask(end_command(prepared, COMMIT, commit_log_offset=offset))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, NOT_FOUND)
    answer = made.ask(end_command(prepared, 4))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "commitOrRollback field wrong" in (answer.remark or "")
    assert state_of(made, prepared) == PREPARED and of_topic(made, OP) == []


def test_a_slave_refuses_end_requests() -> None:
    made = SimulatedBroker(
        1, config=replace(SimulatedBroker(1).config, broker_role="SLAVE", broker_id=1)
    )
    command = RemotingCommand(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": GROUP,
            "tranStateTableOffset": "1",
            "commitLogOffset": "1",
            "commitOrRollback": "8",
        },
    )
    answer = made.ask(command)
    assert (answer.code, answer.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, NOT_SET)


def test_a_repeated_commit_delivers_once() -> None:
    """4.9.7 would deliver the message with each commit."""
    made = broker()
    prepared = half(made)
    answers: list[RemotingCommand] = []
    for _ in range(3):
        made.client.start(end_command(prepared, COMMIT), answers.append)
    made.system.advance(100)
    assert [(answer.code, answer.remark) for answer in answers] == [(0, None)] * 3
    assert end(made, prepared, COMMIT).code == 0
    assert len(made.messages()) == 1 and len(of_topic(made, OP)) == 1


def test_a_settled_transaction_keeps_its_state() -> None:
    made = broker()
    one, other = half(made, "1"), half(made, "2")
    assert end(made, one, COMMIT).code == 0 and end(made, other, ROLLBACK).code == 0
    for prepared, outcome in ((one, ROLLBACK), (other, COMMIT)):
        answer = end(made, prepared, outcome)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, NOT_FOUND)
    answer = end(made, other, ROLLBACK)
    assert (answer.code, answer.remark) == (0, NOT_SET)
    assert [message.body for message in made.messages()] == [b"body of 1"]


def test_the_first_of_concurrent_commit_and_rollback_counts() -> None:
    made = broker()
    prepared = half(made)
    answers: list[RemotingCommand] = []
    for outcome in (ROLLBACK, COMMIT):
        made.client.start(end_command(prepared, outcome), answers.append)
    made.system.advance(100)
    assert [answer.code for answer in answers] == [0, ResponseCode.SYSTEM_ERROR]
    assert made.messages() == []


def test_a_few_ends_of_one_transaction_wait_for_its_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A master without its slave let one-way ends wait by the 100,000, then ran them at once."""
    monkeypatch.setattr(transaction_finisher, "WAITING_MAX", 2)
    made = broker()
    prepared = half(made)
    answers: list[RemotingCommand] = []
    for _ in range(10):
        made.client.start(end_command(prepared, COMMIT), answers.append)
    made.system.advance(100)
    codes = [answer.code for answer in answers]
    assert codes.count(0) == 3 and codes.count(ResponseCode.SYSTEM_BUSY) == 7
    assert len(made.messages()) == 1 and end(made, prepared, COMMIT).code == 0


def test_a_delayed_message_is_delayed_after_its_commit() -> None:
    made = broker()
    prepared = half(made, properties={"DELAY": 3}, queue_id=2)
    made.system.advance(20_000)
    assert end(made, prepared, COMMIT).code == 0
    made.system.advance(9000)
    assert made.messages(queue_id=2) == []
    made.system.advance(1500)
    (message,) = made.messages(queue_id=2)
    pairs = dict(find_pairs(message.properties))
    assert (pairs[b"REAL_TOPIC"], pairs[b"REAL_QID"], pairs[b"DELAY"]) == (b"Topic", b"2", b"3")
    assert message.sys_flag == COMMIT and state_of(made, prepared) == COMMITTED


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_end_requests_are_refused_while_writes_are_disabled(outcome: int) -> None:
    made = broker()
    assert isinstance(made.disk, FakeDisk)
    prepared = half(made)
    made.system.address("put_message").tell(WritesForbidden("full", source="test"))
    made.system.drain()
    answer = end(made, prepared, outcome)
    assert (answer.code, answer.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "Service not available now.",
    )
    assert state_of(made, prepared) == PREPARED
    made.system.address("put_message").tell(WritesForbidden(None, source="test"))
    made.system.drain()
    assert end(made, prepared, outcome).code == 0
    assert len(made.messages()) == (outcome == COMMIT)


def test_under_sync_flush_a_commit_is_answered_after_the_sync() -> None:
    made = broker(store=replace(STORE, flush_disk_type="SYNC_FLUSH"))
    prepared = half(made)
    assert made.ask(end_command(prepared, COMMIT)).code == 0
    assert isinstance(made.disk, FakeDisk)
    made.crash()
    made.disk = made.disk.crashed(1)
    made.start()
    made.system.advance(2000)
    assert len(made.messages()) == 1
    assert end(made, prepared, COMMIT).code == 0
    assert len(made.messages()) == 1


def test_a_lost_operation_of_a_commit_is_appended_again() -> None:
    """The message is there, what settles the half message is not: it is not delivered again."""
    made = broker()
    prepared = half(made)
    committed = made.broker.system.address("put_message")
    own = HalfMessage(prepared).committed(prepared.physical_offset, (), made.broker.timer_rules)
    assert own is not None
    committed.tell(InternalAppend([own], None))
    made.system.drain()
    assert state_of(made, prepared) == COMMITTING
    assert end(made, prepared, COMMIT).code == 0
    assert state_of(made, prepared) == COMMITTED
    assert len(made.messages()) == 1 and len(of_topic(made, OP)) == 1


def test_resuming_stores_a_half_message_with_its_check_count_at_0() -> None:
    made = broker()
    prepared = half(made, properties={"TRANSACTION_CHECK_TIMES": 15})
    message_id = offset_message_id(prepared.store_host, prepared.physical_offset)
    header = ResumeCheckHalfMessageHeader(message_id)
    command = RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.encode())
    answer = made.ask(command)
    assert (answer.code, answer.remark) == (0, None)
    again = of_topic(made, HALF)[-1]
    assert dict(find_pairs(again.properties))[b"TRANSACTION_CHECK_TIMES"] == b"0"
    for text in ("no id", offset_message_id(prepared.store_host, 1 << 40)):
        header = ResumeCheckHalfMessageHeader(text)
        answer = made.ask(RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.encode()))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("Exception was thrown when putting message back")


def test_transaction_records_equal_the_originals() -> None:
    """The golden store's half messages, put and ended here: the same commits and settlements."""
    records = manifest("clean")["rawRecords"]
    halves = [each for each in records if each["topic"] == HALF]
    commits = {each["preparedTransactionOffset"]: each for each in records if each["sysFlag"] & 12}
    (recorded_op, *_) = [each for each in records if each["topic"] == OP]
    made = broker(1)
    compared = 0
    for recorded in halves:
        wanted = commits.get(recorded["commitLogOffset"])
        if wanted is None:
            continue
        compared += 1
        pairs = dict(find_pairs(recorded["propertiesRaw"].encode()))
        made.make_topic(wanted["topic"])
        text = {name.decode(): value.decode() for name, value in pairs.items()}
        for name in ("REAL_TOPIC", "REAL_QID", "CLUSTER"):
            del text[name]
        properties = "\x02".join(f"{name}\x01{value}" for name, value in text.items())
        body = bytes.fromhex(recorded["bodyHex"])
        prepared = made.stored(
            made.send(
                body,
                topic=wanted["topic"],
                queue_id=wanted["queueId"],
                properties=properties,
                sys_flag=4,
                flag=recorded["flag"],
            )
        )
        header = {"producer_group": text["PGROUP"]}
        assert end(made, prepared, COMMIT, **header).code == 0
        found = of_topic(made, wanted["topic"])[-1]
        assert dict(find_pairs(found.properties)) == dict(
            find_pairs(wanted["propertiesRaw"].encode())
        )
        assert found.properties == prepared.properties
        keys = ("queueId", "flag", "sysFlag", "reconsumeTimes", "storeSize", "bodyCRC")
        assert {key: wanted[key] for key in keys} == dict(
            zip(
                keys,
                (
                    found.queue_id,
                    found.flag,
                    found.sys_flag,
                    found.reconsume_times,
                    found.record_bytes,
                    found.body_crc,
                ),
                strict=True,
            )
        )
        op = of_topic(made, OP)[-1]
        assert op.properties.decode() == recorded_op["propertiesRaw"]
        assert op.body == b"%d" % prepared.queue_offset
        assert (op.sys_flag, op.flag, op.queue_id) == (0, 0, recorded_op["queueId"])
    assert compared == 2
