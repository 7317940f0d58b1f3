"""Tests of storage/tables/committed.py: the highest offset of each queue."""

from protocol.topic_names import SCHEDULE_TOPIC
from storage.tables.committed import committed_in_files, highest_offsets
from storage.tables.json_config import save
from tests.support.brokers import STORE
from troupemq.testing.fake_disk import FakeDisk


def test_the_highest_offset_of_all_groups_is_returned() -> None:
    offsets = {"T@a": {0: 5, 1: 0}, "T@b": {0: 9}, "U@a": {0: 3}}
    assert highest_offsets(offsets) == {("T", 0): 9, ("U", 0): 3}


def test_files_that_are_missing_or_damaged_give_0() -> None:
    disk = FakeDisk()
    assert committed_in_files(STORE, disk)("T", 0) == 0
    disk.make_dirs(STORE.config_dir)
    save(disk, f"{STORE.config_dir}/consumerOffset.json", "not JSON")
    save(disk, f"{STORE.config_dir}/delayOffset.json", '{"offsetTable":{3:50}}')
    committed = committed_in_files(STORE, disk)
    assert (committed("T", 0), committed(SCHEDULE_TOPIC, 2)) == (0, 50)
