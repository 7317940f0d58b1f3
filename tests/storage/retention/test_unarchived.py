"""Unarchived messages after all changes of queues and archives."""

from pathlib import Path

import pytest

from protocol.message import MessageRecord
from storage.files.disk import RealDisk
from storage.retention.archive_manifest import LastMessage
from storage.retention.unarchived import StoreOnDisk, Unarchived
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch

LOG_FILE_BYTES = 4000


class Made:
    """Thirty messages, in turn for two queues of Orders and a retry topic, in files of eight."""

    def __init__(self, root: Path) -> None:
        self.writer = StoreWriter(root, log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=100)
        for number in range(30):
            topic, queue_id = (("Orders", 0), ("Orders", 1), ("%RETRY%group", 0))[number % 3]
            self.append(topic, queue_id, number)
        self.writer.close()

    def append(self, topic: str, queue_id: int, number: int) -> MessageRecord:
        body = bytes(480 - 91 - len(topic))
        at = NOVEMBER_ROOT_MS + number
        return self.writer.append(topic, queue_id, body, store_timestamp=at)

    def record(self, queue_id: int, queue_offset: int) -> MessageRecord:
        return next(
            each
            for each in self.writer.records
            if (each.topic, each.queue_id, each.queue_offset) == ("Orders", queue_id, queue_offset)
        )

    def last(self, queue_id: int, queue_offset: int) -> LastMessage:
        record = self.record(queue_id, queue_offset)
        return LastMessage(queue_offset, record.physical_offset, record.store_timestamp)

    def store(self, end: int | None = None) -> StoreOnDisk:
        root = self.writer.root
        return StoreOnDisk(RealDisk(), f"{root}/consumequeue", [f"{root}/commitlog"], end)

    def first(self, *ends: tuple[int, LastMessage], end: int | None = None) -> dict[int, int]:
        """The first unarchived queue offset of each queue of Orders."""
        found = self.store(end).first_unarchived({("Orders", id): last for id, last in ends})
        assert all(each.topic == "Orders" for each in found)
        assert found == sorted(found, key=lambda each: each.physical_offset)
        for each in found:
            assert (
                each.physical_offset
                == self.record(each.queue_id, each.queue_offset).physical_offset
            )
        return {each.queue_id: each.queue_offset for each in found}

    def damage(self, queue_id: int, queue_offset: int) -> None:
        at = self.record(queue_id, queue_offset).physical_offset
        first = at - at % LOG_FILE_BYTES
        patch(self.writer.root / "commitlog" / f"{first:020}", at - first + 4, b"\0\0\0\0")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_without_an_archive_each_queue_is_unarchived_from_its_start_except_retries(
    made: Made,
) -> None:
    assert made.first() == {0: 0, 1: 0}


def test_a_queue_is_archived_up_to_the_message_in_the_newest_manifest(made: Made) -> None:
    assert made.first((0, made.last(0, 6)), (1, made.last(1, 9))) == {0: 7}
    assert made.first((0, made.last(0, 9)), (1, made.last(1, 9))) == {}


def test_a_manifest_with_another_last_message_is_ignored(made: Made) -> None:
    last = made.last(0, 6)
    assert made.first((0, LastMessage(6, last.physical_offset, last.store_timestamp + 1)))[0] == 0
    assert made.first((0, LastMessage(6, last.physical_offset + 480, 0)))[0] == 0
    assert made.first((0, LastMessage(99, 9000, 0)))[0] == 0  # the queue was recreated


def test_a_manifest_with_an_expired_last_message_counts(made: Made) -> None:
    last = made.last(0, 1)
    (made.writer.root / "commitlog" / f"{0:020}").unlink()
    first_left = next(
        each.queue_offset
        for each in made.writer.records
        if each.topic == "Orders" and each.queue_id == 0 and each.physical_offset >= LOG_FILE_BYTES
    )
    assert made.first((0, last))[0] == first_left > 2
    assert made.first((0, made.last(0, 6)))[0] == 7


def test_a_damaged_message_is_not_waited_for(made: Made) -> None:
    made.damage(0, 7)
    assert made.first((0, made.last(0, 6)))[0] == 8
    made.damage(0, 8)
    made.damage(0, 9)
    assert 0 not in made.first((0, made.last(0, 6)))


def test_unpublished_messages_are_not_counted(made: Made) -> None:
    end = made.record(0, 7).physical_offset
    assert made.first((0, made.last(0, 6)), (1, made.last(1, 5)), end=end) == {1: 6}


def test_a_queue_without_a_file_or_directory_has_nothing_unarchived(made: Made) -> None:
    (made.writer.root / "consumequeue" / "Orders" / "5").mkdir()
    (made.writer.root / "consumequeue" / "Orders" / "lost+found").mkdir()
    assert made.first((0, made.last(0, 9)), (1, made.last(1, 9))) == {}
    empty = StoreOnDisk(RealDisk(), f"{made.writer.root}/none", [f"{made.writer.root}/none"])
    assert empty.first_unarchived({}) == []


def test_the_unarchived_messages_of_a_file_are_counted(made: Made) -> None:
    store = made.store()
    missing = Unarchived("Orders", 0, 2, made.record(0, 2).physical_offset)
    for first in range(0, 16_000, LOG_FILE_BYTES):
        wanted = sum(
            first <= each.physical_offset < first + LOG_FILE_BYTES and each.queue_offset >= 2
            for each in made.writer.records
            if (each.topic, each.queue_id) == ("Orders", 0)
        )
        assert store.count_between(missing, first, first + LOG_FILE_BYTES) == wanted
