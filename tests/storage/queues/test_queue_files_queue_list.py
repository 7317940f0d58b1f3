"""The list of queues that a crash is compared with."""

import pytest

from storage.queues.queue_files import QueueList
from tests.storage.derived import config
from troupemq.testing.fake_disk import FakeDisk


def test_a_saved_queue_list_is_loaded() -> None:
    disk = FakeDisk()
    names = [("A", 0), ("A", 12), ("B\udcff", 3)]
    QueueList(config(), disk).save(names)
    assert QueueList(config(), disk).load() == frozenset(names)


def test_the_queue_list_is_written_only_after_a_change() -> None:
    disk = FakeDisk()
    queues = QueueList(config(), disk)
    queues.save([("A", 0)])
    syncs = disk.sync_count
    queues.save([("A", 0)])
    assert disk.sync_count == syncs
    queues.save([("A", 0), ("A", 1)])
    assert disk.sync_count > syncs


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped"])
def test_a_damaged_queue_list_counts_as_missing(damage: str) -> None:
    disk = FakeDisk()
    QueueList(config(), disk).save([("A", 0)])
    path = config().queue_list_path
    if damage == "gone":
        disk.unlink(path)
    elif damage == "flipped":
        disk.open(path).pwrite(b"B", 2)
    else:
        disk.open(path).set_size(0 if damage == "empty" else 6)
    assert QueueList(config(), disk).load() == frozenset()
