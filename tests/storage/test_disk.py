"""The real disk does what its protocol says."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.disk import RealDisk

HOLDS_THE_LOCK = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    "print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)


def test_bytes_come_back_from_where_they_were_written(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"hello", 10)
    assert file.size() == 15
    assert file.pread(100, 10) == b"hello"
    assert file.pread(3, 0) == bytes(3)
    file.sync()
    file.close()
    file.close()


def test_a_missing_file_is_not_made_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealDisk().open(str(tmp_path / "file"))


def test_allocated_blocks_are_real_and_sized_ones_are_not(tmp_path: Path) -> None:
    disk = RealDisk()
    allocated = disk.open(str(tmp_path / "allocated"), create=True)
    sized = disk.open(str(tmp_path / "sized"), create=True)
    allocated.allocate(1 << 20)
    sized.set_size(1 << 20)
    assert allocated.size() == sized.size() == 1 << 20
    assert os.stat(tmp_path / "allocated").st_blocks * 512 >= 1 << 20
    assert os.stat(tmp_path / "sized").st_blocks == 0
    assert sized.data_after(0) is None
    sized.pwrite(b"x", 500_000)
    start = sized.data_after(0)
    assert start is not None and 0 < start <= 500_000
    allocated.close()
    sized.close()


def test_what_was_just_written_is_cached_and_so_is_what_lies_behind_the_end(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    assert file.is_cached(0, 10)
    file.pwrite(bytes(300_000), 0)
    assert file.is_cached(0, 300_000)
    assert file.is_cached(299_990, 1_000_000)
    file.close()


def test_a_file_system_that_cannot_tell_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, is_cached in ((errno.EOPNOTSUPP, True), (errno.EAGAIN, False), (errno.EIO, False)):

        def fail(*_: object, code: int = code) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "preadv", fail)
        file = RealDisk().open(os.devnull)
        assert file.is_cached(0, 1) is is_cached
        file.close()


def test_maps_of_an_empty_file_are_empty(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    assert len(file.view()) == len(file.writable_view()) == 0
    file.close()


def test_a_writable_map_writes_and_a_read_only_one_does_not(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.allocate(4096)
    file.writable_view()[:2] = b"ok"
    view = file.view()
    assert bytes(view[:2]) == b"ok" and view.readonly
    file.close()
    assert bytes(view[:2]) == b"ok"


def test_a_file_opened_for_reading_only_refuses_writes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    file = RealDisk().open(str(tmp_path / "file"), read_only=True)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    file.close()


def test_files_and_directories_are_not_for_others(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_dirs(str(tmp_path / "a" / "b"))
    disk.open(str(tmp_path / "a" / "file"), create=True).close()
    assert os.stat(tmp_path / "a" / "b").st_mode & 0o027 == 0
    assert os.stat(tmp_path / "a" / "file").st_mode & 0o137 == 0


def test_names_move_and_go(tmp_path: Path) -> None:
    disk = RealDisk()
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    disk.open(old, create=True).close()
    disk.rename(old, new)
    disk.sync_directory(str(tmp_path))
    assert disk.listdir(str(tmp_path)) == ["new"]
    assert disk.modified_ms(new) > 1_600_000_000_000
    assert disk.read_bytes(new) == b""
    disk.unlink(new)
    assert not disk.exists(new)
    disk.remove_tree(new)
    assert disk.listdir(new) == []
    assert 0.0 <= disk.usage_ratio(str(tmp_path)) <= 1.0


def test_a_root_is_claimed_once_in_the_process_by_whatever_name(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert RealDisk().claim(root)
    assert not RealDisk().claim(root + "/.")
    RealDisk().release(root)
    assert RealDisk().claim(root)
    RealDisk().release(root)


def test_byte_0_is_refused_while_another_process_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    command = [sys.executable, "-c", HOLDS_THE_LOCK, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        file = RealDisk().open(path)
        assert not file.lock_byte()
        other.communicate()
        assert file.lock_byte()
        file.close()
