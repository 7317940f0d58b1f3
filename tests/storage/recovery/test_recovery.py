"""Start-up after a clean stop, after a crash, and with parts of the store missing."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.message_store import MessageStore
from storage.recovery.recovery import RecoveryReport
from tests.support.by_hand import BY_HAND
from tests.support.clock import ManualClock
from tests.support.golden import manifest
from tests.support.golden import store as golden_store
from tests.support.store import SmallStore

AFTER_ITS_RECOVERY = {"crashed": "crashed-recovered", "torn": "torn-recovered"}
GOLDEN = ["clean", "slave", "ext", "v6", "crashed", "crashed-recovered", "torn", "torn-recovered"]
GOLDEN += [BY_HAND]


def opened(root: Path) -> tuple[MessageStore, RecoveryReport]:
    config = StoreConfig(
        root=str(root),
        commit_log_file_bytes=65_536,
        consume_queue_file_bytes=6000,
        max_hash_slots=64,
        max_index_entries=200,
    )
    store = MessageStore(config, RealDisk(), ManualClock())
    return store, store.open()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_log_end_is_that_of_the_original(name: str, tmp_path: Path) -> None:
    expected = manifest(AFTER_ITS_RECOVERY.get(name, name))
    store, report = opened(golden_store(name, tmp_path))
    assert report.clean is not manifest(name)["abortFile"]
    assert report.end_offset == store.commit_log.end_offset == expected["commitLogEnd"]
    found = []
    for head in store.commit_log.walk(0):
        record = store.commit_log.read_record(head.physical_offset)
        assert record is not None
        found.append(
            {
                "storeSize": record.record_bytes,
                "bodyCRC": record.body_crc,
                "queueId": record.queue_id,
                "flag": record.flag,
                "queueOffset": record.queue_offset,
                "commitLogOffset": record.physical_offset,
                "sysFlag": record.sys_flag,
                "bornTimestamp": record.born_timestamp,
                "storeTimestamp": record.store_timestamp,
                "reconsumeTimes": record.reconsume_times,
                "preparedTransactionOffset": record.prepared_transaction_offset,
                "topic": record.topic,
                "rawBodyLen": len(record.body),
                "rawBodySha256": hashlib.sha256(record.body).hexdigest(),
                "propertiesRaw": record.properties.decode(),
            }
        )
    wanted = [_without(raw, "bornHost", "storeHost", "bodyHex") for raw in expected["rawRecords"]]
    assert found == wanted
    store.close()


def _without(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_queues_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    original = manifest(AFTER_ITS_RECOVERY.get(name, name))
    # Read from its files, where it leaves units behind the end that it has only forgotten.
    expected = {
        queue: [unit for unit in units if unit[1] < original["commitLogEnd"]]
        for queue, units in original["consumeQueues"].items()
    }
    store, _ = opened(golden_store(name, tmp_path))
    found = {
        f"{queue.topic}/{queue.queue_id}": [
            [offset, *(queue.unit(offset) or ())]
            for offset in range(queue.min_offset, queue.max_offset)
        ]
        for queue in store.consume_queues
    }
    assert found == expected
    store.close()


@pytest.mark.parametrize("name", ["crashed", "torn"])
def test_the_index_has_the_entries_that_the_original_recovered(name: str, tmp_path: Path) -> None:
    """Sets, because RocketMQ has an entry twice if a record's keys were in two files."""
    store, _ = opened(golden_store(name, tmp_path / "ours"))
    store.catch_up()
    assert store.index is not None
    store.index.write_out()
    theirs = golden_store(AFTER_ITS_RECOVERY[name], tmp_path / "theirs")
    original = Index(replace(store.config, root=str(theirs)), RealDisk(), ManualClock())
    original.load(clean=True, safe_timestamp=0)
    found, wanted = (
        {entry[:2] for file in index.files for entry in file.entries()}
        for index in (store.index, original)
    )
    assert len(wanted) > 1000
    assert found == wanted
    original.close()
    store.close()


@pytest.mark.parametrize("name", ["crashed", "torn"])
def test_a_recovered_golden_store_stops_and_starts_cleanly(name: str, tmp_path: Path) -> None:
    root = golden_store(name, tmp_path)
    store, report = opened(root)
    assert not report.clean
    end_offset = store.commit_log.end_offset
    store.close()
    assert not (root / "abort").exists()
    store, report = opened(root)
    assert report.clean and report.end_offset == end_offset
    assert report.zeroed_bytes == report.dispatched_count == 0
    store.close()


