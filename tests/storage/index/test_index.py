"""The run of index files: rolling, finding over files, what is indexed once and what never."""

import errno
from dataclasses import replace
from datetime import datetime
from itertools import product

import pytest

from storage.errors import DiskFull
from storage.index.index import PENDING_MAX, Index, local_name
from storage.index.key_hash import TopicHashes
from storage.queues.dispatch_entry import DispatchEntry
from storage.queues.unsynced import sync_files
from tests.storage.derived import START_MS, config, entry
from tests.support.clock import ManualClock
from troupemq.testing.fake_disk import FakeDisk

FOREVER = 1 << 62
PER_FILE = 199


def an_index(disk: FakeDisk, clock: ManualClock | None = None) -> Index:
    return Index(config(), disk, clock or ManualClock())


def reloaded(disk: FakeDisk, *, clean: bool = True, safe_timestamp: int = 0) -> Index:
    index = an_index(disk)
    index.load(clean, safe_timestamp)
    return index


def keyed(start: int, end: int, *keys: bytes) -> list[DispatchEntry]:
    """Records with a key of their own, and others."""
    return [entry(n, keys=(b"U%d" % n, *keys)) for n in range(start, end)]


def found(index: Index, key: str, *, count: int = 64, begin: int = 0, end: int = FOREVER) -> object:
    index.write_out()
    return index.query("T", key, count, begin, end).physical_offsets


def test_a_key_is_found_in_memory_in_the_file_and_after_a_restart() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 10, b"all"))
    assert found(index, "U7") == [700]
    assert found(index, "all", count=3) == [900, 800, 700]
    assert found(index, "U10") == []
    assert index.query("other", "all", 3, 0, FOREVER).physical_offsets == []
    index.sync()
    index.close()
    assert found(reloaded(disk), "all") == [n * 100 for n in range(9, -1, -1)]


def test_keys_with_the_same_head_have_the_hashes_of_whole_keys() -> None:
    heads = (b"", b"C0A8", b"C0A80102279300000000946E09652E8C", b"k\xc3\xb6", b"x" * 300)
    tails = (b"", b"7", b"0001", b"FFFF", b"ab\xc3\xbc", b"\xe6\xbc\xa2-")
    keys = [head + tail for head in heads for tail in tails if head + tail]
    index, hashes = an_index(FakeDisk()), TopicHashes()
    records = [
        entry(n, keys=(key, *more), topic=topic)
        for n, (more, topic, key) in enumerate(product(((), (keys[-1],)), (b"T", b"Other"), keys))
    ]
    index.dispatch(records[:5])
    index.dispatch(records[5:])
    index.write_out()
    entries = [each[0] for file in index.files for each in file.entries()]
    assert entries == [hashes.index_hash(each.topic, key) for each in records for key in each.keys]


def test_keys_continue_in_the_next_file_when_one_is_full() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 500))
    index.write_out()
    assert [file.next_entry - 1 for file in index.files] == [199, 199, 102]
    assert [file.is_open for file in index.files] == [False, False, True]
    assert found(index, "U3") == [300]
    assert found(index, "U450") == [45_000]
    names = disk.listdir("/store/index")
    assert len(set(names)) == 3 and all(len(name) == 17 for name in names)
    index.close()
    assert found(reloaded(disk), "U250") == [25_000]


def test_keys_of_one_record_may_span_two_files() -> None:
    index = an_index(FakeDisk())
    index.dispatch([entry(n, keys=(b"a%d" % n, b"b%d" % n)) for n in range(100)])
    index.write_out()
    assert [file.next_entry - 1 for file in index.files] == [199, 1]
    assert found(index, "a99") == found(index, "b99") == [9900]


def test_results_come_newest_first_over_files_and_stop_at_the_limit() -> None:
    index = an_index(FakeDisk())
    index.dispatch(keyed(0, 300, b"all"))
    assert found(index, "all", count=250) == [n * 100 for n in range(299, 299 - 64, -1)]
    begin, end = START_MS + 50_000, START_MS + 60_000
    wanted = [n * 100 for n in range(60, 49, -1)]
    assert found(index, "all", begin=begin, end=end) == wanted
    result = index.query("T", "all", 1, 0, FOREVER)
    assert (result.last_timestamp, result.last_physical_offset) == (START_MS + 299_000, 29_900)


def test_an_empty_index_finds_nothing() -> None:
    result = an_index(FakeDisk()).query("T", "k", 5, 0, FOREVER)
    assert (result.physical_offsets, result.last_timestamp) == ([], 0)


def test_rolled_back_records_are_not_indexed_and_prepared_ones_are() -> None:
    index = an_index(FakeDisk())
    index.dispatch([entry(n, sys_flag=flag, keys=(b"k",)) for n, flag in enumerate((0, 4, 8, 12))])
    assert found(index, "k") == [200, 100, 0]


