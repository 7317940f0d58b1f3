"""One mapped file: sizes, writing, reading, zeroing."""

import errno
from pathlib import Path

import pytest

from storage.errors import OffsetError
from storage.files.disk import Disk, RealDisk
from storage.files.mapped_file import MappedFile, create_mapped_file, file_name, first_offset_of
from troupemq.testing.fake_disk import FakeDisk

FILE_BYTES = 16_384


@pytest.fixture(params=["real", "fake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and an empty directory on it."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = FakeDisk()
    disk.make_dirs("/log")
    return disk, "/log"


def made(place: tuple[Disk, str], *, sparse: bool = False) -> MappedFile:
    disk, directory = place
    return create_mapped_file(disk, directory, 0, FILE_BYTES, sparse=sparse)


def test_a_file_name_is_its_first_offset_in_twenty_digits() -> None:
    assert file_name(131_072) == "00000000000000131072"
    assert first_offset_of("00000000000000131072") == 131_072


@pytest.mark.parametrize("name", ["", "1", "0000000000000013107x", "00000000000000131072.tmp"])
def test_other_names_have_no_offset(name: str) -> None:
    assert first_offset_of(name) is None


@pytest.mark.parametrize("sparse", [True, False])
def test_a_new_file_has_its_full_size_and_is_all_zeros(
    place: tuple[Disk, str], sparse: bool
) -> None:
    file = made(place, sparse=sparse)
    assert file.file.size() == FILE_BYTES
    assert file.is_zero_from(0)
    assert bytes(file.slice(FILE_BYTES - 8, 8)) == bytes(8)
    file.close()


def test_the_map_shows_later_writes(place: tuple[Disk, str]) -> None:
    file = made(place)
    part = file.slice(100, 5)
    file.write(b"later", 100)
    assert bytes(part) == b"later"
    assert not file.is_zero_from(0)
    assert file.is_zero_from(105)
    file.close()


def test_file_that_cannot_be_mapped_is_read() -> None:
    """Without free descriptors the actors that read the log failed, and the broker ended."""
    disk = FakeDisk()
    disk.make_dirs("/log")
    file = create_mapped_file(disk, "/log", 0, 4096, sparse=True)
    file.write(b"abc", 10)
    disk.fail_next("view", OSError(errno.EMFILE, "Too many open files"))
    assert bytes(file.slice(9, 5)) == b"\0abc\0" and not file.is_mapped
    assert bytes(file.slice(9, 5)) == b"\0abc\0" and file.is_mapped


def test_a_new_log_file_is_mapped_or_not_made() -> None:
    """A slave failed at its first look at such a file, again and again, until it ended."""
    disk = FakeDisk()
    disk.make_dirs("/log")
    disk.fail_next("view", OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(OSError, match="Too many open files"):
        create_mapped_file(disk, "/log", 0, 4096, sparse=False)
    assert disk.listdir("/log") == []
    assert create_mapped_file(disk, "/log", 0, 4096, sparse=False).is_mapped


def test_a_view_outlives_the_file(place: tuple[Disk, str]) -> None:
    file = made(place)
    file.write(b"still here", 0)
    part = file.slice(0, 10)
    place[0].unlink(file.path)
    file.close()
    assert bytes(part) == b"still here"


@pytest.mark.parametrize("position, count", [(-1, 4), (FILE_BYTES - 3, 4), (0, FILE_BYTES + 1)])
def test_reads_and_writes_outside_the_file_are_refused(
    place: tuple[Disk, str], position: int, count: int
) -> None:
    file = made(place)
    with pytest.raises(OffsetError):
        file.slice(position, count)
    with pytest.raises(OffsetError):
        file.write(bytes(count), position)
    file.close()


def test_zeroing_clears_the_rest_and_keeps_earlier_bytes(place: tuple[Disk, str]) -> None:
    file = made(place)
    file.write(b"k" * 5000, 0)
    file.write(b"x" * 10, 9000)
    assert file.zero_from(4990) > 0
    assert bytes(file.slice(4980, 10)) == b"k" * 10
    assert file.is_zero_from(4990)
    assert file.zero_from(4990) == 0
    file.close()


def test_zeroing_keeps_holes_sparse(tmp_path: Path) -> None:
    file = create_mapped_file(RealDisk(), str(tmp_path), 0, 64 << 20, sparse=True)
    file.write(b"end", (64 << 20) - 3)
    file.zero_from(0)
    assert (tmp_path / file_name(0)).stat().st_blocks * 512 < 4 << 20
    assert file.is_zero_from(0)
    file.close()


def test_a_full_disk_leaves_no_partial_file() -> None:
    disk = FakeDisk(capacity_bytes=FILE_BYTES - 1)
    disk.make_dirs("/log")
    with pytest.raises(OSError) as caught:
        create_mapped_file(disk, "/log", 0, FILE_BYTES, sparse=False)
    assert caught.value.errno == errno.ENOSPC
    assert disk.listdir("/log") == []


def test_a_created_file_survives_a_power_cut() -> None:
    disk = FakeDisk()
    disk.make_dirs("/log")
    create_mapped_file(disk, "/log", 0, FILE_BYTES, sparse=False)
    for seed in range(20):
        after = disk.crashed(seed)
        assert after.listdir("/log") == [file_name(0)]
        assert after.open("/log/" + file_name(0)).size() == FILE_BYTES


def test_warming_writes_through_the_whole_file(tmp_path: Path) -> None:
    size = (1 << 20) + 4096
    file = create_mapped_file(RealDisk(), str(tmp_path), 0, size, sparse=True, warm=True)
    assert (tmp_path / file_name(0)).stat().st_blocks * 512 >= size
    file.close()
