"""Transactions with cold half messages, and on a disk that is full or broken."""

import errno
from dataclasses import replace

import pytest

from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from tests.actors.pulling.test_cold_read import Slow
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.transacting import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    beat,
    broker,
    end,
    end_command,
    half,
    producing,
    questions,
    round_of_checks,
)
from troupemq.testing.fake_disk import FakeDisk

LONG = bytes(300_000)
BIG_FILES = replace(STORE, commit_log_file_bytes=1 << 20)


def cold(made: SimulatedBroker, slow: Slow | None = None) -> FakeDisk:
    """Stops and starts the broker, and then nothing is in memory."""
    made.stop()
    made.start_ms = made.system.clock.now_ms()
    if slow is not None:
        made.instead = {"cold_read": lambda _: slow}
    made.start()
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache()
    return made.disk


@pytest.mark.parametrize("body", [b"short", LONG])
def test_only_the_commit_of_a_cold_half_message_waits_for_the_disk(body: bytes) -> None:
    made = broker(store=BIG_FILES)
    prepared = half(made, "K", body=body)
    slow = Slow()
    cold(made, slow)
    answers: list[RemotingCommand] = []
    made.client.start(end_command(prepared, COMMIT), answers.append)
    made.system.drain()
    assert answers == [] and len(slow.taken) == 1
    young = half(made, "young")
    assert end(made, young, ROLLBACK).code == 0
    while slow.taken:
        slow.let_go(made)
        made.system.advance(10)
    assert [answer.code for answer in answers] == [0]
    made.instead = {}
    cold(made)
    assert [message.body for message in made.messages()] == [body]


def test_a_disk_that_cannot_be_read_is_an_error_answer_and_the_message_stays_pending() -> None:
    made = broker()
    prepared = half(made)
    disk = cold(made)
    disk.fail_next("pread", OSError(errno.EIO, "Input/output error"))
    answer = end(made, prepared, COMMIT)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the disk cannot be read: Input/output error",
    )
    assert end(made, prepared, COMMIT).code == 0
    assert len(made.messages()) == 1


def test_a_round_reads_cold_pages_on_a_thread() -> None:
    made = broker()
    for number in range(3):
        half(made, f"{number}")
    slow = Slow()
    disk = cold(made, slow)
    producer = producing(made)
    made.system.advance(INTERVAL_MS - 100)
    slow.let_go(made)
    disk.forget_cache()
    made.system.advance(200)
    assert len(slow.taken) == 1 and questions(producer) == []
    slow.let_go(made)
    made.system.advance(10)
    assert len(questions(producer)) == 3
    made.instead = {}


def test_a_check_round_on_an_unreadable_disk_is_retried() -> None:
    made = broker()
    half(made)
    disk = cold(made)
    producer = producing(made)
    made.system.advance(INTERVAL_MS - 100)
    disk.forget_cache()
    disk.fail_next("pread", OSError(errno.EIO, "Input/output error"))
    made.system.advance(200)
    assert questions(producer) == []
    beat(producer)
    round_of_checks(made)
    assert len(questions(producer)) == 1


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_on_a_full_disk_an_end_request_is_refused_and_stays_pending(outcome: int) -> None:
    made = broker(store=replace(STORE, commit_log_file_bytes=4096, disk_warning_ratio=2.0))
    assert isinstance(made.disk, FakeDisk)
    prepared = half(made)
    made.disk.capacity_bytes = made.disk.used_bytes()
    for size in (500, 1):
        codes = [made.send(bytes(size)).code for _ in range(40)]
        assert codes[-1] != 0
    answer = end(made, prepared, outcome)
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert made.broker.store.transaction_table.pending_count == 1
    made.disk.capacity_bytes = None
    made.system.advance(20_000)
    assert end(made, prepared, outcome).code == 0
    delivered = [message.body for message in made.messages()].count(prepared.body)
    assert delivered == (outcome == COMMIT)
    assert made.broker.store.transaction_table.pending_count == 0


def test_while_the_table_is_rebuilt_commits_continue_and_checks_wait() -> None:
    made = broker()
    one = half(made, "1")
    half(made, "2")
    producer = producing(made)
    name = made.broker.store.transaction_table.name
    behind = made.broker.store.lagging.behind
    behind.add(name)
    assert end(made, one, COMMIT).code == 0 and end(made, one, COMMIT).code == 0
    round_of_checks(made)
    assert len(made.messages()) == 1 and questions(producer) == []
    behind.discard(name)
    made.system.advance(2000)
    assert [question.header.msg_id for question in questions(producer)] == ["2"]


def test_an_end_request_is_answered_if_the_actor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an internal error the actor restarts, and waiting requests are answered."""
    made = broker()
    prepared = half(made)
    monkeypatch.setattr(made.broker.store.transaction_table, "get_pending", lambda _: 1 // 0)
    answer = made.ask(end_command(prepared, COMMIT))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    monkeypatch.undo()
    made.system.advance(5000)
    assert end(made, prepared, COMMIT).code == 0
    assert len(made.messages()) == 1
