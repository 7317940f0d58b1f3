"""Changes stay in memory: what is read shows them, and the disk below is as it was."""

import os
from pathlib import Path

import pytest

from storage.files.disk import Disk, RealDisk
from storage.files.overlay_disk import OverlayDisk
from storage.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk


@pytest.fixture(params=["real", "fake"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and a directory of it that holds `file`, 8 KiB, and `sub/other`."""
    disk: Disk = RealDisk()
    root = str(tmp_path)
    if request.param == "fake":
        disk, root = FakeDisk(), "/root"
    disk.make_dirs(f"{root}/sub")
    for name in ("file", "sub/other"):
        file = disk.open(f"{root}/{name}", create=True)
        file.set_size(8192)
        file.pwrite(name.encode(), 0)
        file.close()
    return disk, root


def test_writes_are_read_back_and_leave_the_underlying_disk_unchanged(
    below: tuple[Disk, str],
) -> None:
    disk, root = below
    overlay = OverlayDisk(disk)
    file = overlay.open(f"{root}/file")
    view = file.view()
    file.pwrite(b"FI", 0)
    file.pwrite(b"far", 5000)
    assert bytes(view[:4]) == file.pread(4, 0) == b"FIle" and bytes(view[5000:5003]) == b"far"
    start = file.data_after(4096)
    assert start is not None and 4096 <= start <= 5000
    file.close()
    assert overlay.read_bytes(f"{root}/file")[:4] == b"FIle"
    again = overlay.open(f"{root}/file")
    assert again.pread(3, 5000) == b"far"
    again.set_size(2)
    assert overlay.read_bytes(f"{root}/file") == b"FI"
    again.pwrite(b"x", 4)
    assert again.pread(9, 0) == b"FI\0\0x"
    assert disk.read_bytes(f"{root}/file") == b"file".ljust(8192, b"\0")


def test_two_descriptors_of_a_file_see_the_same(below: tuple[Disk, str]) -> None:
    disk, root = below
    overlay = OverlayDisk(disk)
    first, second = (overlay.open(f"{root}/file") for _ in range(2))
    second.close()
    first.pwrite(b"ours", 0)
    third = overlay.open(f"{root}/file", read_only=True)
    assert third.pread(4, 0) == b"ours"
    for file in (first, first, third):
        file.close()


def test_created_and_deleted_files_leave_the_underlying_disk_unchanged(
    below: tuple[Disk, str],
) -> None:
    disk, root = below
    overlay = OverlayDisk(disk)
    overlay.open(f"{root}/new", create=True).pwrite(b"new", 0)
    overlay.make_dirs(f"{root}/a/b")
    overlay.open(f"{root}/a/b/c", create=True).close()
    assert overlay.listdir(root) == ["a", "file", "new", "sub"]
    overlay.rename(f"{root}/file", f"{root}/new")
    assert overlay.read_bytes(f"{root}/new")[:4] == b"file" and not overlay.exists(f"{root}/file")
    overlay.remove_tree(f"{root}/sub")
    assert not overlay.exists(f"{root}/sub/other") and not overlay.is_dir(f"{root}/sub")
    overlay.make_dirs(f"{root}/sub")
    assert overlay.listdir(f"{root}/sub") == []
    overlay.unlink(f"{root}/a/b/c")
    overlay.remove_tree(f"{root}/a")
    assert overlay.listdir(root) == ["new", "sub"]
    for missing in ("file", "a/b/c", "sub/other"):
        with pytest.raises(FileNotFoundError):
            overlay.open(f"{root}/{missing}")
    with pytest.raises(FileNotFoundError):
        overlay.unlink(f"{root}/file")
    assert disk.listdir(root) == ["file", "sub"] and disk.exists(f"{root}/sub/other")


def test_a_large_file_costs_only_the_pages_that_are_written(tmp_path: Path) -> None:
    path = str(tmp_path / "large")
    file = RealDisk().open(path, create=True)
    file.set_size(1 << 30)
    file.close()
    overlay = OverlayDisk(RealDisk()).open(path)
    before = resident_bytes()
    overlay.pwrite(b"x", 1 << 29)
    assert overlay.view()[1 << 29] == ord("x")
    assert resident_bytes() - before < 16 << 20
    with open(path, "rb") as below:
        below.seek(1 << 29)
        assert below.read(1) == b"\0"
    on_disk_bytes = os.stat(path).st_blocks * 512
    assert on_disk_bytes <= os.sysconf("SC_PAGE_SIZE")  # in memory looking at a page makes it


def resident_bytes() -> int:
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_opens_as_on_the_underlying_disk(killed: bool) -> None:
    small = SmallStore()
    small.send(250)
    if not killed:
        small.store.close()
    disk = small.disk.killed()
    before = {path: disk.read_bytes(path) for path in disk.paths()}
    rehearsed = MessageStore(CONFIG, OverlayDisk(disk), ManualClock()).open()
    assert {path: disk.read_bytes(path) for path in disk.paths()} == before
    assert MessageStore(CONFIG, disk, ManualClock()).open() == rehearsed
    assert rehearsed.clean is not killed and rehearsed.end_offset > 0
