"""Rebuild of all derived files: the result is the same, even after an interruption."""

import pytest

from storage.checking.store_check import StoreCheck
from storage.errors import StoreError, StoreLocked
from storage.recovery.store_rebuild import order_rebuild, rebuild_is_ordered
from storage.tables.json_config import save
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

QUEUES = "/store/consumequeue/Topic"


def stopped(count: int = 250) -> FakeDisk:
    small = SmallStore()
    small.send(count)
    small.store.close()
    return small.disk


def queue_bytes(disk: FakeDisk) -> dict[str, bytes]:
    return {
        f"{queue_id}/{name}": disk.read_bytes(f"{QUEUES}/{queue_id}/{name}")
        for queue_id in disk.listdir(QUEUES)
        for name in disk.listdir(f"{QUEUES}/{queue_id}")
    }


def damage(disk: FakeDisk) -> None:
    """Hits queues and index in many places."""
    for directory in (f"{QUEUES}/0", "/store/index"):
        for name in disk.listdir(directory):
            file = disk.open(f"{directory}/{name}")
            file.pwrite(b"\x55" * 300, 0)
            file.close()
    disk.remove_tree(f"{QUEUES}/1")


def test_queues_and_index_are_rebuilt_from_the_log() -> None:
    disk = stopped()
    before = queue_bytes(disk)
    damage(disk)
    order_rebuild(CONFIG, disk)
    small = SmallStore(disk)
    assert not rebuild_is_ordered(CONFIG, disk)
    small.store.catch_up()
    assert small.found_by_key() == 250
    small.store.close()
    assert queue_bytes(disk) == before
    save(disk, "/store/config/topics.json", '{"topicConfigTable":{"Topic":{"perm":6}}}')
    assert StoreCheck(disk, CONFIG).run().findings == []


def test_a_store_in_use_is_refused() -> None:
    small = SmallStore()
    with pytest.raises(StoreLocked):
        order_rebuild(CONFIG, small.disk)
    assert not rebuild_is_ordered(CONFIG, small.disk)
    small.store.close()


@pytest.mark.trial(short=20, long=500)
def test_the_next_start_completes_an_interrupted_rebuild(seed: int) -> None:
    disk = stopped()
    before = queue_bytes(disk)
    damage(disk)
    order_rebuild(CONFIG, disk)
    SmallStore(disk)  # dies
    small = SmallStore(disk.crashed(seed))
    small.store.catch_up()
    assert sum(map(len, small.units().values())) == 250
    small.store.close()
    assert queue_bytes(small.disk) == before


def test_a_failing_disk_leaves_the_rebuild_order_intact() -> None:
    disk = stopped()
    before = queue_bytes(disk)
    damage(disk)
    order_rebuild(CONFIG, disk)
    disk.fail_next("unlink", OSError(5, "Input/output error"))
    with pytest.raises(StoreError):
        SmallStore(disk)
    after = disk.killed()
    assert rebuild_is_ordered(CONFIG, after)
    SmallStore(after).store.close()
    assert queue_bytes(after) == before
