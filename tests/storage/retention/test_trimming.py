"""Trimming of derived data after the beginning of the log has moved."""

import errno

import pytest

from storage.errors import StoreError
from storage.queues.consume_queue import UNIT
from storage.retention.trimming import (
    QUEUES_PER_STEP,
    RemovedQueues,
    Trimming,
    remove_queues,
    removed_dir,
    unused_files,
)
from tests.support.store import CONFIG, SmallStore

FILE_BYTES = CONFIG.commit_log_file_bytes
REMOVED_DIR = removed_dir(CONFIG)


def filled(count: int = 200, *topics: str) -> SmallStore:
    """A store of many files, all of it on disk."""
    small = SmallStore()
    for topic in topics or ("Topic",):
        small.send(count, topic)
    small.store.flush()
    return small


def drop_log(small: SmallStore, files: int | None = None) -> int:
    """Takes the first files out of the log, all but the last one if it is not said how many."""
    end = small.log.end_offset if files is None else files * FILE_BYTES
    for file in small.log.drop_before(end):
        small.disk.unlink(file.path)
    small.disk.sync_directory(CONFIG.commit_log_dir)
    return small.log.min_offset()


def trim(small: SmallStore) -> list[str]:
    trimming = Trimming(small.store, small.log.min_offset())
    while not trimming.step():
        pass
    return trimming.paths


def first_records(small: SmallStore) -> dict[tuple[str, int], int]:
    """The queue offset of the first record of each queue that the log still has."""
    found: dict[tuple[str, int], int] = {}
    for head in small.log.walk(small.log.min_offset()):
        found.setdefault((head.topic.decode(), head.queue_id), head.queue_offset)
    return found


def test_every_queue_starts_at_its_first_message_in_the_log() -> None:
    small = filled()
    drop_log(small, 2)
    paths = trim(small)
    begin = {
        (queue.topic, queue.queue_id): queue.min_offset for queue in small.store.consume_queues
    }
    assert begin == first_records(small) and min(begin.values()) > 0
    queue_files = [path for path in paths if path.startswith(CONFIG.consume_queue_dir)]
    assert queue_files and all(small.disk.exists(path) for path in paths)
    assert [path for path in paths if path.startswith(CONFIG.index_dir)]


def test_files_taken_out_of_use_can_be_deleted_before_a_reopen() -> None:
    small = filled()
    drop_log(small, 2)
    for path in trim(small):
        small.disk.unlink(path)
    units = small.units()
    for after in (small.killed(), small.restarted()):
        assert after.units() == units
        assert unused_files(after.store) == []


def test_files_taken_out_of_use_are_listed_oldest_first() -> None:
    small = filled()
    kept = [file.path for file in small.log.drop_before(2 * FILE_BYTES)]
    paths = [path for path in trim(small) if path.startswith(CONFIG.consume_queue_dir)]
    assert unused_files(small.store) == kept + paths


def test_many_queues_take_more_than_one_step() -> None:
    small = filled(2, *(f"Topic{number}" for number in range(QUEUES_PER_STEP)))
    trimming = Trimming(small.store, 0)
    assert [trimming.step() for _ in range(3)] == [False, False, True]


def test_a_queue_without_messages_starts_at_its_next_offset() -> None:
    small = filled(20, "Old")
    small.send(200, "New")
    drop_log(small)
    trim(small)
    queue = small.store.consume_queues.get("Old", 0)
    assert queue is not None and queue.min_offset == queue.max_offset == 10
    small.send(1, "Old")
    assert (queue.min_offset, queue.max_offset) == (10, 11)


def test_only_queues_without_a_message_in_the_log_are_expired() -> None:
    small = filled(20, "Old", "SCHEDULE_TOPIC_XXXX")
    small.send(200, "New")
    drop_log(small)
    removed = RemovedQueues()
    remove_queues(small.store, None, removed)
    assert removed.queues == [("Old", 0, 10), ("Old", 1, 10)]
    assert {queue.topic for queue in small.store.consume_queues} == {"New", "SCHEDULE_TOPIC_XXXX"}
    assert not small.disk.exists(f"{CONFIG.consume_queue_dir}/Old")
    assert len(small.disk.listdir(REMOVED_DIR)) == 2


def test_a_removed_queue_can_restart_before_its_old_files_are_deleted() -> None:
    small = filled(20, "Old")
    removed = RemovedQueues()
    remove_queues(small.store, frozenset(), removed)
    queue = small.store.consume_queues.get_or_create("Old", 0)
    assert queue.append(0, small.log.end_offset, 100, 7)
    small.store.consume_queues.write_out_all()
    for name in small.disk.listdir(REMOVED_DIR):
        small.disk.unlink(f"{REMOVED_DIR}/{name}")
    assert list(UNIT.iter_unpack(queue.units(0, 10))) == [(small.log.end_offset, 100, 7)]


def test_a_power_cut_before_the_directory_sync_can_restore_a_removed_queue() -> None:
    small = filled(20, "Old")
    removed = RemovedQueues()
    remove_queues(small.store, frozenset(), removed)
    directory = f"{CONFIG.consume_queue_dir}/Old/0"
    assert any(small.disk.crashed(seed).exists(directory) for seed in range(20))
    for each in removed.directories:
        if small.disk.is_dir(each):
            small.disk.sync_directory(each)
    assert not any(small.disk.crashed(seed).exists(directory) for seed in range(20))


def test_system_topics_are_kept_though_no_table_lists_them() -> None:
    own = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    small = filled(4, "Unused", "Used", *own)
    remove_queues(small.store, frozenset({"Used"}), RemovedQueues())
    assert {queue.topic for queue in small.store.consume_queues} == {"Used", *own}


def test_a_queue_on_another_file_system_is_deleted_at_once() -> None:
    small = filled(20, "Old")
    small.disk.fail_next("rename", OSError(errno.EXDEV, "Invalid cross-device link"), times=2)
    removed = RemovedQueues()
    remove_queues(small.store, frozenset(), removed)
    assert len(removed.queues) == 2 and small.disk.listdir(REMOVED_DIR) == []
    assert not small.disk.exists(f"{CONFIG.consume_queue_dir}/Old")


def test_a_failing_disk_is_a_one_sentence_error() -> None:
    small = filled(20, "Old")
    small.disk.fail_next("rename", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StoreError, match="cannot remove queue /store/consumequeue/Old/0"):
        remove_queues(small.store, frozenset(), RemovedQueues())
