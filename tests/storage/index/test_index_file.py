"""One index file: chains of entries, its header, a full disk, what a crash leaves."""

import errno

import pytest

from storage.errors import DiskFull
from storage.index.index_file import IndexFile
from troupemq.testing.fake_disk import FakeDisk

PATH = "/index/20260102030405678"
START_MS = 1_700_000_000_000
FOREVER = 1 << 62


def a_file(disk: FakeDisk, slots: int = 8, entries: int = 100) -> IndexFile:
    disk.make_dirs("/index")
    return IndexFile(disk, PATH, slots, entries)


def created(disk: FakeDisk) -> IndexFile:
    file = a_file(disk)
    file.create(0, 0)
    return file


def put(file: IndexFile, numbers: range, *, spread: int = 5) -> None:
    """Record n lies at 100·n, was stored a second after the one before, has hash n mod `spread`."""
    file.put(
        [number % spread for number in numbers],
        [number * 100 for number in numbers],
        [START_MS + number * 1000 for number in numbers],
    )


def test_an_entry_leads_to_its_predecessor_in_the_slot() -> None:
    file = created(FakeDisk())
    put(file, range(1, 4), spread=2)  # hashes 1, 0, 1
    put(file, range(4, 5), spread=2)  # hash 0
    assert file.entries() == [(1, 100, 0, 0), (0, 200, 1, 0), (1, 300, 2, 1), (0, 400, 3, 2)]
    assert (file.used_slots, file.next_entry) == (2, 5)
    assert (file.begin_physical_offset, file.end_physical_offset) == (100, 400)
    assert (file.begin_timestamp, file.end_timestamp) == (START_MS + 1000, START_MS + 4000)


@pytest.mark.parametrize("size", [1, 2, 7, 99])
def test_the_bytes_do_not_depend_on_how_entries_are_batched(size: int) -> None:
    disks = FakeDisk(), FakeDisk()
    for disk, step in zip(disks, (99, size), strict=True):
        file = created(disk)
        for start in range(0, 99, step):
            put(file, range(start, min(start + step, 99)))
        file.close()
    assert disks[0].read_bytes(PATH) == disks[1].read_bytes(PATH)


def test_large_numbers_are_big_endian_in_the_file() -> None:
    disk = FakeDisk()
    file = created(disk)
    file.put([0x12345678, 0x12345678], [0x0102030405060708, 0x1112131415161718], [START_MS] * 2)
    entries = disk.read_bytes(PATH)[40 + 8 * 4 + 20 :]
    assert entries[:20] == bytes.fromhex("12345678 0102030405060708 00000000 00000000")
    assert entries[20:40] == bytes.fromhex("12345678 1112131415161718 00000000 00000001")


def test_keys_are_found_newest_first_within_count_and_time() -> None:
    file = created(FakeDisk())
    put(file, range(1, 51))
    assert file.find(3, 4, 0, FOREVER) == [4800, 4300, 3800, 3300]
    assert file.find(3, 64, START_MS + 20_000, START_MS + 30_000) == [2800, 2300]
    assert file.find(99, 64, 0, FOREVER) == []
    file.close()
    assert file.find(3, 4, 0, FOREVER) == [4800, 4300, 3800, 3300]


def test_entry_from_before_the_clock_was_set_back_is_found_behind_older_ones() -> None:
    file = created(FakeDisk())
    times = [START_MS, START_MS + 300_000, START_MS + 1_000, START_MS + 2_000]
    file.put([11, 3, 3, 11], [0, 1, 2, 3], times)
    assert file.find(3, 9, START_MS + 200_000, FOREVER) == [1]


def test_keys_in_one_slot_with_other_hashes_are_distinguished() -> None:
    file = created(FakeDisk())
    file.put([3, 11, 3, 19], [1, 2, 3, 4], [START_MS] * 4)
    assert file.find(11, 9, 0, FOREVER) == [2]
    assert file.find(3, 9, 0, FOREVER) == [3, 1]
    assert file.find(27, 9, 0, FOREVER) == []


def test_time_differences_are_clamped_to_their_field() -> None:
    file = created(FakeDisk())
    file.put([1, 1, 1], [1, 2, 3], [START_MS, START_MS - 5000, START_MS + (1 << 45)])
    assert [each[2] for each in file.entries()] == [0, 0, 0x7FFFFFFF]


def test_a_following_files_times_start_from_the_previous_files_end() -> None:
    file = a_file(FakeDisk())
    file.create(500, START_MS)
    assert (file.begin_timestamp, file.end_physical_offset) == (START_MS, 500)
    file.put([1, 1], [600, 700], [START_MS + 3999, START_MS + 5999])
    assert [each[2] for each in file.entries()] == [3, 2]
    assert (file.begin_timestamp, file.begin_physical_offset) == (START_MS + 3999, 600)
    assert file.find(1, 9, START_MS, START_MS + 4000) == [600]


