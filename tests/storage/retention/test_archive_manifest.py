"""Progress of an archive by its newest manifest; errors for damaged and missing archives."""

import pytest

from storage.errors import StoreError
from storage.retention.archive_manifest import ArchiveEnds, LastMessage, run_number
from tests.support.archives import write_run
from troupemq.testing.fake_disk import FakeDisk

FIRST, SECOND = LastMessage(3, 400, 7), LastMessage(5, 900, 8)


def test_the_newest_archive_run_counts_and_is_read_once() -> None:
    disk = FakeDisk()
    write_run(disk, "/archive", 1, {("Orders", 0): FIRST})
    archive = ArchiveEnds(disk, "/archive")
    ends = archive.read()
    assert ends == {("Orders", 0): FIRST}
    disk.fail_next("read_bytes", OSError(5, "input/output error"))
    assert archive.read() is ends
    write_run(disk, "/archive", 10, {("Orders", 0): SECOND, ("Bills", 1): FIRST})
    write_run(disk, "/archive", 9, {})
    assert archive.read() == {("Orders", 0): SECOND, ("Bills", 1): FIRST}


def test_a_rewritten_manifest_is_read_again() -> None:
    disk = FakeDisk()
    path = write_run(disk, "/archive", 1, {("Orders", 0): FIRST})
    archive = ArchiveEnds(disk, "/archive")
    archive.read()
    disk.unlink(path)
    disk.now_ms = 5
    write_run(disk, "/archive", 1, {("Orders", 0): SECOND})
    assert archive.read() == {("Orders", 0): SECOND}


def test_an_archive_without_a_run_covers_nothing() -> None:
    disk = FakeDisk()
    disk.make_dirs("/archive/_staging")
    archive = ArchiveEnds(disk, "/archive")
    assert archive.read() == {} and archive.read() is archive.read()


def test_a_missing_or_damaged_archive_is_an_error() -> None:
    disk = FakeDisk()
    archive = ArchiveEnds(disk, "/archive")
    with pytest.raises(StoreError, match="there is no archive at /archive"):
        archive.read()
    path = write_run(disk, "/archive", 1, {("Orders", 0): FIRST})
    disk.flip_bit(path, 40, 1)
    with pytest.raises(StoreError, match=r"_manifest\.json is damaged"):
        archive.read()
    disk.unlink(path)
    with pytest.raises(StoreError, match="the archive cannot be read"):
        archive.read()


@pytest.mark.parametrize(
    ("name", "number"), [("run=00000012", 12), ("run=x", None), ("12", None), ("_staging", None)]
)
def test_run_directories_are_recognized_by_their_names(name: str, number: int | None) -> None:
    assert run_number(name) == number
