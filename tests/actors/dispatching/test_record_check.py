"""A question about a record is answered or refused, whatever becomes of who was to answer it."""

from actors.dispatching.hand_over import AwaitDispatch
from actors.dispatching.record_check import CheckRecord, RecordChecked
from actors.network.request import Request
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from storage.reading.record_place import RecordPlace
from tests.support.peers import RecordingPeer, Told


def test_a_question_outlives_who_was_to_be_waited_for() -> None:
    told, peer = Told("record_checker"), RecordingPeer()
    request = Request(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID), peer)
    asked = CheckRecord(RecordPlace("Orders", 0, 0, 0, 100), request, told.address)
    AwaitDispatch(100, asked, told.address).refuse("it has died")
    assert told.take() == [asked]
    asked.refuse("nobody can say")
    RecordChecked(request, True).refuse("nobody is there")
    remarks = [answer.remark for answer in peer.received]
    assert remarks == ["nobody can say", "nobody is there"]
