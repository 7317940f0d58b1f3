"""Settings are replaced as a whole; the file keeps owner, mode and attributes."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.tables.settings_file import read_settings, save_settings
from troupemq.testing.fake_disk import FakeDisk

ACL = bytes.fromhex(
    "02000000"  # version 2; entries: tag, permissions, id
    "01000600ffffffff"  # its owner: rw
    "0200040039300000"  # user 12345: r
    "04000400ffffffff"  # its group: r
    "10000400ffffffff"  # at most, for the two before: r
    "20000000ffffffff"  # others: nothing
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o606])
def test_a_file_keeps_its_mode(path: Path, mode: int) -> None:
    path.chmod(mode)
    save_settings(RealDisk(), str(path), "a=2\n")
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("a=2\n", mode)


@pytest.mark.parametrize(
    "name, value", [("user.note", b"by hand"), ("system.posix_acl_access", ACL)]
)
def test_a_file_keeps_its_attributes(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip("this file system has none")
    mode = path.stat().st_mode
    save_settings(RealDisk(), str(path), "a=2\n")
    assert os.getxattr(path, name) == value and path.stat().st_mode == mode
    os.removexattr(path, name)
    left_over = Path(f"{path}.new")
    left_over.touch()
    os.setxattr(left_over, name, value)
    save_settings(RealDisk(), str(path), "a=3\n")
    assert name not in os.listxattr(path), "it had none any more"


@pytest.fixture
def as_if_of_another(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Make new files appear to have another owner; return the owners that are set."""
    given: list[tuple[int, int]] = []
    fstat = os.fstat

    def as_of_another(fd: int) -> SimpleNamespace:
        found = fstat(fd)
        return SimpleNamespace(st_uid=-1, st_gid=-1, st_size=found.st_size, st_mode=found.st_mode)

    monkeypatch.setattr(os, "fstat", as_of_another)
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: given.append((uid, gid)))
    return given


def test_a_file_keeps_its_owner_and_group(
    path: Path, as_if_of_another: list[tuple[int, int]]
) -> None:
    save_settings(RealDisk(), str(path), "a=2\n")
    assert as_if_of_another == [(path.stat().st_uid, path.stat().st_gid)]


def test_a_file_whose_owner_would_change_is_left_unchanged(
    path: Path, as_if_of_another: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(StoreError, match=f"cannot save {path}: .*owner.*make the broker its owner"):
        save_settings(RealDisk(), str(path), "a=2\n")
    assert path.read_text() == "a=1\n" and [*path.parent.iterdir()] == [path]


def test_a_link_is_kept_and_its_target_replaced(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "etc" / "link.conf"
    link.parent.mkdir()
    link.symlink_to("../broker.conf")
    save_settings(RealDisk(), str(link), "a=2\n")
    assert link.is_symlink() and path.read_text() == link.read_text() == "a=2\n"
    assert [*link.parent.iterdir()] == [link]


def test_a_power_cut_leaves_old_or_new_settings_with_their_access_rights() -> None:
    disk = FakeDisk()
    save_settings(disk, "/etc/x.conf", "old")
    disk.access_of("/etc/x.conf", "0600 root")
    for operation in ("sync", "rename", "sync_directory"):
        disk.fail_next(operation, OSError(errno.EIO, "broken"))
        with pytest.raises(StoreError):
            save_settings(disk, "/etc/x.conf", "new")
        for seed in range(20):
            after = disk.crashed(seed)
            assert read_settings(after, "/etc/x.conf") in ("old", "new")
            assert after.access_of("/etc/x.conf") == "0600 root"
    save_settings(disk, "/etc/x.conf", "newer")
    assert {read_settings(disk.crashed(seed), "/etc/x.conf") for seed in range(20)} == {"newer"}


def test_a_replaced_file_is_never_more_readable_than_before() -> None:
    """The new file has its mode before it has its contents: there are passwords among them."""
    disk = FakeDisk()
    save_settings(disk, "/x.conf", "old")
    disk.access_of("/x.conf", "0600")
    disk.fail_next("pwrite", OSError(errno.EIO, "broken"))
    with pytest.raises(StoreError):
        save_settings(disk, "/x.conf", "new")
    assert disk.access_of("/x.conf.new") == "0600"


def test_a_missing_settings_file_is_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "namesrv.properties"
    assert read_settings(RealDisk(), str(path)) == ""
    save_settings(RealDisk(), str(path), "a=1\n")
    assert read_settings(RealDisk(), str(path)) == "a=1\n"