def test_torn_bytes_after_the_end_are_zeroed(tmp_path: Path) -> None:
    root = golden_store("torn", tmp_path)
    store, report = opened(root)
    assert report.zeroed_bytes > 0
    assert "does not have its CRC" in report.end_reason
    assert (root / "commitlog" / "00000000000000131072").exists() is False
    file = store.commit_log.queue.files[-1]
    assert file.is_zero_from(report.end_offset - file.first_offset)
    store.close()


def test_after_a_clean_stop_recovery_changes_nothing() -> None:
    first = SmallStore()
    first.send(200)
    units, end_offset = first.units(), first.log.end_offset
    second = first.restarted()
    assert second.report.clean
    assert second.report.dispatched_count == second.report.zeroed_bytes == 0
    assert (second.log.end_offset, second.units()) == (end_offset, units)
    assert second.found_by_key() == 200


def test_after_a_kill_every_written_message_is_found() -> None:
    first = SmallStore()
    first.send(200)
    units, end_offset = first.units(), first.log.end_offset
    second = first.killed()
    assert not second.report.clean
    assert (second.log.end_offset, second.units()) == (end_offset, units)
    assert second.found_by_key() == 200


def test_undispatched_records_are_dispatched_at_the_next_start() -> None:
    first = SmallStore()
    first.send(10)
    first.send(20, dispatch=False)
    second = first.restarted()
    assert second.report.clean and second.report.dispatched_count == 20
    assert sum(map(len, second.units().values())) == 30
    assert second.found_by_key() == 30


@pytest.mark.parametrize("size", [None, 0])
def test_without_a_checkpoint_the_whole_log_is_read(size: int | None) -> None:
    first = SmallStore()
    first.send(300)
    first.store.flush()
    disk = first.disk.killed()
    if size is None:
        disk.unlink("/store/checkpoint")
    else:
        disk.open("/store/checkpoint").set_size(size)
    second = SmallStore(disk, first.clock)
    assert second.report.scanned_from == 0
    assert second.report.record_count == 300
    assert second.units() == first.units()


def test_a_checkpoint_spares_reading_the_files_it_covers() -> None:
    first = SmallStore()
    first.send(300)
    first.clock.advance(10_000)
    first.send(100)
    first.store.flush()
    second = first.killed()
    assert second.report.scanned_from > 0
    assert second.report.record_count < 400
    assert second.units() == first.units()
    assert second.found_by_key() == 400


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "missing", ["/store/consumequeue", "/store/consumequeue/Topic/1", "/store/index"]
)
def test_missing_queues_and_index_are_rebuilt_from_the_log(missing: str, clean: bool) -> None:
    first = SmallStore()
    first.send(300)
    first.clock.advance(10_000)
    first.send(30)
    units = first.units()
    first.store.flush()
    disk = first.disk
    if clean:
        first.store.close()
    else:
        disk = disk.killed()
    disk.remove_tree(missing)
    second = SmallStore(disk, first.clock)
    assert second.report.clean is clean
    assert second.units() == units
    assert second.found_by_key() == 330
    assert second.report.findings or second.report.dispatched_from == 0


def test_a_store_without_its_log_starts_empty() -> None:
    first = SmallStore()
    first.send(10)
    first.store.close()
    first.disk.remove_tree("/store/commitlog")
    second = SmallStore(first.disk)
    assert second.log.end_offset == 0
    assert sum(map(len, second.units().values())) == 0


def test_new_messages_follow_the_recovered_ones() -> None:
    first = SmallStore()
    first.send(50)
    second = first.killed()
    placed = second.send(50)
    assert placed[0][0] >= first.log.end_offset
    third = second.killed()
    assert sum(map(len, third.units().values())) == 100
    assert third.found_by_key() == 100


def test_the_store_time_continues_from_the_last_record() -> None:
    first = SmallStore()
    first.send(1)
    newest = first.log.last_store_timestamp
    first.clock.set_wall(newest - 3_600_000)
    second = first.restarted()
    second.send(1)
    assert second.log.last_store_timestamp == newest
    third = second.killed()
    third.send(1)
    assert [head.store_timestamp for head in third.log.walk(0)] == [newest] * 3
