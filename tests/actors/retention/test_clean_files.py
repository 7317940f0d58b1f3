"""Deletion of old files in order, without harm to readers; a full disk refuses sends."""

from random import Random

import pytest
from structlog.testing import capture_logs

from actors.dispatching.messages import QueuesBegunAnew, WritesForbidden
from actors.retention import clean_files
from actors.retention.clean_files import DISK_CHECK_MS
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.message import decode_records
from protocol.topic_names import SCHEDULE_TOPIC
from storage.files.mapped_file import file_name
from storage.retention.trimming import removed_dir
from tests.support.brokers import FramesPeer, send_command
from tests.support.cleaned import (
    BODY,
    CLEAN_MS,
    CONFIG,
    FILE_BYTES,
    HOUR_MS,
    LATER_MS,
    LOG_DIR,
    START_MS,
    Cleaned,
)


def test_a_request_deletes_old_files_and_raises_the_min_offset() -> None:
    cleaned = Cleaned()
    before = cleaned.log_files
    log = cleaned.made.broker.store.commit_log
    current = log.end_offset - log.end_offset % FILE_BYTES
    with capture_logs() as lines:
        cleaned.delete()
    assert cleaned.log_files == [name for name in before if int(name) >= current]
    assert log.min_offset() == current > 0
    told = [line["file"] for line in lines if line["event"] == "log file deleted"]
    assert told == [f"{LOG_DIR}/{name}" for name in before if int(name) < current]


def test_unexpired_files_are_kept() -> None:
    cleaned = Cleaned(age_hours=71)
    before = cleaned.log_files
    cleaned.delete()
    assert cleaned.log_files == before


def test_derived_files_follow_and_retained_messages_are_served() -> None:
    cleaned = Cleaned()
    made, store = cleaned.made, cleaned.made.broker.store
    directory = f"{CONFIG.consume_queue_dir}/Topic/0"
    files_before = cleaned.disk.listdir(directory)
    assert files_before[0] == file_name(0)
    cleaned.delete()
    first = made.records()[0]
    for queue_id in (0, 1):
        left = [r for r in made.records() if r.queue_id == queue_id]
        assert cleaned.min_offset(queue_id) == left[0].queue_offset > 0
        assert cleaned.bodies(queue_id) == [record.body for record in left]
    assert file_name(0) not in cleaned.disk.listdir(directory)
    info = cleaned.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert b'"commitLogMinOffset":"%d"' % store.commit_log.min_offset() in (info.body or b"")
    assert b'"earliestMessageTimeStamp":"%d"' % first.store_timestamp in (info.body or b"")


def test_a_pull_below_the_min_offset_is_corrected_to_it() -> None:
    cleaned = Cleaned()
    cleaned.delete()
    answer = cleaned.made.pull(0)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.fields is not None and answer.remark == "OFFSET_TOO_SMALL"
    assert int(answer.fields["nextBeginOffset"]) == cleaned.min_offset()
    assert int(answer.fields["minOffset"]) == cleaned.min_offset()


def test_a_time_before_the_first_message_gives_the_min_offset() -> None:
    cleaned = Cleaned()
    cleaned.delete()
    command = RemotingCommand(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "Topic", "queueId": "0", "timestamp": str(START_MS - HOUR_MS)},
    )
    assert (cleaned.made.ask(command).fields or {})["offset"] == str(cleaned.min_offset())


def test_a_restart_keeps_the_min_offsets() -> None:
    cleaned = Cleaned()
    cleaned.delete()
    made = cleaned.made
    before = [cleaned.min_offset(q) for q in (0, 1)], [cleaned.bodies(q) for q in (0, 1)]
    made.stop()
    made.start()
    assert ([cleaned.min_offset(q) for q in (0, 1)], [cleaned.bodies(q) for q in (0, 1)]) == before
    made.crash()
    made.start()
    assert ([cleaned.min_offset(q) for q in (0, 1)], [cleaned.bodies(q) for q in (0, 1)]) == before


