"""Findings of a start about TroupeMQ's own small files and the last clean stop."""

from dataclasses import replace

from storage.config import StoreConfig
from storage.recovery.clean_stop import CleanStop
from storage.recovery.start_findings import file_findings, lost_end, record_findings
from storage.replica.replica_mark import mark_replica
from troupemq.testing.fake_disk import FakeDisk

CONFIG = StoreConfig(root="/store")
RECORD = CleanStop(0, 1000, 5, (5, 5, 5))


def marked() -> tuple[FakeDisk, CleanStop]:
    disk = FakeDisk()
    mark_replica(CONFIG, disk)
    return disk, replace(RECORD, files=("troupemq/replica",))


def test_a_present_mark_gives_no_finding() -> None:
    disk, record = marked()
    assert file_findings(CONFIG, disk, record) == []


def test_a_missing_mark_is_reported_with_its_effects_on_slave_and_master() -> None:
    disk, record = marked()
    disk.unlink(CONFIG.replica_mark_path)
    found = [each.text for each in file_findings(CONFIG, disk, record) if each.is_wrong]
    assert len(found) == 1 and CONFIG.replica_mark_path in found[0]
    assert "a slave's start creates it again, a master's start does not search" in found[0]


def test_without_a_record_no_file_is_reported_missing() -> None:
    disk, _ = marked()
    disk.unlink(CONFIG.replica_mark_path)
    disk.make_dirs("/store/troupemq")
    assert not any("replica" in each.text for each in file_findings(CONFIG, disk, None))


def test_a_shorter_log_is_a_loss_and_a_longer_one_is_not() -> None:
    (found,) = lost_end(RECORD, 900)
    assert (
        found.is_wrong and "it ends at 900; at the last clean stop, it ended at 1000" in found.text
    )
    assert lost_end(RECORD, 1000) == lost_end(RECORD, 1100) == lost_end(None, 5) == []


def test_a_clean_stop_record_outdated_by_another_broker_is_a_note() -> None:
    (found,) = record_findings(CONFIG, FakeDisk(), RECORD, is_believed=False)
    assert not found.is_wrong
    assert record_findings(CONFIG, FakeDisk(), RECORD, is_believed=True) == []
    assert record_findings(CONFIG, FakeDisk(), None, is_believed=False) == []
