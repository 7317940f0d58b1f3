"""Index files at a start: which are trusted, which are rebuilt, which keys are dispatched again."""

import errno
from dataclasses import replace
from typing import Any

import pytest

from storage.errors import DiskFull, StoreError
from storage.index.index import Index
from tests.storage.derived import START_MS, config, entry
from tests.storage.index.test_index import FOREVER, an_index, found, keyed, reloaded
from tests.support.clock import ManualClock
from troupemq.testing.fake_disk import FakeDisk


def test_after_a_crash_files_newer_than_the_checkpoint_are_removed() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch(keyed(0, 500))
    index.write_out()
    names = disk.listdir("/store/index")
    again = an_index(disk.killed())
    removed = again.load(clean=False, safe_timestamp=index.files[0].end_timestamp)
    assert removed == [f"/store/index/{name}" for name in names[1:]]
    again.dispatch(keyed(0, 500))
    again.write_out()
    assert sum(file.next_entry - 1 for file in again.files) == 500
    assert found(again, "U450") == [45_000]


def test_after_a_crash_a_partial_file_is_removed_whatever_its_time() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch([replace(each, store_timestamp=START_MS) for each in keyed(0, 500)])
    index.write_out()
    again = an_index(disk.killed())
    again.load(clean=False, safe_timestamp=START_MS)
    assert [file.path for file in again.files] == [index.files[0].path]


def filled(disk: FakeDisk, count: int = 500) -> list[str]:
    """An index that was stopped cleanly; the paths of its files."""
    index = an_index(disk)
    index.dispatch(keyed(0, count))
    index.sync()
    index.close()
    return [file.path for file in index.files]


HEADER_DAMAGE = {
    "next_entry": (36, (0x7FFFFFFF).to_bytes(4)),
    "next_entry below": (36, (100).to_bytes(4)),
    "used_slots": (32, (65).to_bytes(4)),
    "end_physical_offset": (24, (1 << 50).to_bytes(8)),
    "end_physical_offset, last bit": (31, b"\xff"),
    "begin_physical_offset": (16, b"\x7f"),
    "begin_timestamp": (0, b"\x01"),
    "end_timestamp": (8, b"\x01"),
    "end_timestamp lower": (12, b"\0\0\0"),
}


@pytest.mark.parametrize("name", HEADER_DAMAGE)
def test_a_contradictory_header_removes_its_file_and_newer_ones(name: str) -> None:
    disk = FakeDisk()
    paths = filled(disk)
    position, data = HEADER_DAMAGE[name]
    disk.open(paths[1]).pwrite(data, position)
    again = an_index(disk)
    assert again.load(clean=True, safe_timestamp=0) == paths[1:]
    assert [file.path for file in again.files] == paths[:1]
    (doubt,) = again.doubts
    assert doubt.startswith(f"{paths[1]}: ")
    again.dispatch(keyed(0, 500))
    assert found(again, "U450") == [45_000]
    assert sum(file.next_entry - 1 for file in again.files) == 500


@pytest.mark.parametrize("bytes_left", [0, 1, 39, 40, 41, 296, 317, 4095, 4276])
def test_a_short_file_and_newer_ones_are_removed(bytes_left: int) -> None:
    disk = FakeDisk()
    paths = filled(disk)
    disk.open(paths[0]).set_size(bytes_left)
    again = an_index(disk)
    assert again.load(clean=True, safe_timestamp=0) == paths
    assert again.files == () and again.covered_offset == 0


def test_a_single_short_file_does_not_make_a_start_fail() -> None:
    disk = FakeDisk()
    (path,) = filled(disk, 100)
    disk.open(path).set_size(2048)
    assert reloaded(disk).files == ()


def test_an_unreadable_file_and_newer_ones_are_removed() -> None:
    disk = FakeDisk()
    paths = filled(disk)
    disk.fail_next("pread", OSError(errno.EIO, "Input/output error"))
    again = an_index(disk)
    assert again.load(clean=True, safe_timestamp=0) == paths
    assert "Input/output error" in again.doubts[0]


def test_a_file_that_overlaps_its_predecessor_is_removed() -> None:
    disk = FakeDisk()
    paths = filled(disk)
    disk.open(paths[1]).pwrite(disk.read_bytes(paths[0]), 0)
    assert [file.path for file in reloaded(disk).files] == paths[:1]