def test_files_are_deleted_singly_with_pauses_ten_a_round() -> None:
    cleaned = Cleaned(250)
    count = len(cleaned.log_files)
    assert count > 14
    system = cleaned.made.system
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    system.run_until(lambda: len(cleaned.log_files) == count - 1, LATER_MS)
    system.advance(90)
    assert len(cleaned.log_files) == count - 1
    system.advance(20)
    assert len(cleaned.log_files) == count - 2
    system.advance(2000)
    assert len(cleaned.log_files) == count - 10
    system.advance(CLEAN_MS)
    assert len(cleaned.log_files) < count - 10


def test_a_file_that_cannot_be_deleted_is_retried_first() -> None:
    cleaned = Cleaned()
    before = cleaned.log_files
    refusal = OSError(5, "input/output error")
    cleaned.disk.fail_next("unlink", refusal, times=2)
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    with capture_logs() as lines:
        log = cleaned.made.broker.store.commit_log
        cleaned.made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
        cleaned.made.system.advance(CLEAN_MS)  # one more try
        assert cleaned.log_files == before
        cleaned.made.system.advance(3 * CLEAN_MS)
    assert len([line for line in lines if line["event"] == "file not deleted"]) == 1
    assert file_name(0) not in cleaned.log_files


def test_unflushed_or_undispatched_files_are_kept() -> None:
    cleaned = Cleaned()
    broker = cleaned.made.broker
    broker.following.dispatched_offset = FILE_BYTES
    cleaned.delete()
    assert broker.store.commit_log.min_offset() == FILE_BYTES