def test_a_file_is_continued_after_a_restart() -> None:
    disk = FakeDisk()
    file = created(disk)
    put(file, range(1, 40))
    file.close()
    again = a_file(disk)
    again.load()
    again.open_for_writing()
    put(again, range(40, 60))
    assert again.find(0, 64, 0, FOREVER) == [n * 100 for n in range(55, 0, -5)]
    assert again.room == 100 - 60


def test_a_full_disk_adds_nothing_and_can_be_tried_again() -> None:
    disk = FakeDisk()
    file = created(disk)
    put(file, range(1, 10))
    before = disk.read_bytes(PATH)
    disk.fail_next("pwrite", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull, match="index file"):
        put(file, range(10, 20))
    assert disk.read_bytes(PATH) == before
    put(file, range(10, 20))
    assert file.find(1, 9, 0, FOREVER) == [1600, 1100, 600, 100]


def test_a_file_that_does_not_fit_on_the_disk_leaves_no_trace() -> None:
    disk = FakeDisk()
    disk.fail_next("allocate", OSError(errno.ENOSPC, "no space"))
    file = a_file(disk)
    with pytest.raises(DiskFull):
        file.create(0, 0)
    assert disk.listdir("/index") == []
    file.create(0, 0)


def test_a_file_of_other_settings_is_not_trusted() -> None:
    disk = FakeDisk()
    created(disk).close()
    assert "instead of" in a_file(disk, slots=16).load()


def test_a_chain_that_leads_forward_in_a_damaged_file_ends() -> None:
    disk = FakeDisk()
    file = created(disk)
    put(file, range(1, 10))
    start = 40 + 8 * 4
    disk.open(PATH).pwrite((6).to_bytes(4), start + 1 * 20 + 16)  # entry 1 leads to entry 6
    assert file.find(1, 64, 0, FOREVER) == [600, 100]


def test_synced_entries_survive_a_power_cut() -> None:
    disk = FakeDisk()
    file = created(disk)
    put(file, range(1, 90))
    file.sync()
    disk.sync_directory("/index")
    assert not file.is_dirty
    for seed in range(5):
        again = a_file(disk.crashed(seed))
        again.load()
        assert again.find(4, 2, 0, FOREVER) == [8900, 8400]


@pytest.mark.parametrize(
    "begin, end, wanted",
    [(0, 4, False), (0, 5, True), (6, 7, True), (9, 99, True), (10, 99, False), (0, 99, True)],
)
def test_a_file_is_searched_only_if_its_times_overlap(begin: int, end: int, wanted: bool) -> None:
    file = a_file(FakeDisk())
    file.begin_timestamp, file.end_timestamp = 5, 9
    assert file.overlaps(begin, end) == wanted


@pytest.mark.parametrize("late", [False, True], ids=["before the write", "behind the write"])
def test_a_search_during_writes_finds_all_earlier_entries(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk()
    file = created(disk)
    put(file, range(1, 31))
    reader = a_file(disk)
    assert reader.load() == ""
    found: list[list[int]] = []
    written = file._file
    assert written is not None
    pwrite = written.pwrite

    def search(data: bytes, position: int) -> None:
        if late:
            pwrite(data, position)
        found.append(file.find(3, 64, 0, FOREVER))
        found.append(reader.find(3, 64, 0, FOREVER))
        if not late:
            pwrite(data, position)

    monkeypatch.setattr(written, "pwrite", search)
    put(file, range(31, 41))
    assert found == [[n * 100 for n in (28, 23, 18, 13, 8, 3)]] * 2
    assert file.find(3, 64, 0, FOREVER)[:2] == [3800, 3300]


def test_search_ends_where_the_reader_has_enough() -> None:
    """Millions of records may have one key; each query walked through all of them."""
    file, asked = created(FakeDisk()), list[int]()
    put(file, range(1, 50), spread=1)

    def accepts(offset: int) -> bool | None:
        asked.append(offset)
        return None if len(asked) == 3 else False

    assert file.find(0, 10, 0, FOREVER, accepts) == []
    assert asked == [4900, 4800, 4700]


def test_a_query_ends_behind_many_entries_of_other_keys_in_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer can make keys for one slot: a query read twenty million of them."""
    file = created(FakeDisk())
    times = [START_MS] * 50
    file.put([3] * 10, [*range(100, 110)], times[:10])
    file.put([11] * 50, [*range(200, 250)], times)
    file.put([3], [300], times[:1])
    assert len(file.find(3, 64, 0, FOREVER)) == 11
    monkeypatch.setattr("storage.index.index_file.OTHERS_MAX", 20, raising=False)
    assert file.find(3, 64, 0, FOREVER) == [300]
    assert len(file.find(11, 64, 0, FOREVER)) == 50
