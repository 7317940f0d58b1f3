"""Tests of storage/backup/copying.py: holes stay holes, bad places are counted, pace is kept."""

import errno
import os
from pathlib import Path

import pytest

from storage.backup.copying import CHUNK_BYTES, FileCopier, clone, hard_link
from storage.backup.record import BackupFolder
from storage.files.disk import RealDisk
from troupemq.testing.fake_disk import FakeDisk


def test_a_sparse_file_stays_sparse_and_only_read_bytes_count_for_the_pace(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "copy" / "target"
    with source.open("wb") as file:
        file.write(b"head")
        file.seek(6 * CHUNK_BYTES)
        file.write(b"tail")
        file.truncate(9 * CHUNK_BYTES)
    told: list[int] = []
    copier = FileCopier(RealDisk(), BackupFolder(RealDisk(), str(tmp_path / "copy")), told.append)
    through = copier.copy(str(source), str(target))
    assert through == 6 * CHUNK_BYTES + 4
    assert target.read_bytes() == source.read_bytes()
    assert os.stat(target).st_blocks * 512 < 4 * CHUNK_BYTES
    assert 2 <= len(told) < 10 and copier.copied_bytes >= 8


def test_unreadable_bytes_are_counted_and_the_rest_is_copied() -> None:
    disk = FakeDisk()
    file = disk.open("/source", create=True)
    file.pwrite(b"x" * 20_000, 0)
    copier = FileCopier(disk, BackupFolder(disk, "/copy"), lambda _: None)
    disk.fail_next("pread", OSError(errno.EIO, "I/O error"), times=3, below="/source")
    copier.copy("/source", "/copy/target")
    data = disk.read_bytes("/copy/target")
    assert data == bytes(4096) + b"x" * (20_000 - 4096)
    assert copier.unreadable_bytes == 4096


def test_a_hard_link_takes_no_space_and_an_impossible_clone_falls_back_to_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"full")
    assert hard_link(str(source), str(target))
    assert os.stat(source).st_ino == os.stat(target).st_ino

    def refuses(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr("fcntl.ioctl", refuses)
    assert not clone(str(source), str(tmp_path / "other"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    monkeypatch.setattr("fcntl.ioctl", lambda *_: 0)
    assert clone(str(source), str(tmp_path / "other"))
