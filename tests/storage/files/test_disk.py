"""Promises of a disk, by the same cases for the disk of this machine and the fake one.

For power cuts see test_disk_durability.py.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.files import disk
from storage.files.disk import DiskFile, RealDisk
from tests.support.disks import DiskAtHand, FakeAtHand, RealAtHand


@pytest.fixture(params=["real", "forgetful"])
def at_hand(request: pytest.FixtureRequest, tmp_path: Path) -> DiskAtHand:
    return RealAtHand(tmp_path) if request.param == "real" else FakeAtHand()


def a_file(at_hand: DiskAtHand, name: str = "file") -> DiskFile:
    return at_hand.disk.open(f"{at_hand.root}/{name}", create=True)


def test_written_bytes_are_read_back(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    assert file.path == f"{at_hand.root}/file"
    assert file.size() == 0 and file.pread(10, 0) == b""
    file.pwrite(b"hello", 10)
    file.pwrite(b"", 100)
    assert file.size() == 15
    assert file.pread(100, 10) == b"hello" and file.pread(2, 11) == b"el"
    assert file.pread(3, 0) == bytes(3) and file.pread(1, 15) == b""
    file.pwrite(memoryview(b"__p__"), 11)
    assert at_hand.disk.read_bytes(file.path) == bytes(10) + b"h__p__"
    file.sync()
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.pread(1, 0)


def test_a_missing_file_is_created_only_on_request(at_hand: DiskAtHand) -> None:
    with pytest.raises(FileNotFoundError):
        at_hand.disk.open(f"{at_hand.root}/file")
    with pytest.raises(FileNotFoundError):
        at_hand.disk.open(f"{at_hand.root}/missing/file", create=True)
    assert at_hand.disk.listdir(at_hand.root) == []


def test_an_existing_file_is_opened_unchanged(at_hand: DiskAtHand) -> None:
    a_file(at_hand).pwrite(b"kept", 0)
    assert a_file(at_hand).pread(10, 0) == b"kept"


def test_allocating_and_sizing_add_zeros_and_keep_existing_bytes(
    at_hand: DiskAtHand,
) -> None:
    allocated, sized = a_file(at_hand, "allocated"), a_file(at_hand, "sized")
    for file in (allocated, sized):
        file.pwrite(b"kept", 0)
    allocated.allocate(8192)
    allocated.allocate(4096)
    sized.set_size(8192)
    for file in (allocated, sized):
        assert file.pread(9000, 0) == b"kept" + bytes(8188)
    sized.set_size(2)
    assert sized.pread(10, 0) == b"ke"
    sized.set_size(4)
    assert sized.pread(10, 0) == b"ke\0\0"


def test_the_data_search_never_skips_data(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    file.set_size(1 << 20)
    file.pwrite(b"x", 500_000)
    start = file.data_after(0)
    assert start is not None and start <= 500_000
    assert file.data_after(500_000) == 500_000
    assert file.data_after(1 << 20) is None


def test_written_bytes_and_bytes_past_the_end_count_as_cached(
    at_hand: DiskAtHand,
) -> None:
    file = a_file(at_hand)
    assert file.is_cached(0, 10)
    file.pwrite(bytes(300_000), 0)
    assert file.is_cached(0, 300_000)
    assert file.is_cached(299_990, 1_000_000)


def test_readahead_past_the_end_is_allowed(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    file.pwrite(bytes(300_000), 0)
    file.read_ahead(0, 300_000)
    file.read_ahead(299_990, 1_000_000)
    file.read_ahead(1_000_000, 10)
    assert file.is_cached(0, 300_000) and file.size() == 300_000


def test_maps_of_an_empty_file_are_empty(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    assert len(file.view()) == len(file.writable_view()) == 0


def test_a_map_shows_the_whole_file_and_later_writes(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    file.allocate(5000)
    view, writable = file.view(), file.writable_view()
    assert len(view) == len(writable) == 5000 and view.readonly and not writable.readonly
    writable[:2] = b"ok"
    file.pwrite(b"later", 4990)
    assert bytes(view[:2]) == file.pread(2, 0) == b"ok" and bytes(view[4990:4995]) == b"later"


def test_a_map_stays_valid_after_its_file_is_closed_and_deleted(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    file.pwrite(b"kept", 0)
    view = file.view()
    at_hand.disk.unlink(file.path)
    file.close()
    assert bytes(view) == b"kept"


WRITES: dict[str, Callable[[DiskFile], object]] = {
    "pwrite": lambda file: file.pwrite(b"x", 0),
    "allocate": lambda file: file.allocate(10),
    "set_size": lambda file: file.set_size(10),
    "writable_view": lambda file: file.writable_view(),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_file_opened_for_reading_only_refuses_writes(at_hand: DiskAtHand, write: str) -> None:
    a_file(at_hand).pwrite(b"text", 0)
    file = at_hand.disk.open(f"{at_hand.root}/file", read_only=True)
    with pytest.raises(OSError):
        WRITES[write](file)
    assert file.pread(10, 0) == b"text" and bytes(file.view()) == b"text"


def test_each_map_reports_its_memory_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On PyPy each dead map kept a descriptor, and a broker with many queues ran out of them."""
    told: list[int] = []
    monkeypatch.setattr(disk, "add_memory_pressure", told.append)
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    assert (bytes(file.view()), told) == (b"", [])
    file.pwrite(b"x", 0)
    views = [file.view(), file.writable_view(), file.private_view()]
    assert [bytes(view) for view in views] == [b"x"] * 3
    assert len(told) == 3 and min(told) > 0


