"""The store as a whole: exclusive opening, and closing."""

import errno

import pytest

from storage.config import StoreConfig
from storage.errors import StoreError, StoreLocked
from storage.message_store import MessageStore
from storage.reading.get_message import GetLimits, GetResult, GetStatus, get_message
from storage.reading.queue_times import QueueTimes
from tests.support.clock import ManualClock
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk


def get(store: MessageStore, topic: str, queue_id: int) -> GetResult:
    """The first messages of a queue."""
    limits = GetLimits.of(CONFIG, 1 << 30, correct_offsets=True)
    queue = store.consume_queues.get(topic, queue_id)
    return get_message(queue, store.commit_log, 0, 32, None, limits)


def test_a_new_store_has_the_files_of_the_original() -> None:
    made = SmallStore()
    assert made.disk.listdir("/store") == ["abort", "checkpoint", "commitlog", "lock", "troupemq"]
    assert made.disk.listdir("/store/commitlog") == ["00000000000000000000"]
    made.store.close()
    ours = ["transaction", "troupemq"]
    assert made.disk.listdir("/store") == ["checkpoint", "commitlog", "lock", *ours]


def test_a_store_can_be_opened_only_once() -> None:
    made = SmallStore()
    with pytest.raises(StoreLocked):
        SmallStore(made.disk)
    made.send(1)
    assert SmallStore(made.restarted().disk.killed()).log.end_offset > 0


def test_a_failed_open_releases_the_store_and_leaves_no_abort_file() -> None:
    made = SmallStore()
    made.send(1)
    made.store.close()
    other = StoreConfig(root="/store", commit_log_file_bytes=16_384)
    for _ in range(2):
        with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
            MessageStore(other, made.disk, ManualClock()).open()
    assert not made.disk.exists("/store/abort")
    assert SmallStore(made.disk).report.clean


@pytest.mark.heavy
def test_the_log_can_be_in_another_directory() -> None:
    config = StoreConfig(root="/store", commit_log_dir="/fast/log", commit_log_file_bytes=8192)
    made = SmallStore(config=config)
    made.send(5)
    assert made.disk.listdir("/fast/log") == ["00000000000000000000"]
    assert not made.disk.exists("/store/commitlog")
    assert made.restarted().log.end_offset == made.log.end_offset


def test_a_clean_stop_saves_the_checkpoint() -> None:
    made = SmallStore()
    made.send(3)
    again = made.restarted().store.checkpoint
    assert again.physic_ms == again.logics_ms == made.clock.now_ms()


def test_a_stop_without_a_flush_keeps_the_abort_file_and_releases_the_store() -> None:
    made = SmallStore()
    made.send(3)
    made.disk.fail_next("sync", OSError(errno.EIO, "broken"))
    with pytest.raises(StoreError, match="cannot sync"):
        made.store.close()
    assert made.disk.exists("/store/abort")
    again = SmallStore(made.disk)
    assert not again.report.clean
    assert again.log.end_offset == made.log.end_offset


def test_an_abandoned_store_recovers() -> None:
    made = SmallStore()
    made.send(3)
    made.store.abandon()
    again = SmallStore(made.disk)
    assert not again.report.clean
    assert sum(map(len, again.units().values())) == 3


def test_a_full_disk_is_reported_at_the_start() -> None:
    with pytest.raises(StoreError, match="the disk is full; make room"):
        SmallStore(FakeDisk(capacity_bytes=10_000))


def test_a_restarted_dispatcher_catches_up_from_the_log() -> None:
    made = SmallStore()
    made.send(10)
    made.send(7, dispatch=False)
    assert made.store.catch_up() == made.log.end_offset
    assert sum(map(len, made.units().values())) == 17
    assert made.found_by_key() == 17
    assert made.store.catch_up() == made.log.end_offset
    assert sum(map(len, made.units().values())) == 17


def test_messages_are_read_by_queue_offset() -> None:
    made = SmallStore()
    placed = made.send(6)
    result = get(made.store, "Topic", 1)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 3, 3)
    assert b"".join(result.views) == b"".join(
        made.log.view(offset, size) for offset, size in placed[1::2]
    )
    missing = get(made.store, "Other", 0)
    assert missing.status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_queue_offsets_are_found_by_time() -> None:
    made = SmallStore()
    for _ in range(3):
        made.clock.advance(1000)
        made.send(2)
    now_ms = made.clock.now_ms()
    times, queues = QueueTimes(made.log, made.store.damage), made.store.consume_queues
    assert times.offset_at(queues.get("Topic", 0), now_ms - 1000) == 1
    assert times.offset_at(queues.get("Other", 0), now_ms) == 0


def test_a_disabled_index_creates_no_files() -> None:
    config = StoreConfig(root="/store", commit_log_file_bytes=8192, message_index_enable=False)
    made = SmallStore(config=config)
    made.send(5)
    assert made.store.index is None
    assert not made.restarted().disk.exists("/store/index")
    assert CONFIG.message_index_enable
