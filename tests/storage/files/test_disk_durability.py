"""Synced data survives a power cut: the real disk makes the calls, the fake one keeps it."""

import errno
import gc
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.files.disk import Disk, DiskFile, RealDisk
from troupemq.testing.fake_disk import FakeDisk

SEEDS = range(24)
"""Enough seeds to lose unsynced data in some of them."""

CALLS_OF_A_FILE = (
    "pwrite",
    "posix_fallocate",
    "ftruncate",
    "fdatasync",
    "fchmod",
    "fsync",
    "close",
)
CALLS_OF_A_NAME = ("mkdir", "unlink", "rmdir")


@dataclass(frozen=True)
class Promise:
    """An operation on a disk, its system calls, and its result after any power cut."""

    do: Callable[[Disk, str], object]
    """Returns the file that must stay open."""
    calls: tuple[str, ...]
    """System calls of this machine's disk, in order, with their paths."""
    kept: Callable[[Disk, str], object]


def opened(disk: Disk, path: str) -> DiskFile:
    return disk.open(path, create=True)


def write(disk: Disk, root: str) -> DiskFile:
    file = opened(disk, f"{root}/old")
    file.pwrite(b"synced", 3)
    file.sync()
    return file


def allocate(disk: Disk, root: str) -> DiskFile:
    file = opened(disk, f"{root}/old")
    file.allocate(9000)
    file.sync()
    return file


def size(disk: Disk, root: str) -> DiskFile:
    file = opened(disk, f"{root}/old")
    file.set_size(9000)
    file.sync()
    return file


def store_through_a_map(disk: Disk, root: str) -> DiskFile:
    file = opened(disk, f"{root}/old")
    file.writable_view()[:2] = b"OK"
    file.sync()
    return file


def make_a_file(disk: Disk, root: str) -> None:
    file = opened(disk, f"{root}/new")
    file.pwrite(b"new", 0)
    file.sync()
    file.close()
    disk.sync_directory(root)


def rename(disk: Disk, root: str) -> None:
    disk.rename(f"{root}/old", f"{root}/moved")
    disk.sync_directory(root)


def unlink(disk: Disk, root: str) -> None:
    disk.unlink(f"{root}/old")
    disk.sync_directory(root)


