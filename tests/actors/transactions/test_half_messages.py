"""A half message is what its queue has there: a body may look like one."""

import pytest

from actors.dispatching import reput as reput_module
from actors.transactions import half_messages
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ViewMessageHeader
from protocol.headers.transaction import EndTransactionHeader, ResumeCheckHalfMessageHeader
from protocol.message_id import offset_message_id
from tests.actors.pulling.test_cold_read import Slow
from tests.actors.transactions.test_transactions_and_disk import cold
from tests.support.brokers import SimulatedBroker
from tests.support.forging import forged_record, next_body_at
from tests.support.transacting import (
    COMMIT,
    GROUP,
    HALF,
    ROLLBACK,
    broker,
    end,
    end_command,
    half,
    half_text,
    of_topic,
)

NOT_FOUND = "Find prepared transaction message failed"


def forge(made: SimulatedBroker, queue_offset: int) -> int:
    """A half message in the body of a plain one."""
    at = next_body_at(made)
    text = half_text("forged", {"REAL_TOPIC": "Topic", "REAL_QID": 0}).encode()
    made.send(forged_record(at, HALF, text, queue_offset=queue_offset))
    return at


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_half_message_in_a_body_is_not_found_without_access_control(outcome: int) -> None:
    made = broker()
    prepared = half(made, "real")
    at = forge(made, prepared.queue_offset)
    count = len(made.records())
    header = EndTransactionHeader(GROUP, prepared.queue_offset, at, outcome)
    asked = RemotingCommand(RequestCode.END_TRANSACTION, header.encode())
    answer = made.ask(asked)
    assert (answer.code, answer.remark) == (1, NOT_FOUND)
    assert len(made.records()) == count
    view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(at).encode())
    assert made.ask(view).code == 0, "it is shown, as 4.9.7 does"
    assert end(made, prepared, COMMIT).code == 0
    assert b"body of real" in [message.body for message in made.messages()]


def test_no_record_is_read_that_its_queue_does_not_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may name any size: a gigabyte was copied and checked on the loop for each request."""
    made = broker()
    prepared = half(made, "real")
    at = forge(made, prepared.queue_offset)
    read: list[object] = []
    monkeypatch.setattr(half_messages, "message_of", lambda *about: read.append(about))
    header = EndTransactionHeader(GROUP, prepared.queue_offset, at, COMMIT)
    answer = made.ask(RemotingCommand(RequestCode.END_TRANSACTION, header.encode()))
    assert (answer.code, answer.remark, read) == (1, NOT_FOUND, [])


def test_a_half_message_in_a_body_is_not_resumed_without_access_control() -> None:
    made = broker()
    prepared = half(made, "real")
    message_id = offset_message_id(bytes(8), forge(made, prepared.queue_offset))
    header = ResumeCheckHalfMessageHeader(message_id)
    answer = made.ask(RemotingCommand(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.encode()))
    assert answer.code == 1
    assert len(of_topic(made, HALF)) == 1


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_new_half_message_is_settled_after_its_dispatch(
    outcome: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half message is not cached, and its unit is dispatched after many others."""
    made = broker()
    monkeypatch.setattr(reput_module, "DISPATCHED_MAX", 1)
    sent = [made.start_send() for _ in range(30)]
    prepared = half(made)
    made.broker.recent_halves.drop(prepared.physical_offset)
    assert made.broker.store.dispatcher.dispatched_offset <= prepared.physical_offset
    assert end(made, prepared, outcome).code == 0
    assert all(answers[0].code == 0 for answers in sent)


def test_a_cold_unit_is_read_on_a_thread() -> None:
    made = broker()
    prepared = half(made)
    slow = Slow()
    disk = cold(made, slow)
    disk.open("/store/commitlog/" + "0" * 20, read_only=True).pread(65_536, 0)
    answers: list[RemotingCommand] = []
    made.client.start(end_command(prepared, COMMIT), answers.append)
    made.system.drain()
    (asked,) = slow.taken
    assert answers == [] and f"/consumequeue/{HALF}/" in asked.parts[0].path
    slow.let_go(made)
    made.system.advance(10)
    assert [answer.code for answer in answers] == [0]
    made.instead = {}


def test_a_cached_half_message_needs_no_unit() -> None:
    """The append has given its offset."""
    made = broker()
    prepared = half(made)
    made.system.drain()
    queue = made.broker.store.consume_queues.get(HALF, 0)
    assert queue is not None
    queue.repair(prepared.queue_offset, 0, 0, 0)
    assert end(made, prepared, COMMIT).code == 0
