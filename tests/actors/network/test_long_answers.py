"""Tests of actors/network/long_answers.py: long answers, and those that no frame holds."""

import pytest

from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import LongAnswer, LongAnswers
from actors.network.request import Request
from protocol.bodies import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.frame import FRAME_BYTES_MAX
from tests.support.peers import RecordingPeer, request, simulated


def answer_of(body: KVTable, fields: dict[str, str] | None = None) -> RemotingCommand:
    with simulated() as system:
        system.start(ChildSpec("long_answers", lambda _: LongAnswers()))
        peer = RecordingPeer()
        asked = Request(request(RequestCode.GET_CONSUME_STATS), peer)
        system.address("long_answers").tell(LongAnswer(asked, body, fields))
        system.drain()
        (answer,) = peer.received
        return answer


@pytest.mark.parametrize("fields", [None, {"a": "b"}])
def test_a_long_answer_has_its_body_and_fields(fields: dict[str, str] | None) -> None:
    answer = answer_of(KVTable({"k": "v"}), fields)
    assert (answer.code, answer.fields) == (ResponseCode.SUCCESS, fields)
    assert answer.body == KVTable({"k": "v"}).encode()


def test_what_no_frame_holds_is_answered_with_an_error_that_one_does() -> None:
    answer = answer_of(KVTable({"k": "v" * FRAME_BYTES_MAX}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"a frame holds {FRAME_BYTES_MAX}" in (answer.remark or "")
    assert not answer.body