def make_dirs(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/a/b")


def remove_tree(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    disk.sync_directory(root)


MADE = ("open .", "fsync .", "close .")
"""A directory is synced through a descriptor of its own."""

PROMISES = {
    "bytes": Promise(
        write,
        ("open old", "pwrite old", "fdatasync old"),
        lambda disk, root: disk.read_bytes(f"{root}/old")[:9] == b"oldsynced",
    ),
    "blocks": Promise(
        allocate,
        ("open old", "posix_fallocate old", "fdatasync old"),
        lambda disk, root: len(disk.read_bytes(f"{root}/old")) == 9000,
    ),
    "a size": Promise(
        size,
        ("open old", "ftruncate old", "fdatasync old"),
        lambda disk, root: len(disk.read_bytes(f"{root}/old")) == 9000,
    ),
    "stores through a map": Promise(
        store_through_a_map,
        ("open old", "fdatasync old"),
        lambda disk, root: disk.read_bytes(f"{root}/old") == b"OKd",
    ),
    "a new name": Promise(
        make_a_file,
        ("open new", "pwrite new", "fdatasync new", "close new", *MADE),
        lambda disk, root: disk.exists(f"{root}/new") and disk.read_bytes(f"{root}/new") == b"new",
    ),
    "a moved name": Promise(
        rename,
        ("replace old moved", *MADE),
        lambda disk, root: disk.listdir(root) == ["moved"],
    ),
    "a removed name": Promise(
        unlink, ("unlink old", *MADE), lambda disk, root: disk.listdir(root) == []
    ),
    "directories": Promise(
        make_dirs,
        ("mkdir a", *MADE, "mkdir a/b", "open a", "fsync a", "close a"),
        lambda disk, root: disk.is_dir(f"{root}/a/b"),
    ),
    "a removed tree": Promise(
        remove_tree,
        ("mkdir a", *MADE, "rmtree a", *MADE),
        lambda disk, root: disk.listdir(root) == ["old"],
    ),
}


def made(disk: Disk, root: str) -> None:
    """Create the initial content: one file, synced."""
    disk.make_dirs(root)
    file = opened(disk, f"{root}/old")
    file.pwrite(b"old", 0)
    file.sync()
    file.close()
    disk.sync_directory(root)


class Recorder:
    """Notes the calls of this process that change files below a directory, with their paths."""

    def __init__(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._root = root
        self._paths: dict[int, str] = {}
        self._quiet = False
        self._monkeypatch = monkeypatch
        for name in CALLS_OF_A_FILE:
            self._note(os, name, lambda fd, *_: (self._paths[fd],))
        for name in CALLS_OF_A_NAME:
            self._note(os, name, lambda path, *_: (self._relative(path),))
        self._note(os, "replace", lambda *paths: map(self._relative, paths))
        real_open = os.open

        def opened(path: str, *rest: Any, **named: Any) -> int:
            fd = real_open(path, *rest, **named)
            self._paths[fd] = self._relative(path)
            if not self._quiet:
                self.calls.append(f"open {self._paths[fd]}")
            return fd

        monkeypatch.setattr(os, "open", opened)
        self._note(shutil, "rmtree", lambda path: (self._relative(path),))

    def _note(self, module: Any, name: str, paths_of: Callable[..., Iterable[str]]) -> None:
        call = getattr(module, name)

        def noting(*arguments: Any, **named: Any) -> Any:
            of_another_test = isinstance(arguments[0], int) and arguments[0] not in self._paths
            if self._quiet or of_another_test:  # garbage that is collected now is closed
                return call(*arguments, **named)
            self.calls.append(" ".join((name, *paths_of(*arguments))))
            self._quiet = name == "rmtree"  # how it does that is its own affair
            try:
                return call(*arguments, **named)
            finally:
                self._quiet = False

        self._monkeypatch.setattr(module, name, noting)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._root)


@pytest.mark.parametrize("name", PROMISES)
def test_the_real_disk_makes_the_calls_in_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise, disk, root = PROMISES[name], RealDisk(), str(tmp_path)
    made(disk, root)
    with monkeypatch.context() as patched:
        recorder = Recorder(root, patched)
        held = promise.do(disk, root)
    assert recorder.calls == list(promise.calls)
    assert promise.kept(disk, root)
    del held


@pytest.mark.parametrize("name", PROMISES)
def test_each_durable_operation_survives_every_simulated_power_cut(name: str) -> None:
    promise, disk = PROMISES[name], FakeDisk()
    made(disk, "/root")
    promise.do(disk, "/root")
    assert all(promise.kept(disk.crashed(seed), "/root") for seed in SEEDS)


@pytest.mark.parametrize("name", PROMISES)
def test_each_durable_operation_can_be_lost_without_its_sync(name: str) -> None:
    promise, disk = PROMISES[name], FakeDisk()
    made(disk, "/root")
    disk.without_sync = True
    promise.do(disk, "/root")
    assert not all(is_kept(promise, disk.crashed(seed)) for seed in SEEDS)


def is_kept(promise: Promise, disk: Disk) -> bool:
    try:
        return bool(promise.kept(disk, "/root"))
    except FileNotFoundError:
        return False


def test_directories_are_not_synced_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        recorder = Recorder(str(tmp_path), patched)
        RealDisk().make_dirs(str(tmp_path / "a" / "b"), durable=False)
        RealDisk().make_dirs(str(tmp_path / "a" / "b"))
    assert recorder.calls == ["mkdir a", "mkdir a/b"]
    disk = FakeDisk()
    disk.make_dirs("/a/b", durable=False)
    assert not all(disk.crashed(seed).is_dir("/a/b") for seed in SEEDS)


def test_access_rights_of_a_file_are_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = RealDisk(), str(tmp_path)
    made(disk, root)
    opened(disk, f"{root}/new").close()
    with monkeypatch.context() as patched:
        recorder = Recorder(root, patched)
        disk.copy_access(f"{root}/old", f"{root}/new")
    assert recorder.calls == ["open new", "fchmod new", "fsync new", "close new"]


def test_a_failed_directory_sync_raises_and_closes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        recorder = Recorder(str(tmp_path), patched)
        with pytest.raises(OSError):
            RealDisk().sync_directory(str(tmp_path))
    assert recorder.calls == list(MADE)


@pytest.mark.heavy
def test_an_unreferenced_file_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        recorder = Recorder(str(tmp_path), patched)
        opened(RealDisk(), str(tmp_path / "dropped"))
        gc.collect()
        closed = opened(RealDisk(), str(tmp_path / "closed"))
        closed.close()
        closed.close()
        del closed
        gc.collect()
    assert recorder.calls == ["open dropped", "close dropped", "open closed", "close closed"]