def test_a_full_disk_refuses_sends_until_there_is_space() -> None:
    cleaned = Cleaned(10, age_hours=1)
    made, disk = cleaned.made, cleaned.disk
    disk.usage = 0.91
    with capture_logs() as lines:
        made.system.advance(5 * DISK_CHECK_MS)
    assert [line["event"] for line in lines].count("writes disabled") == 1
    answer = made.send(b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the broker's disk is full [CL:  0.91 CQ:  0.91 INDEX: -1.00]" in (answer.remark or "")
    assert len(cleaned.bodies()) == 5
    disk.usage = 0.9
    with capture_logs() as lines:
        made.system.advance(DISK_CHECK_MS)
    assert [line["event"] for line in lines].count("writes enabled") == 1
    assert made.send(b"taken").code == ResponseCode.SUCCESS


def test_only_free_space_lifts_the_full_disk_refusal() -> None:
    cleaned = Cleaned(4)
    made = cleaned.made
    cleaned.disk.usage = 0.95
    made.system.advance(2 * DISK_CHECK_MS)
    put_message = made.system.address("put_message")
    put_message.tell(WritesForbidden("the queues"))
    put_message.tell(WritesForbidden(None))
    assert made.send(b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
    put_message.tell(WritesForbidden("the queues"))
    cleaned.disk.usage = 0.5
    made.system.advance(2 * DISK_CHECK_MS)
    assert made.send(b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
    put_message.tell(WritesForbidden(None))
    assert made.send(b"taken").code == ResponseCode.SUCCESS


def test_above_the_forcible_ratio_files_are_deleted_at_any_age() -> None:
    cleaned = Cleaned(age_hours=1)
    before = cleaned.log_files
    cleaned.disk.usage = 0.86
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    assert len(cleaned.log_files) <= len(before) - 5
    assert {line["reason"] for line in lines if line["event"] == "log file deleted"} == {
        "the disk is full"
    }


def test_the_next_round_checks_the_disk_after_deleted_maps_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On PyPy they kept their room, and a full disk had further files deleted for it."""
    cleaned = Cleaned(250, age_hours=1)
    ended: list[int] = []

    def end_unreferenced() -> None:
        ended.append(len(cleaned.log_files))
        cleaned.disk.usage = 0.5

    monkeypatch.setattr(clean_files, "end_unreferenced", end_unreferenced)
    before = len(cleaned.log_files)
    cleaned.made.system.advance(LATER_MS)
    assert ended == []
    cleaned.disk.usage = 0.86
    cleaned.made.system.advance(LATER_MS)
    assert ended == [len(cleaned.log_files)] == [before - 10]


def test_a_disk_full_of_young_files_is_logged_once() -> None:
    cleaned = Cleaned(age_hours=1)
    before = cleaned.log_files
    cleaned.disk.usage = 0.8
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    assert cleaned.log_files == before
    events = [line["event"] for line in lines]
    assert events.count("disk filling up, no log file deletable") == 1


def test_empty_queues_are_removed_on_request_and_can_restart() -> None:
    cleaned = Cleaned(60)
    made = cleaned.made
    made.make_topic("Other", queues=1)
    for number in range(40):
        made.send(b"%d:" % number + BODY, topic="Other", queue_id=0)
    made.system.advance(20_000)
    cleaned.delete()
    assert cleaned.max_offset() == 30
    assert cleaned.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == ResponseCode.SUCCESS
    made.system.advance(1000)
    assert (cleaned.min_offset(), cleaned.max_offset()) == (30, 30)
    assert not cleaned.disk.exists(f"{CONFIG.consume_queue_dir}/Topic")
    assert cleaned.disk.listdir(removed_dir(CONFIG)) == []
    assert cleaned.max_offset(topic="Other") == 40
    made.system.advance(CONFIG.flush_queue_interval_ms)
    assert made.broker.store.queue_list.load() == {("Other", 0)}
    assert made.stored(made.send(b"first")).queue_offset == 30
    made.system.advance(1000)
    made.crash()
    made.start()
    assert cleaned.bodies() == [b"first"]
    assert made.stored(made.send(b"second")).queue_offset == 31


def test_a_message_stored_during_its_queues_removal_keeps_its_offset() -> None:
    cleaned = Cleaned(60)
    made = cleaned.made
    made.make_topic("Other", queues=1)
    for number in range(40):
        made.send(b"%d:" % number + BODY, topic="Other", queue_id=0)
    made.system.advance(20_000)
    cleaned.delete()
    answers: list[RemotingCommand] = []
    made.client.start(RemotingCommand(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE), answers.append)
    peer = FramesPeer()
    sends = [send_command(b"%d" % number) for number in range(8)]
    made.system.address("put_message").tell(peer.sends(*sends))
    made.system.advance(1000)
    offsets = [made.stored(answer).queue_offset for answer in peer.answers()]
    assert offsets == list(range(30, 38))
    assert cleaned.bodies() == [b"%d" % number for number in range(8)]
    assert cleaned.min_offset() == 30


def test_queues_of_unknown_topics_are_removed_on_request() -> None:
    cleaned = Cleaned(10)
    made = cleaned.made
    made.send(b"late", properties="DELAY\x013")
    made.system.advance(1000)
    topics = made.broker.tables.topics
    topics.value = {name: config for name, config in topics.value.items() if name != "Topic"}
    assert cleaned.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    made.system.advance(1000)
    left = {queue.topic for queue in made.broker.store.consume_queues}
    assert left == {SCHEDULE_TOPIC}
    assert cleaned.disk.listdir(CONFIG.consume_queue_dir) == [SCHEDULE_TOPIC]


def test_queues_of_a_topic_created_during_their_removal_stay() -> None:
    cleaned = Cleaned(10)
    made, answers = cleaned.made, list[RemotingCommand]()
    topics = made.broker.tables.topics
    before, topics.value = topics.value, {}
    handled = made.system.address("clean_files").handled
    made.client.start(RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC), answers.append)
    made.system.run_until(lambda: made.system.address("clean_files").handled > handled, 1000)
    topics.value = before
    made.system.advance(1000)
    assert [each.code for each in answers] == [ResponseCode.SUCCESS]
    assert len(cleaned.bodies()) == 5


def test_queues_removed_while_the_cleaner_failed_are_put_away() -> None:
    """Without that, their offsets stay, and the answer goes to a later request."""
    cleaned = Cleaned(10)
    made, answers = cleaned.made, list[RemotingCommand]()
    made.broker.tables.topics.value = {}
    cleaner = made.system.address("clean_files")
    handled = cleaner.handled
    made.client.start(RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC), answers.append)
    made.system.run_until(lambda: cleaner.handled > handled, 1000)
    cleaner.tell(QueuesBegunAnew(None, {}))  # type: ignore[arg-type]
    made.system.advance(5_000)
    assert [each.code for each in answers] == [ResponseCode.SUCCESS]
    figures = {each.name: each.incarnation for each in made.system.figures()}
    assert figures["clean_files"] == 2


def test_a_failed_removal_is_reported() -> None:
    cleaned = Cleaned(60)
    made = cleaned.made
    made.broker.tables.topics.value = {}
    cleaned.disk.fail_next("rename", OSError(5, "input/output error"))
    answer = cleaned.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot remove queue" in (answer.remark or "")


@pytest.mark.parametrize("after_ms", [0, 1, 5, 120, 500])
def test_pulls_during_deletion_find_all_retained_messages(after_ms: int) -> None:
    cleaned = Cleaned()
    made, log = cleaned.made, cleaned.made.broker.store.commit_log
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    made.system.advance(after_ms)
    found: list[bytes] = []
    offset = 0
    while (answer := made.pull(offset)).code != ResponseCode.PULL_NOT_FOUND:
        assert answer.code in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        assert answer.fields is not None and int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
        if answer.code == ResponseCode.SUCCESS and answer.body is not None:
            found += [record.body for record in decode_records(bytes(answer.body))]
    left = [record.body for record in made.records() if record.queue_id == 0]
    assert left and found[len(found) - len(left) :] == left


def test_a_stop_during_deletion_leaves_no_unused_file() -> None:
    cleaned = Cleaned()
    made, log = cleaned.made, cleaned.made.broker.store.commit_log
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    cleaned.disk.fail_next("unlink", OSError(5, "input/output error"))
    made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    made.system.advance(10)
    first = file_name(log.min_offset())
    made.stop()
    assert cleaned.log_files[0] == first != file_name(0)
    made.start()
    assert made.broker.store.commit_log.min_offset() == int(first)


@pytest.mark.parametrize("name", ["clean_files", "reput", "put_message"])
@pytest.mark.trial(short=1, long=100)
def test_files_left_by_a_failed_actor_are_deleted_later(name: str, seed: int) -> None:
    after_ms = Random(seed).randrange(1300)
    cleaned = Cleaned()
    made, log = cleaned.made, cleaned.made.broker.store.commit_log
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    made.system.advance(after_ms)
    made.system.address(name).tell(Bug())
    made.system.advance(2 * LATER_MS)
    assert cleaned.log_files[0] == file_name(log.min_offset())
    left = [record for record in made.records() if record.queue_id == 0]
    assert cleaned.min_offset() == left[0].queue_offset
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    files = cleaned.disk.listdir(f"{CONFIG.consume_queue_dir}/Topic/0")
    assert files == [file_name(first * 20) for first in queue.file_firsts()]
    made.stop()
    made.start()
    assert cleaned.bodies() == [record.body for record in left]


def test_a_file_held_by_a_failed_clean_files_is_deleted_first_by_the_next() -> None:
    cleaned = Cleaned()
    made, log = cleaned.made, cleaned.made.broker.store.commit_log
    assert cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    cleaned.disk.fail_next("unlink", OSError(5, "input/output error"))
    made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    made.system.advance(10)
    made.system.address("clean_files").tell(Bug())
    made.system.advance(LATER_MS)
    assert cleaned.log_files[0] == file_name(log.min_offset()) != file_name(0)


class Bug:
    """A message without a handler: its receiver fails."""