def test_records_dispatched_again_are_indexed_once() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 50))
    index.dispatch(keyed(0, 50))
    index.write_out()
    assert index.files[0].next_entry - 1 == 50
    again = reloaded(disk)
    again.dispatch(keyed(0, 60))
    again.write_out()
    assert sum(file.next_entry - 1 for file in again.files) == 60


def test_full_files_are_synced_outside_the_owner() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    assert index.unsynced() is None
    index.dispatch(keyed(0, 500))
    index.write_out()
    taken = index.unsynced()
    assert taken is not None
    assert taken.files.paths == [file.path for file in index.files[:2]]
    assert taken.end_timestamp == START_MS + 397_000
    sync_files(disk, taken.files)
    index.mark_synced(taken)
    assert index.unsynced() is None
    again = reloaded(disk.crashed(1), clean=False, safe_timestamp=taken.end_timestamp)
    assert found(again, "U300") == [30_000]


@pytest.mark.parametrize("seed", range(20))
def test_an_index_can_be_completed_after_a_power_cut(seed: int) -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 300))
    index.write_out()
    taken = index.unsynced()
    assert taken is not None
    sync_files(disk, taken.files)
    for start in range(300, 700, 50):
        index.dispatch(keyed(start, start + 50))
        index.write_out()
    again = reloaded(disk.crashed(seed), clean=False, safe_timestamp=taken.end_timestamp)
    again.dispatch(keyed(0, 700))
    for number in (0, 198, 199, 200, 299, 300, 350, 699):
        assert set(found(again, f"U{number}")) == {number * 100}  # type: ignore[call-overload]


def test_a_full_disk_keeps_keys_in_memory() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 150))
    index.write_out()
    disk.fail_next("allocate", OSError(errno.ENOSPC, "no space"))
    index.dispatch(keyed(150, 300))
    with pytest.raises(DiskFull):
        index.write_out()
    index.dispatch(keyed(150, 300))
    index.write_out()
    assert found(index, "U180") == [18_000]
    assert found(index, "U290") == [29_000]
    assert sum(file.next_entry - 1 for file in index.files) == 300


def test_a_refused_folder_keeps_keys_in_memory() -> None:
    """The plain OSError ended the actor that writes, and with its sixth restart the broker."""
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 3))
    disk.fail_next("make_dirs", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull):
        index.write_out()
    index.write_out()
    assert found(index, "U2") == [200]


def test_many_buffered_keys_are_written_without_a_request() -> None:
    index = an_index(FakeDisk())
    index.dispatch(keyed(0, PENDING_MAX - 1))
    assert list(index.files) == []
    index.dispatch(keyed(PENDING_MAX - 1, PENDING_MAX))
    assert sum(file.next_entry - 1 for file in index.files) == PENDING_MAX


def test_files_with_only_deleted_records_are_dropped_except_the_last() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 500))
    index.write_out()
    paths = [file.path for file in index.files]
    assert index.trim_before(30_000) == paths[:1]
    assert index.trim_before(10**9) == paths[1:2]
    assert [file.path for file in index.files] == paths[2:]
    assert found(index, "U450") == [45_000]


def test_file_names_are_local_times_that_always_increase() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5)
    now_ms = int(moment.timestamp()) * 1000 + 67
    assert local_name(now_ms) == "20260102030405067"
    disk, clock = FakeDisk(), ManualClock(now_ms)
    index = an_index(disk, clock)
    index.dispatch(keyed(0, 250))
    index.write_out()
    clock.set_wall(now_ms - 3_600_000)
    index.dispatch(keyed(250, 450))
    index.write_out()
    assert disk.listdir("/store/index") == [
        "20260102030405067",
        "20260102030405068",
        "20260102030405069",
    ]


def test_a_file_that_ends_earlier_than_it_begins_stays_and_is_searched() -> None:
    """The clock was set back by more than an hour, or before a delayed message."""
    disk, hours_back_ms = FakeDisk(), 3 * 3_600_000
    index = an_index(disk)
    index.dispatch(keyed(0, 50))
    later = [replace(each, store_timestamp=START_MS - hours_back_ms) for each in keyed(50, 60)]
    index.dispatch(later)
    index.write_out()
    assert index.files[0].end_timestamp < index.files[0].begin_timestamp
    assert found(index, "U49", begin=START_MS) == [4900]
    index.sync()
    index.close()
    again = reloaded(disk)
    assert again.doubts == [] and len(again.files) == 1
    assert found(again, "U55") == [5500]


def test_a_query_can_run_while_files_are_created_and_deleted() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 500, b"all"))
    index.write_out()
    snapshot = index.files
    for path in index.trim_before(30_000):
        disk.unlink(path)
    assert snapshot[0].find(1, 9, 0, FOREVER) == []
    assert len(index.query("T", "all", 64, 0, FOREVER).physical_offsets) == 64
