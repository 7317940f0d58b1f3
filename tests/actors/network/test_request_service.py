"""Tests of a port's Service: routes of commands, and unserved codes."""

from dataclasses import replace

from actors.network.messages import ClientAnswer, Request
from actors.network.request import Service
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RESPONSE_FLAG, RemotingCommand
from tests.support.peers import RecordingPeer, Told, request


def test_a_request_goes_to_the_actor_of_its_code() -> None:
    pulls, beats, peer = Told("pulls"), Told("beats"), RecordingPeer()
    service = Service({11: pulls.address, 34: beats.address})
    pull, beat = request(RequestCode.PULL_MESSAGE), request(RequestCode.HEART_BEAT)
    service.pass_on(pull, peer)
    service.pass_on(beat, peer)
    assert [replace(each, began_s=0.0) for each in pulls.take()] == [Request(pull, peer)]
    assert [replace(each, began_s=0.0) for each in beats.take()] == [Request(beat, peer)]
    assert peer.received == []


def test_an_answer_goes_to_the_client_calls_whatever_its_code() -> None:
    asked, pulls, peer = Told("client_calls"), Told("pulls"), RecordingPeer()
    answer = RemotingCommand(RequestCode.PULL_MESSAGE, opaque=3, flag=RESPONSE_FLAG)
    Service({11: pulls.address}, answers_to=asked.address).pass_on(answer, peer)
    assert asked.take() == [ClientAnswer(answer, peer)]
    Service({11: pulls.address}).pass_on(answer, peer)  # no client is asked there
    assert (pulls.take(), peer.received) == ([], [])


def test_an_unserved_code_is_answered_by_a_broker_only() -> None:
    broker_side, namesrv_side = RecordingPeer(), RecordingPeer()
    served = [
        Service({}).pass_on(request(9999), broker_side),
        Service({}).pass_on(request(9999, oneway=True), broker_side),
        Service({}, answer_unknown=False).pass_on(request(9999), namesrv_side),
    ]
    (answer,) = broker_side.received
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"
    assert namesrv_side.received == []
    assert served == [False] * 3


def test_a_request_may_wait_behind_others_if_it_is_short() -> None:
    queries, peer = Told("queries"), RecordingPeer()
    mail = queries.address.move_to_thread([])
    service = Service({12: queries.address, 34: Told("beats").address})

    def asks(body_bytes: int) -> int:
        query = RemotingCommand(12, {"topic": "T"}, bytes(body_bytes))
        service.pass_on(query, peer)
        return mail.qsize()

    assert [asks(8 << 20) for _ in range(3)] == [1, 1, 1]
    assert [each.code for each in peer.received] == [ResponseCode.SYSTEM_BUSY] * 2
    mail.up()
    waiting = [asks(0) for _ in range(20_000)]
    assert waiting[1_000] == 1_002 and waiting[-1] < 16_384
    assert (peer.received[-1].remark or "").endswith("requests wait already: ask again later")
    taken = mail.qsize()
    for _ in range(taken):
        mail.get_nowait()
    assert asks(8 << 20) == 1, "an actor that is idle takes any request"