def test_names_are_listed_in_order(at_hand: DiskAtHand) -> None:
    disk, root = at_hand.disk, at_hand.root
    wanted = [f"{number:03d}" for number in range(60)]
    for name in reversed(wanted):
        a_file(at_hand, name)
    disk.make_dirs(f"{root}/a/b")
    assert disk.listdir(root) == [*wanted, "a"]
    assert disk.listdir(f"{root}/a") == ["b"] and disk.listdir(f"{root}/missing") == []
    assert disk.exists(f"{root}/a") and disk.is_dir(f"{root}/a/b")
    assert disk.exists(f"{root}/000") and not disk.is_dir(f"{root}/000")
    assert not disk.exists(f"{root}/missing") and not disk.is_dir(f"{root}/missing")
    disk.make_dirs(f"{root}/a/b")  # those that are there already are no mistake


def test_files_can_be_renamed_and_deleted(at_hand: DiskAtHand) -> None:
    disk, root = at_hand.disk, at_hand.root
    a_file(at_hand, "old").pwrite(b"moved", 0)
    a_file(at_hand, "new").pwrite(b"replaced", 0)
    disk.rename(f"{root}/old", f"{root}/new")
    assert disk.listdir(root) == ["new"] and disk.read_bytes(f"{root}/new") == b"moved"
    disk.unlink(f"{root}/new")
    assert disk.listdir(root) == []
    for change in (disk.unlink, disk.read_bytes, disk.modified_ms):
        with pytest.raises(FileNotFoundError):
            change(f"{root}/new")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/old", f"{root}/new")


def test_removing_a_tree_removes_only_its_content(at_hand: DiskAtHand) -> None:
    disk, root = at_hand.disk, at_hand.root
    for directory in ("tree/deep", "tree2"):
        disk.make_dirs(f"{root}/{directory}")
        a_file(at_hand, f"{directory}/file")
    disk.remove_tree(f"{root}/tree")
    disk.remove_tree(f"{root}/missing")
    assert disk.listdir(root) == ["tree2"] and disk.listdir(f"{root}/tree2") == ["file"]


def test_a_file_cannot_be_synced_as_a_directory(at_hand: DiskAtHand) -> None:
    a_file(at_hand)
    for path in ("missing", "file"):
        with pytest.raises(OSError):
            at_hand.disk.sync_directory(f"{at_hand.root}/{path}")


