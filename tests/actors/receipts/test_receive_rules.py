"""Checks of receives, and of what waits for them."""

from dataclasses import replace

import pytest

from actors.network.request import Request
from actors.receipts.messages import ReceiveAgain
from actors.receipts.receive_rules import topic_meant
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from protocol.headers.pop import AckMessageHeader
from tests.support.peers import RecordingPeer
from tests.support.pulls import as_slave, broker
from tests.support.receiving import receive_command


def test_slave_hands_nothing_out() -> None:
    made = as_slave(broker(1))
    answer = made.ask(receive_command())
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] pop message is forbidden"


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
