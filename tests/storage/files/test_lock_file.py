"""`lock` and `abort`: one owner at a time, and how the last one stopped."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.config import StoreConfig
from storage.errors import StoreError, StoreLocked
from storage.files.disk import Disk, RealDisk
from storage.files.lock_file import StoreLock, create_abort, remove_abort, was_stopped_cleanly
from troupemq.testing.fake_disk import FakeDisk

TAKES_THE_LOCK_AS_JAVA_DOES = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    "print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(params=["real", "fake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, StoreConfig]:
    if request.param == "real":
        return RealDisk(), StoreConfig(root=str(tmp_path / "store"))
    return FakeDisk(), StoreConfig(root="/store")


def test_a_store_has_one_owner_in_a_process(place: tuple[Disk, StoreConfig]) -> None:
    disk, config = place
    first, second = StoreLock(config, disk), StoreLock(config, disk)
    first.acquire()
    with pytest.raises(StoreLocked, match="is in use by this process: stop that broker"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_lock_file_contains_the_word_lock(place: tuple[Disk, StoreConfig]) -> None:
    disk, config = place
    lock = StoreLock(config, disk)
    lock.acquire()
    assert disk.read_bytes(config.lock_path) == b"lock"
    lock.release()
    lock.release()


@pytest.mark.slow
def test_a_store_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    config = StoreConfig(root=str(tmp_path))
    command = [sys.executable, "-c", TAKES_THE_LOCK_AS_JAVA_DOES, config.lock_path]
    lock = StoreLock(config, RealDisk())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StoreLocked, match="is in use by another process"):
            lock.acquire()
        other.communicate()
    lock.acquire()
    lock.release()


@pytest.mark.slow
def test_another_process_cannot_open_our_store(tmp_path: Path) -> None:
    config = StoreConfig(root=str(tmp_path))
    lock = StoreLock(config, RealDisk())
    lock.acquire()
    with pytest.raises(StoreLocked):
        StoreLock(config, RealDisk()).acquire()  # must not give up the first one's lock
    command = [sys.executable, "-c", TAKES_THE_LOCK_AS_JAVA_DOES, config.lock_path]
    other = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert other.returncode != 0
    assert b"BlockingIOError" in other.stderr
    lock.release()


def test_a_directory_that_cannot_be_created_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot create the store directory"):
        StoreLock(StoreConfig(root=str(tmp_path / "file" / "store")), RealDisk()).acquire()


def test_the_abort_file_exists_from_start_to_clean_stop(place: tuple[Disk, StoreConfig]) -> None:
    disk, config = place
    disk.make_dirs(config.root)
    assert was_stopped_cleanly(config, disk)
    create_abort(config, disk)
    assert not was_stopped_cleanly(config, disk)
    assert disk.read_bytes(config.abort_path) == b""
    remove_abort(config, disk)
    remove_abort(config, disk)
    assert was_stopped_cleanly(config, disk)


def test_the_abort_file_survives_a_power_cut() -> None:
    disk, config = FakeDisk(), StoreConfig(root="/store")
    disk.make_dirs(config.root)
    create_abort(config, disk)
    assert all(disk.crashed(seed).exists("/store/abort") for seed in range(20))
    remove_abort(config, disk)
    assert not any(disk.crashed(seed).exists("/store/abort") for seed in range(20))