@pytest.mark.parametrize("setting", ["max_hash_slots", "max_index_entries"])
@pytest.mark.parametrize("value", [32, 500])
@pytest.mark.parametrize("count", [20, 500])
def test_sizes_that_contradict_complete_files_are_an_operator_error(
    setting: str, value: int, count: int
) -> None:
    disk = FakeDisk()
    paths = filled(disk, count)
    wrong: dict[str, Any] = {setting: value}
    index = Index(replace(config(), **wrong), disk, ManualClock())
    with pytest.raises(StoreError, match="maxHashSlotNum and maxIndexNum make"):
        index.load(clean=True, safe_timestamp=0)
    assert disk.listdir("/store/index") == [path[-17:] for path in paths]


def test_two_wrong_size_settings_are_both_reported() -> None:
    disk = FakeDisk()
    filled(disk)
    other = replace(config(), max_hash_slots=32, max_index_entries=500)
    with pytest.raises(StoreError, match="maxHashSlotNum and maxIndexNum make"):
        Index(other, disk, ManualClock()).load(clean=True, safe_timestamp=0)


def test_other_files_in_the_directory_are_left_alone() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/index")
    disk.open("/store/index/20260102030405678", create=True).pwrite(b"short", 0)
    disk.open("/store/index/notes.txt", create=True)
    assert reloaded(disk, clean=False).files == ()
    assert disk.listdir("/store/index") == ["notes.txt"]


def test_a_full_disk_does_not_make_a_start_fail() -> None:
    disk = FakeDisk()
    filled(disk, 50)
    disk.fail_next("allocate", OSError(errno.ENOSPC, "no space"))
    again = reloaded(disk)
    assert again.query("T", "U40", 9, 0, FOREVER).physical_offsets == [4000]
    again.dispatch(keyed(50, 60))
    with pytest.raises(DiskFull):
        again.write_out()
    assert found(again, "U55") == [5500]


def test_index_files_beyond_the_log_end_are_removed() -> None:
    disk = FakeDisk()
    paths = filled(disk)
    again = reloaded(disk)
    assert again.truncate_behind(30_000) == paths[:0:-1]
    assert again.covered_offset == 19_800
    again.dispatch([entry(n, keys=(b"new%d" % n,)) for n in range(190, 310)])
    assert found(again, "new299") == [29_900]
    assert found(again, "U299") == found(again, "new195") == []


def test_records_covered_by_a_clean_stop_are_not_indexed_again() -> None:
    disk = FakeDisk()
    index = an_index(disk)
    index.dispatch([*keyed(0, 50), *(entry(n) for n in range(50, 90))])
    assert index.covered_offset == 9000
    index.sync()
    index.close()
    again = an_index(disk)
    again.load(True, 0, covered_offset=9000)
    assert again.covered_offset == 9000
    again.truncate_behind(8000)
    assert again.covered_offset == 8000
    assert reloaded(disk).covered_offset == 4900


def test_missing_keys_of_a_record_are_added_once() -> None:
    """The file with the second half of its keys is lost."""
    disk = FakeDisk()
    index = an_index(disk)
    records = [entry(n, keys=(b"a%d" % n, b"b%d" % n, b"c%d" % n)) for n in range(200)]
    index.dispatch(records)
    index.sync()
    index.close()
    before = [disk.read_bytes(file.path) for file in index.files]
    disk.unlink(index.files[-1].path)
    disk.unlink(index.files[-2].path)
    again = reloaded(disk)
    again.dispatch(records)
    again.sync()
    assert [disk.read_bytes(file.path) for file in again.files] == before


def test_dropping_a_file_drops_newer_ones_and_buffered_keys() -> None:
    disk = FakeDisk()
    paths = filled(disk)
    again = reloaded(disk)
    again.dispatch(keyed(500, 520))
    assert again.drop_from(paths[1]) == [paths[2], paths[1]]
    assert again.covered_offset == 19_800
    again.unlink([paths[2], paths[1]])
    assert disk.listdir("/store/index") == [paths[0][-17:]]
    again.dispatch(keyed(0, 520))
    assert found(again, "U510") == [51_000]
    assert again.drop_from("/store/index/99999999999999999") == []
