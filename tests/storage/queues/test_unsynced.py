"""Syncing what others own: by name, and blind to what is gone."""

import errno

import pytest

from storage.errors import SyncFailed
from storage.queues.unsynced import Unsynced, sync_files
from troupemq.testing.fake_disk import FakeDisk


def disk_with_file() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs("/d")
    disk.open("/d/a", create=True).pwrite(b"data", 0)
    return disk


def test_a_sync_makes_files_and_names_durable() -> None:
    disk = disk_with_file()
    sync_files(disk, Unsynced(["/d/a"], {"/d"}))
    for seed in range(5):
        assert disk.crashed(seed).read_bytes("/d/a") == b"data"


def test_files_deleted_before_the_sync_are_skipped() -> None:
    sync_files(FakeDisk(), Unsynced(["/gone/file"], {"/gone"}))


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_failing_disk_is_reported(operation: str) -> None:
    disk = disk_with_file()
    disk.fail_next(operation, OSError(errno.EIO, "broken"))
    with pytest.raises(SyncFailed, match="/d"):
        sync_files(disk, Unsynced(["/d/a"], {"/d"}))
