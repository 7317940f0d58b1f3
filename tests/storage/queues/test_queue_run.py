"""Used and unused files of a queue's directory."""

import errno

import pytest

from tests.storage.units import (
    DIRECTORY,
    NAMES,
    a_queue,
    everything,
    fill,
    filled,
    reloaded,
    wanted,
)
from troupemq.testing.fake_disk import FakeDisk


def test_every_file_after_a_missing_one_is_a_misfit() -> None:
    disk = FakeDisk()
    filled(1000, disk).write_out()
    disk.unlink(f"{DIRECTORY}/{NAMES[1]}")
    queue = reloaded(disk)
    assert (queue.max_offset, queue.max_physical_offset) == (300, 30_000)
    assert queue.misfit == f"a file is missing before {DIRECTORY}/{NAMES[2]}"
    assert disk.listdir(DIRECTORY) == [NAMES[0], *NAMES[2:]], "nothing is changed by looking"
    queue.mend()
    assert disk.listdir(DIRECTORY) == [NAMES[0]]
    fill(queue, 300, 1000)
    queue.write_out()
    assert everything(reloaded(disk)) == wanted(0, 1000)


def test_leftover_files_before_a_deleted_one_are_removed() -> None:
    disk = FakeDisk()
    filled(1000, disk).write_out()
    disk.unlink(f"{DIRECTORY}/{NAMES[1]}")
    queue = a_queue(disk)
    queue.load(60_000)
    assert (queue.misfit, queue.min_offset, queue.max_offset) == ("", 600, 1000)
    queue.mend()
    assert disk.listdir(DIRECTORY) == NAMES[2:]


@pytest.mark.parametrize("size", [0, 1, 20, 100, 4096, 5999])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_is_too_short_is_a_misfit(size: int, number: int) -> None:
    disk = FakeDisk()
    filled(900, disk).write_out()
    disk.open(f"{DIRECTORY}/{NAMES[number]}").set_size(size)
    queue = reloaded(disk)
    assert f"{NAMES[number]} has {size} bytes" in queue.misfit
    queue.mend()
    assert disk.listdir(DIRECTORY) == NAMES[:number]
    queue.remove(disk)
    fill(queue, 0, 900)
    queue.write_out()
    assert everything(reloaded(disk)) == wanted(0, 900)


def test_an_empty_last_file_is_a_misfit() -> None:
    disk = FakeDisk()
    filled(400, disk).write_out()
    disk.open(f"{DIRECTORY}/{NAMES[1]}").pwrite(bytes(2000), 0)
    queue = reloaded(disk)
    assert (queue.max_offset, queue.misfit) == (300, f"{DIRECTORY}/{NAMES[1]} is empty")
    queue.mend()
    assert disk.listdir(DIRECTORY) == NAMES[:1]


def test_a_queue_of_a_whole_log_that_begins_late_lacks_a_file() -> None:
    disk = FakeDisk()
    filled(700, disk).write_out()
    disk.unlink(f"{DIRECTORY}/{NAMES[0]}")
    for min_physical in (-1, 30_000):
        queue = a_queue(disk)
        queue.load(min_physical)
        assert (queue.max_offset, queue.misfit) == (700, "")
    queue = a_queue(disk)
    queue.load(0)
    assert (queue.max_offset, queue.misfit) == (0, f"{DIRECTORY}/{NAMES[0]} is missing")
    queue.mend()
    assert disk.listdir(DIRECTORY) == []


def test_foreign_file_names_are_ignored() -> None:
    disk = FakeDisk()
    filled(400, disk).write_out()
    disk.open(f"{DIRECTORY}/notes.txt", create=True)
    disk.open(f"{DIRECTORY}/00000000000000000017", create=True).set_size(6000)
    disk.make_dirs(f"{DIRECTORY}/{NAMES[3]}")
    queue = reloaded(disk)
    assert "does not begin at" in queue.misfit or "missing before" in queue.misfit
    queue.mend()
    queue.remove(disk)
    fill(queue, 0, 400)
    queue.write_out()
    assert everything(reloaded(disk)) == wanted(0, 400)


def test_an_unchanged_queue_is_reopened_without_reading_it() -> None:
    disk = FakeDisk()
    filled(700, disk).write_out()
    queue = a_queue(disk)
    disk.fail_next("pread", OSError(errno.EIO, "no reading"))
    assert queue.load_known(20, 700, 70_000)
    assert (queue.min_offset, queue.max_offset, queue.verified_from) == (20, 700, 700)
    assert queue.max_physical_offset == 70_000
    with pytest.raises(OSError):
        disk.open(f"{DIRECTORY}/{NAMES[0]}").pread(1, 0)
    fill(queue, 700, 710)
    assert everything(queue, 20) == wanted(20, 710)


@pytest.mark.parametrize("known", [(0, 600, 1), (0, 901, 1), (10, 5, 1), (0, 0, -1)])
def test_a_queue_with_misfit_files_is_not_reopened(known: tuple[int, int, int]) -> None:
    disk = FakeDisk()
    filled(700, disk).write_out()
    queue = a_queue(disk)
    assert not queue.load_known(*known)
    disk.open(f"{DIRECTORY}/{NAMES[0]}").set_size(10)
    assert not queue.load_known(0, 700, 70_000)
