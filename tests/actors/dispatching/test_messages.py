"""Refusals of dispatching messages after their receiver has failed."""

from dataclasses import dataclass

from actors.dispatching.messages import (
    AwaitDispatch,
    CheckRecord,
    QueuesWritten,
    RecordChecked,
    WriteOutQueues,
)
from actors.network.messages import Request
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.queues.unsynced import Unsynced
from storage.reading.record_place import RecordPlace
from tests.support.peers import RecordingPeer, Told


@dataclass(slots=True)
class Checked(RecordChecked):
    request: Request

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


def test_record_check_is_answered_or_refused_if_an_actor_fails() -> None:
    told, peer = Told("record_checker"), RecordingPeer()
    request = Request(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID), peer)
    asked = CheckRecord(RecordPlace("Orders", 0, 0, 0, 100), Checked(request), told.address)
    AwaitDispatch(100, asked, told.address).on_undelivered("it has died")
    assert told.take() == [asked]
    asked.on_undelivered("checker failed")
    Checked(request).on_undelivered("requester stopped")
    remarks = [answer.remark for answer in peer.received]
    assert remarks == ["checker failed", "requester stopped"]


def test_without_reput_a_sync_reports_no_checkpoint_time() -> None:
    flusher = Told("flush_real_time")
    WriteOutQueues(0, flusher.address).on_undelivered("reput has stopped")
    (told,) = flusher.take()
    assert isinstance(told, QueuesWritten)
    assert told.unsynced.store_timestamp is None
    assert told.unsynced.files == Unsynced()
    assert (told.full_index, told.table, told.sinks) == (None, None, None)
