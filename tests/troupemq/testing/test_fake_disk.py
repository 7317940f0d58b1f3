"""The disk of the tests forgets what was not synced, and nothing else."""

import errno

import pytest

from storage.files.disk import DiskFile
from troupemq.testing.fake_disk import PAGE_BYTES, FakeDisk

SEEDS = range(40)


def a_file(disk: FakeDisk, path: str = "/file", pages: int = 4) -> DiskFile:
    file = disk.open(path, create=True)
    file.set_size(pages * PAGE_BYTES)
    file.sync()
    disk.sync_directory("/")
    return file


def test_synced_bytes_survive_every_power_cut() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    file.pwrite(b"kept" * 3000, 100)
    file.sync()
    for seed in SEEDS:
        assert disk.crashed(seed).read_bytes("/file") == disk.read_bytes("/file")


def test_each_unsynced_page_is_kept_or_dropped_on_its_own() -> None:
    disk = FakeDisk()
    a_file(disk).pwrite(b"x" * 3 * PAGE_BYTES, 0)
    seen = set()
    for seed in SEEDS:
        data = disk.crashed(seed).read_bytes("/file")
        pages = [data[page * PAGE_BYTES] for page in range(4)]
        assert all(value in (0, ord("x")) for value in pages) and pages[3] == 0
        seen.add(tuple(pages[:3]))
    assert len(seen) == 8


def test_a_page_written_twice_may_come_back_as_it_was_in_between() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    file.pwrite(b"first", 0)
    file.pwrite(b"second", 10)
    assert {disk.crashed(seed).read_bytes("/file")[:16] for seed in SEEDS} == {
        bytes(16),
        b"first".ljust(16, b"\0"),
        b"first\0\0\0\0\0second",
    }


def test_an_unsynced_size_may_be_lost() -> None:
    disk = FakeDisk()
    a_file(disk, pages=1).set_size(3 * PAGE_BYTES)
    sizes = {len(disk.crashed(seed).read_bytes("/file")) for seed in SEEDS}
    assert sizes == {PAGE_BYTES, 3 * PAGE_BYTES}


def test_a_name_is_only_certain_after_its_directory_was_synced() -> None:
    disk = FakeDisk()
    disk.open("/new", create=True).sync()
    assert {disk.crashed(seed).exists("/new") for seed in SEEDS} == {True, False}
    disk.sync_directory("/")
    assert {disk.crashed(seed).exists("/new") for seed in SEEDS} == {True}


def test_an_unsynced_rename_happened_whole_or_not_at_all() -> None:
    disk = FakeDisk()
    a_file(disk, "/new")
    disk.rename("/new", "/name")
    found = {(d.exists("/new"), d.exists("/name")) for d in map(disk.crashed, SEEDS)}
    assert found == {(True, False), (False, True)}


def test_an_unsynced_unlink_may_come_back() -> None:
    disk = FakeDisk()
    a_file(disk)
    disk.unlink("/file")
    assert {disk.crashed(seed).exists("/file") for seed in SEEDS} == {True, False}


def test_stores_through_a_writable_map_are_unsynced_writes() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    view = file.writable_view()
    view[:4] = b"slot"
    assert {disk.crashed(seed).read_bytes("/file")[:4] for seed in SEEDS} == {bytes(4), b"slot"}
    file.sync()
    assert {disk.crashed(seed).read_bytes("/file")[:4] for seed in SEEDS} == {b"slot"}


def test_one_seed_always_gives_the_same_disk() -> None:
    disk = FakeDisk()
    a_file(disk).pwrite(b"x" * 4 * PAGE_BYTES, 0)
    assert disk.crashed(7).read_bytes("/file") == disk.crashed(7).read_bytes("/file")


def test_without_a_sync_anything_may_be_lost() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    disk.without_sync = True
    file.pwrite(b"x", 0)
    file.sync()
    assert {disk.crashed(seed).read_bytes("/file")[:1] for seed in SEEDS} == {b"\0", b"x"}


def test_a_killed_process_loses_no_written_byte() -> None:
    disk = FakeDisk()
    disk.make_dirs("/a/b")
    disk.open("/a/b/file", create=True).pwrite(b"unsynced", 0)
    after = disk.killed()
    assert after.read_bytes("/a/b/file") == b"unsynced"
    assert after.crashed(0).read_bytes("/a/b/file") == b"unsynced"


def test_a_full_disk_refuses_only_new_blocks() -> None:
    disk = FakeDisk(capacity_bytes=2 * PAGE_BYTES)
    file = disk.open("/file", create=True)
    file.set_size(100 * PAGE_BYTES)
    file.pwrite(b"x", 0)
    file.pwrite(b"x", 50 * PAGE_BYTES)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"x", 51 * PAGE_BYTES)
    assert caught.value.errno == errno.ENOSPC
    file.pwrite(b"again", 0)
    assert disk.usage_ratio("/") == 1.0
    disk.unlink("/file")
    assert disk.usage_ratio("/") == 0.0


def test_a_requested_failure_happens_once() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    disk.fail_next("sync", OSError(errno.EIO, "broken"))
    with pytest.raises(OSError):
        file.sync()
    file.sync()


def test_a_mapped_file_cannot_change_its_size() -> None:
    file = a_file(FakeDisk())
    view = file.view()
    with pytest.raises(BufferError):
        file.set_size(PAGE_BYTES)
    assert len(view) == 4 * PAGE_BYTES


def test_a_lock_is_free_again_once_its_file_is_closed() -> None:
    disk = FakeDisk()
    first, second = disk.open("/lock", create=True), disk.open("/lock")
    assert first.lock_byte()
    assert not second.lock_byte()
    first.close()
    assert second.lock_byte()


def test_directories_list_the_files_created_in_them() -> None:
    disk = FakeDisk()
    disk.make_dirs("/a/b")
    disk.open("/a/one", create=True)
    assert disk.listdir("/a") == ["b", "one"]
    assert disk.listdir("/missing") == []
    disk.remove_tree("/a")
    assert not disk.exists("/a/one") and not disk.is_dir("/a/b")
    with pytest.raises(FileNotFoundError):
        disk.open("/a/one", create=True)


def test_evicted_pages_are_cached_again_after_a_read_or_write() -> None:
    disk = FakeDisk()
    disk.make_dirs("/d")
    file = disk.open("/d/file", create=True)
    file.pwrite(bytes(5 * 4096), 0)
    assert file.is_cached(0, 5 * 4096)
    disk.forget_cache("/other")
    assert file.is_cached(0, 5 * 4096)
    disk.forget_cache("/d")
    assert not file.is_cached(0, 1)
    file.pread(4097, 0)
    file.pwrite(b"x", 3 * 4096)
    assert [file.is_cached(page * 4096, 4096) for page in range(5)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    file.read_ahead(2 * 4096, 100 * 4096)
    assert file.is_cached(0, 5 * 4096)
