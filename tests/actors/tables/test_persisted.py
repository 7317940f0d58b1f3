"""Tests of actors/tables/persisted.py: answers wait for the disk; dropped changes are logged."""

from structlog.testing import capture_logs

from actors.engine.server_log import MINUTE_MS
from actors.tables.messages import CreateTopicOnSend
from protocol.codes import RequestCode
from protocol.headers.admin import CreateTopicHeader
from storage.tables.topics import parse_topics
from tests.actors.tables.test_topics import PATH, topic_table
from tests.support.peers import RecordingPeer, request, tell
from troupemq.testing.fake_disk import FakeDisk


def test_refused_one_way_changes_are_logged_once_a_minute() -> None:
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


def test_topics_created_in_one_batch_are_saved_before_the_answers() -> None:
    disk = FakeDisk()
    with topic_table(disk) as bench:
        written = bench.table.value.data_version.counter
        for number in range(100):
            message = CreateTopicOnSend(f"T{number}", "TBW102", 4, False, "p", bench.sender.address)
            bench.system.address("topics").tell(message)
            bench.system.address("topics").tell(message)  # it is there, and not on disk yet
        bench.system.drain()
        told = {ready.topic for ready in bench.sender.take()}
        assert told == {f"T{number}" for number in range(100)} <= bench.topics.value.keys()
        assert bench.table.value.data_version.counter == written + 100
        assert told <= parse_topics(disk.read_bytes(PATH).decode()).topic_configs.keys()
