"""Whether what lies at a place is a message is found out off the loop, and not before it can be."""

import pytest

from actors.dispatching import reput as reput_module
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader, ViewMessageHeader
from protocol.message import decode_record
from tests.actors.pulling.test_cold_read import Slow
from tests.support.brokers import send_command
from tests.support.forging import forged_record, next_body_at
from tests.support.guarded import GuardedBroker, signed
from tests.support.pulls import as_slave
from troupemq.testing.fake_disk import FakeDisk

ACCOUNT = "shop-account"


@pytest.fixture
def made() -> GuardedBroker:
    made = GuardedBroker(1)
    made.make_topic("Orders")
    made.make_group("shop")
    return made


def view(offset: int) -> RemotingCommand:
    return RemotingCommand(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode())


def back(offset: int) -> RemotingCommand:
    header = ConsumerSendMsgBackHeader(offset, "shop", 0)
    return RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())


@pytest.mark.parametrize("ask", [view, back])
def test_a_message_just_appended_is_found(
    ask: object, made: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units are dispatched after the answers, here one by one."""
    assert callable(ask)
    monkeypatch.setattr(reput_module, "DISPATCHED_MAX", 1)
    batch = encode_batch([BatchMessage(b"%d" % number) for number in range(40)])
    sent = made.ask(send_command(batch, topic="Orders", batch=True))
    last = int((sent.fields or {})["msgId"].split(",")[-1][-16:], 16)
    assert made.broker.store.dispatcher.dispatched_offset <= last
    assert made.ask_as(ACCOUNT, ask(last)).code == 0


def test_a_cold_unit_is_read_on_a_thread(made: GuardedBroker) -> None:
    offset = made.stored(made.send(topic="Orders")).physical_offset
    made.stop()
    slow = Slow()
    made.instead = {"cold_read": lambda _: slow}
    made._clients.clear()
    made.start()
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache("/store/consumequeue")
    answers: list[RemotingCommand] = []
    made.client_at("192.0.2.50").start(signed(view(offset), ACCOUNT), answers.append)
    made.system.advance(100)
    (asked,) = slow.taken
    assert answers == [] and "consumequeue" in asked.parts[0].path
    slow.let_go(made)
    made.system.advance(100)
    assert [answer.code for answer in answers] == [0]


def test_a_slave_returns_valid_messages_only(made: GuardedBroker) -> None:
    at = next_body_at(made)
    forged = forged_record(at, "Orders", beyond_bytes=100)
    real = made.stored(made.ask_as(ACCOUNT, send_command(forged, topic="Orders")))
    made.send(b"secret", topic="Payroll")
    made._clients.clear()
    as_slave(made)
    assert made.ask_as(ACCOUNT, view(real.physical_offset)).code == 0
    answer = made.ask_as(ACCOUNT, view(at))
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {at}")


def test_an_unrestricted_account_sees_any_bytes_as_with_4_9_7(made: GuardedBroker) -> None:
    """Also what has no unit any more."""
    made.send(b"old", topic="Orders")
    old = made.messages("Orders")[0].physical_offset
    made.ask(RemotingCommand(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}))
    made.system.advance(200_000)
    assert made.broker.store.consume_queues.get("Orders", 0) is None
    answer = made.ask(view(old))
    assert decode_record(answer.body or b"").body == b"old"
    assert made.ask_as(ACCOUNT, view(old)).code == 1
