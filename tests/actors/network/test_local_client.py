"""Tests of troupemq/testing/virtual_broker.py: a client in the process speaks to the actors as a
connection does."""

from pathlib import Path

import pytest

from actors.config import NamesrvConfig
from actors.namesrv_server import service as namesrv_service
from protocol.bodies import ConsumerData, HeartbeatData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.message import decode_records
from tests.support.brokers import pull_command, send_command
from tests.support.pulls import broker
from tests.support.sockets import serving_broker
from troupemq.testing.simulation import SimulatedSystem
from troupemq.testing.virtual_broker import LocalClient


def test_messages_travel_without_a_socket_through_a_simulated_broker() -> None:
    made = broker()
    answer = made.client.request(send_command(b"in process"))
    assert answer.code == ResponseCode.SUCCESS
    made.system.drain()
    answer = made.client.request(pull_command())
    assert [record.body for record in decode_records(bytes(answer.body or b""))] == [b"in process"]


def test_messages_travel_without_a_socket_through_a_real_broker(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running:
        client = LocalClient(running.system, running.broker.service())
        for number in range(20):
            command = send_command(b"%d" % number, queue_id=0)
            assert client.request(command).code == ResponseCode.SUCCESS
        bodies: list[bytes] = []
        while len(bodies) < 20:
            answer = client.request(pull_command(len(bodies), hold_ms=5_000))
            bodies += [record.body for record in decode_records(bytes(answer.body or b""))]
        assert bodies == [b"%d" % number for number in range(20)]
        client.close()


def test_a_message_is_stored_with_the_host_of_its_client() -> None:
    made = broker()
    for host in ("192.0.2.9", "2001:db8::9"):
        client = made.new_client(4_711, host=host)
        record = made.stored(client.request(send_command()))
        assert record.born_host == client.host


def test_an_invalid_send_is_answered_with_1() -> None:
    made = broker()
    command = send_command()
    assert command.fields is not None
    del command.fields["b"]
    answer = made.ask(command)
    assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark


def test_an_unknown_code_is_answered_by_a_broker_and_not_by_a_name_server() -> None:
    made = broker()
    assert made.ask(RemotingCommand(9999)).remark == " request type 9999 not supported"
    client = LocalClient(made.system, namesrv_service(made.system, NamesrvConfig()))
    with pytest.raises(TimeoutError, match="no answer to request 9999"):
        client.request(RemotingCommand(9999), timeout_s=1)


NOT_IMPLEMENTED = (13, 22, 23, 27, *range(209, 215), 301, 302, 220, 221, 39, 40, 326)
"""Constants of 4.9.7 without a meaning, and what only a broker asks of a client."""


@pytest.mark.parametrize("code", NOT_IMPLEMENTED)
def test_codes_that_4_9_7_does_not_implement_are_answered_as_there(code: int) -> None:
    made = broker()
    answer = made.ask(RemotingCommand(code))
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_an_unanswered_request_ends_at_its_timeout(simulated_system: SimulatedSystem) -> None:
    client = LocalClient(simulated_system, namesrv_service(simulated_system, NamesrvConfig()))
    with pytest.raises(TimeoutError, match="no answer to request 105 within 3 s"):
        client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC), timeout_s=3)
    assert simulated_system.clock.monotonic_ms() == 3_000


def heartbeat(client_id: str) -> RemotingCommand:
    consumer = ConsumerData("consumers", "CONSUME_PASSIVELY", "CLUSTERING", None, [])
    body = HeartbeatData(client_id, consumer_data_set=[consumer]).encode()
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)


def members(client: LocalClient) -> bytes:
    asked = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "consumers"})
    return bytes(client.request(asked).body or b"")


def test_a_client_gets_group_changes_and_is_removed_when_it_closes() -> None:
    made = broker()
    first, second = made.new_client(2), made.new_client(3)
    first.request(heartbeat("one"))
    made.system.drain()
    first.received.clear()
    second.request(heartbeat("two"))
    made.system.drain()
    notice = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert [command.code for command in first.received] == [notice]
    assert b'"one"' in members(made.client) and b'"two"' in members(made.client)
    second.close()
    made.system.drain()
    assert b'"two"' not in members(made.client)
    assert [command.code for command in first.received] == [notice] * 2


def test_the_answers_of_many_requests_at_once_find_their_callers() -> None:
    made = broker(5)
    taken: list[tuple[int, list[RemotingCommand]]] = [(count, []) for count in range(1, 6)]
    for count, answers in taken:
        made.client.start(pull_command(count=count), answers.append)
    made.system.drain()
    for count, (answer,) in taken:
        assert len([*decode_records(bytes(answer.body or b""))]) == count
