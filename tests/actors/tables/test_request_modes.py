"""Tests of actors/tables/request_modes.py: how groups request messages."""

from dataclasses import replace

import pytest

from protocol.bodies_assignment import RequestMode, RequestModeTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from storage.tables.request_modes import parse_request_modes
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.peers import request

PATH = "/store/config/messageRequestMode.json"
POP_OF_G = RequestMode("G", "POP", 3, "T")


def asked(made: SimulatedBroker, mode: RequestMode) -> RemotingCommand:
    return made.ask(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode.encode()))


def test_a_mode_is_kept_in_the_file_of_5_x() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_create_group_enable=False))
    assert not made.system.disk.exists(PATH), "4.9.7 has no such file"
    made.make_topic("T")
    made.make_group("G")
    assert asked(made, POP_OF_G).code == 0
    text = made.system.disk.read_bytes(PATH)
    assert parse_request_modes(text).modes == {"T": {"G": POP_OF_G}}
    assert made.broker.tables.request_modes.value == {"T": {"G": POP_OF_G}}
    answer = made.ask(request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
    assert RequestModeTable.decode(answer.body).modes == {"T": {"G": POP_OF_G}}


@pytest.mark.parametrize(
    ("mode", "code", "remark"),
    [
        (RequestMode("G", "POP", 0, "%RETRY%G"), 16, "retry topic is not allowed to set mode"),
        (RequestMode("G", "POP", 0, "U"), 17, "topic[U] not exist"),
        (RequestMode("H", "POP", 0, "T"), 26, "subscription group does not exist"),
        (RequestMode("G", "POP", 0), 1, "java.lang.NullPointerException: topic is null"),
        (RequestMode(None, topic="T"), 1, "java.lang.NullPointerException: consumerGroup is null"),
        (RequestMode("G", "PUSH", 0, "T"), 1, "mode is 'PUSH': it has to be PULL or POP"),
    ],
)
def test_invalid_request_modes_are_refused(mode: RequestMode, code: int, remark: str) -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_create_group_enable=False))
    made.make_topic("T")
    made.make_group("G")
    answer = asked(made, mode)
    assert (answer.code, answer.remark) == (code, remark)
    assert made.broker.tables.request_modes.value == {}
    assert not made.system.disk.exists(PATH)


def test_modes_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.tables.request_modes.MODES_MAX", 1)
    made = SimulatedBroker(1)
    made.make_topic("T")
    assert asked(made, POP_OF_G).code == 0
    assert asked(made, RequestMode("H", "POP", 0, "T")).code == ResponseCode.SYSTEM_ERROR
    assert asked(made, RequestMode("G", "PULL", 0, "T")).code == 0


def test_many_modes_are_encoded_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves ask every ten seconds, and 50,000 modes took 0.3 s."""
    made = SimulatedBroker(1, config=replace(BROKER, auto_create_group_enable=False))
    made.make_topic("T")
    made.make_group("G")
    assert asked(made, POP_OF_G).code == 0
    encoder = made.system.address("table_encoder")
    before = encoder.handled
    bodies = []
    for most in (1, 0):
        monkeypatch.setattr("actors.tables.request_modes.ENCODED_HERE_MAX", most, raising=False)
        bodies.append(made.ask(request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)
    assert bodies[0] == bodies[1] and encoder.handled == before + 1
