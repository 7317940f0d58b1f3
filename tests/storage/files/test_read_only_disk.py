"""A disk that is only looked at stays as it is, whatever is asked of it."""

import pytest

from storage.files.read_only_disk import ReadOnlyDisk
from troupemq.testing.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk(capacity_bytes=1 << 20)
    disk.make_dirs("/store/config")
    file = disk.open("/store/file", create=True)
    file.pwrite(b"text", 0)
    disk.now_ms = 5
    return disk


def test_existing_files_can_be_read(disk: FakeDisk) -> None:
    looked = ReadOnlyDisk(disk)
    assert looked.listdir("/store") == ["config", "file"]
    assert looked.exists("/store/file") and not looked.exists("/store/other")
    assert looked.is_dir("/store/config") and not looked.is_dir("/store/file")
    assert looked.open("/store/file").pread(10, 0) == looked.read_bytes("/store/file") == b"text"
    assert looked.modified_ms("/store/file") == 0
    assert looked.usage_ratio("/store") == disk.usage_ratio("/store") > 0
    assert looked.capacity("/store") == disk.capacity("/store")
    assert looked.real_path("/store/./file") == "/store/file"
    with pytest.raises(FileNotFoundError):
        looked.open("/store/other")


def test_every_change_is_refused(disk: FakeDisk) -> None:
    looked = ReadOnlyDisk(disk)
    for change in (
        lambda: looked.open("/store/new", create=True),
        lambda: looked.rename("/store/file", "/store/moved"),
        lambda: looked.open("/store/file", create=True).pwrite(b"x", 0),
    ):
        with pytest.raises(OSError):
            change()
    looked.make_dirs("/store/new")
    looked.unlink("/store/file")
    looked.remove_tree("/store/config")
    looked.copy_access("/store/file", "/store/file")
    looked.sync_directory("/store")
    assert disk.listdir("/store") == ["config", "file"]
    assert disk.read_bytes("/store/file") == b"text"


def test_claiming_a_root_claims_it_on_the_underlying_disk(disk: FakeDisk) -> None:
    looked = ReadOnlyDisk(disk)
    assert looked.claim("/store") and not disk.claim("/store")
    looked.release("/store")
    assert disk.claim("/store")
