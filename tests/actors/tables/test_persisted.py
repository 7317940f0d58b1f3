"""Tests of actors/tables/persisted.py: what nobody waits for is named, but not every time."""

from structlog.testing import capture_logs

from actors.engine.rarely import MINUTE_MS
from protocol.codes import RequestCode
from protocol.headers.admin import CreateTopicHeader
from tests.actors.tables.test_topics import topic_table
from tests.support.peers import RecordingPeer, request, tell


def test_one_way_changes_that_are_refused_are_told_once_a_minute() -> None:
    header = CreateTopicHeader("T", "TBW102", -4, 4, 6, "SINGLE_TAG")
    bad = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode(), oneway=True)
    with topic_table() as bench, capture_logs() as lines:
        for minute in range(2):
            for _ in range(3):
                tell(bench.system, "topics", bad, RecordingPeer())
            said = [each for each in lines if each["event"] == "one-way request refused"]
            assert len(said) == minute + 1
            bench.system.advance(MINUTE_MS)
        assert said[1]["dropped_in_all"] == 4
        assert said[0]["reason"] == "readQueueNums is -4: it has to be from 0 to 2147483647"
        assert "T" not in bench.topics.value