def test_a_file_reports_its_modification_time(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    file.pwrite(b"x", 0)
    at_hand.wind_clock_of(file.path, 1_700_000_000_123)
    assert at_hand.disk.modified_ms(file.path) == 1_700_000_000_123


def test_access_rights_are_copied_from_another_file(at_hand: DiskAtHand) -> None:
    source, target = a_file(at_hand, "source"), a_file(at_hand, "target")
    target.pwrite(b"its own", 0)
    for mode in (0o600, 0o664):
        at_hand.set_mode(source.path, mode)
        at_hand.disk.copy_access(source.path, target.path)
        assert at_hand.mode(target.path) == at_hand.mode(source.path) == mode
    assert at_hand.disk.read_bytes(target.path) == b"its own"
    with pytest.raises(FileNotFoundError):
        at_hand.disk.copy_access(f"{at_hand.root}/missing", target.path)


def test_a_path_without_links_is_the_real_one(at_hand: DiskAtHand) -> None:
    root = at_hand.disk.real_path(at_hand.root)
    assert at_hand.disk.real_path(f"{root}/./missing/file") == f"{root}/missing/file"


def test_a_path_is_followed_through_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    assert RealDisk().real_path(str(tmp_path / "link")) == str(tmp_path.resolve() / "elsewhere")


@pytest.mark.slow
def test_a_lock_on_byte_0_is_refused_while_another_process_holds_it(at_hand: DiskAtHand) -> None:
    file = a_file(at_hand)
    with at_hand.locked_elsewhere(file.path):
        assert not file.lock_byte()
    assert file.lock_byte()
    file.close()


def test_a_root_is_claimed_once_in_a_process_under_all_its_names(at_hand: DiskAtHand) -> None:
    disk, root = at_hand.disk, at_hand.root
    assert disk.claim(root)
    assert not disk.claim(root + "/.")
    assert disk.claim(root + "/other")
    disk.release(root + "/.")
    assert disk.claim(root)
    disk.release(root)
    disk.release(root + "/other")
    disk.release(root)  # once more is no mistake


def test_a_root_is_claimed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert RealDisk().claim(str(tmp_path))
    assert not RealDisk().claim(str(tmp_path / "link"))
    RealDisk().release(str(tmp_path / "link"))
    assert RealDisk().claim(str(tmp_path))
    RealDisk().release(str(tmp_path))


def test_allocated_blocks_are_real_and_sized_ones_are_not(tmp_path: Path) -> None:
    at_hand = RealAtHand(tmp_path)
    allocated, sized = a_file(at_hand, "allocated"), a_file(at_hand, "sized")
    allocated.allocate(1 << 20)
    sized.set_size(1 << 20)
    assert os.stat(allocated.path).st_blocks * 512 >= 1 << 20
    assert os.stat(sized.path).st_blocks == 0
    assert sized.data_after(0) is None
    sized.pwrite(b"x", 500_000)
    assert (sized.data_after(0) or 0) > 0


@pytest.mark.slow
def test_a_byte_locked_here_is_refused_to_another_process(tmp_path: Path) -> None:
    at_hand = RealAtHand(tmp_path)
    file = a_file(at_hand)
    assert file.lock_byte()
    with pytest.raises(AssertionError), at_hand.locked_elsewhere(file.path):
        pass
    file.close()
    with at_hand.locked_elsewhere(file.path):
        pass


def test_capacity_excludes_blocks_reserved_for_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 blocks: 700 used, 100 free for root only, 200 free for all."""
    figures = SimpleNamespace(f_blocks=1000, f_bfree=300, f_bavail=200, f_frsize=512, f_bsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: {"/store": figures}[path])
    assert RealDisk().usage_ratio("/store") == 700 / 900
    assert RealDisk().capacity("/store") == (1000 * 512, 200 * 512)
    figures.f_blocks = figures.f_bfree = figures.f_bavail = 0
    assert RealDisk().usage_ratio("/store") == 0.0


def test_an_in_memory_disk_has_the_given_capacity() -> None:
    at_hand = FakeAtHand()
    at_hand.fake.capacity_bytes = 4 * 4096
    a_file(at_hand).pwrite(b"x", 0)
    assert at_hand.disk.usage_ratio("/") == 0.25 and at_hand.disk.capacity("/") == (16384, 12288)


def test_without_mincore_all_pages_count_as_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for code, is_cached in ((errno.EOPNOTSUPP, True), (errno.EAGAIN, False), (errno.EIO, False)):

        def fail(*_: object, code: int = code) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "preadv", fail)
        assert RealDisk().open(str(tmp_path / "file")).is_cached(0, 1) is is_cached


def test_partly_cached_bytes_count_as_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel gives what it has and refuses the rest; nothing is waited for."""
    asked: list[tuple[int, int, int]] = []

    def first_page_only(_: int, buffers: list[memoryview], position: int, flags: int) -> int:
        asked.append((len(buffers[0]), position, flags))
        if position >= 4096:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 4096

    monkeypatch.setattr(os, "preadv", first_page_only)
    file = a_file(RealAtHand(tmp_path))
    assert file.is_cached(0, 4096) and not file.is_cached(0, 8192)
    assert asked == [(size, at, os.RWF_NOWAIT) for size, at in ((4096, 0), (8192, 0), (4096, 4096))]


def test_short_reads_and_writes_are_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = a_file(RealAtHand(tmp_path))
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, min(count, 3), at))
    file.pwrite(b"0123456789", 5)
    assert file.pread(100, 5) == b"0123456789" and file.pread(7, 6) == b"1234567"
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="wrote no bytes"):
        file.pwrite(b"x", 0)


def test_another_locking_failure_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", fail)
    with pytest.raises(OSError):
        a_file(RealAtHand(tmp_path)).lock_byte()


def test_files_and_directories_are_not_accessible_to_others(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_dirs(str(tmp_path / "a" / "b"))
    disk.open(str(tmp_path / "a" / "file"), create=True).close()
    assert os.stat(tmp_path / "a" / "b").st_mode & 0o027 == 0
    assert os.stat(tmp_path / "a" / "file").st_mode & 0o137 == 0
