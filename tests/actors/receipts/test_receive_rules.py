"""Checks of receives, and of what waits for them."""

from dataclasses import replace

import pytest

from actors.network.messages import Request
from actors.receipts.messages import ReceiveAgain
from actors.receipts.receive_rules import topic_meant
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from protocol.headers.pop import AckMessageHeader
from tests.support.guarded import GuardedBroker
from tests.support.peers import RecordingPeer
from tests.support.pulls import as_slave, broker
from tests.support.receiving import (
    ack_command,
    batch_ack_command,
    change_command,
    receive_command,
    received,
)


def test_slave_hands_nothing_out() -> None:
    made = as_slave(broker(1))
    answer = made.ask(receive_command())
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] pop message is forbidden"


def test_message_of_a_queue_that_is_no_longer_read_can_still_be_settled() -> None:
    """The acknowledgement was refused, and the message came again."""
    made = broker()
    for body in (b"held", b"extended"):
        made.send(body, queue_id=3)
    made.system.drain()
    held, extended = received(made.ask(receive_command(invisible_ms=5_000)))
    made.make_topic(queues=2)
    assert made.ask(change_command(extended, 60_000)).code == 0
    assert made.ask(ack_command(held)).code == 0
    made.system.advance(20_000)
    assert received(made.ask(receive_command())) == []
    made.system.advance(60_000)
    assert [each.body for each in received(made.ask(receive_command()))] == [b"extended"]


def test_group_and_topic_must_allow_reading() -> None:
    made = broker(1)
    made.make_group("stopped", consume_enable=False)
    assert made.ask(receive_command(group="stopped")).code == ResponseCode.NO_PERMISSION
    made.make_topic("Written", perm=2)
    answer = made.ask(receive_command(topic="Written"))
    assert answer.remark == "the topic[Written] peeking message is forbidden"


def test_group_must_exist() -> None:
    made = broker(1, auto_create_group_enable=False)
    answer = made.ask(receive_command(group="new"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_receive_is_checked_again_after_it_has_waited() -> None:
    made = broker()
    answers: list[RemotingCommand] = []
    made.client.start(receive_command(wait_ms=20_000), answers.append)
    made.system.drain()
    made.make_group("consumers", consume_enable=False)
    made.system.advance(21_000)
    assert [each.code for each in answers] == [ResponseCode.NO_PERMISSION]


def test_receive_that_is_lost_on_its_way_is_refused() -> None:
    peer = RecordingPeer()
    request = Request(receive_command(), peer)
    ReceiveAgain(request).on_undelivered("gone")
    assert [(each.code, each.remark) for each in peer.received] == [(1, "gone")]


def test_client_that_signs_off_gets_no_more_messages() -> None:
    made = broker()
    client = made.new_client(2)
    answers: list[RemotingCommand] = []
    client.start(receive_command(wait_ms=20_000), answers.append)
    made.system.drain()
    header = UnregisterClientHeader("client", None, "consumers")
    client.request(RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode()))
    made.system.drain()
    assert [each.code for each in answers] == [ResponseCode.POLLING_TIMEOUT]


@pytest.mark.parametrize(("kind", "topic"), [("0", "T"), ("1", "%RETRY%g"), ("2", "%RETRY%g")])
def test_kind_of_a_handle_names_its_topic(kind: str, topic: str) -> None:
    header = AckMessageHeader(consumer_group="g", topic="T", queue_id=0, extra_info="", offset=0)
    assert topic_meant(header, kind) == topic
    assert topic_meant(replace(header, topic="%RETRY%g_T"), "1") == "%RETRY%g"


def test_settling_needs_the_permissions_of_receiving() -> None:
    made = GuardedBroker(7)
    made.make_topic()
    made.make_topic("Orders")
    made.send()
    made.system.drain()
    assert made.ask_as("reader-account", receive_command()).code == 1
    (message,) = received(made.ask_as("shop-account", receive_command()))
    for command in (ack_command, lambda each: batch_ack_command([each])):
        answer = made.ask_as("reader-account", command(message))
        assert answer.code == 1 and "No default permission" in (answer.remark or "")
    made.system.advance(10_500)
    (again,) = received(made.ask_as("shop-account", receive_command()))
    assert again.parsed.topic_kind == "1"
    assert made.ask_as("reader-account", change_command(again, 1)).code == 1
    assert made.ask_as("shop-account", ack_command(again)).code == 0
