"""Tests of actors/network/long_answers.py: long answers, and answers longer than a frame."""

import pytest

from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import LongAnswers
from actors.network.messages import LongAnswer, Request
from actors.tables.config_writer import TableEncoder
from actors.tables.messages import EncodeAnswer
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand
from tests.support.peers import RecordingPeer, request, simulated

WRITERS = (LongAnswers, TableEncoder)


def answer_of(writer: type[LongAnswers] | type[TableEncoder], body: KVTable) -> RemotingCommand:
    with simulated() as system:
        system.start(ChildSpec("writer", lambda _: writer()))
        peer = RecordingPeer()
        asked = Request(request(RequestCode.GET_CONSUME_STATS), peer)
        kind = LongAnswer if writer is LongAnswers else EncodeAnswer
        system.address("writer").tell(kind(asked, body))
        system.drain()
        (answer,) = peer.received
        return answer


@pytest.mark.parametrize("writer", WRITERS)
def test_a_long_answer_carries_its_body(writer: type[LongAnswers] | type[TableEncoder]) -> None:
    answer = answer_of(writer, KVTable({"k": "v"}))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.body == KVTable({"k": "v"}).encode()


@pytest.mark.parametrize("writer", WRITERS)
def test_an_answer_too_long_for_a_frame_becomes_an_error(
    writer: type[LongAnswers] | type[TableEncoder],
) -> None:
    answer = answer_of(writer, KVTable({"k": "v" * FRAME_BYTES_MAX}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"a frame holds {FRAME_BYTES_MAX}" in (answer.remark or "")
    assert not answer.body
