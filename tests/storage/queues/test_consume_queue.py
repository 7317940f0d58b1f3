"""One queue: adding, reading over memory and files, cutting, beginning late."""

import errno
from random import Random

import pytest

from storage.errors import DiskFull
from storage.queues.consume_queue import FILLER_BYTES, UNIT, ConsumeQueue
from storage.queues.queue_files import QueueFiles
from storage.queues.stored_units import StoredUnits
from tests.storage.units import (
    DIRECTORY,
    NAMES,
    PER_FILE,
    a_queue,
    everything,
    fill,
    filled,
    reloaded,
    wanted,
)
from troupemq.testing.fake_disk import FakeDisk


@pytest.mark.parametrize("count", [1, 299, 300, 301, 1000])
def test_units_are_read_from_memory_from_files_and_after_a_restart(count: int) -> None:
    disk = FakeDisk()
    queue = filled(count, disk)
    assert everything(queue) == wanted(0, count)
    queue.write_out()
    assert everything(queue) == wanted(0, count)
    again = reloaded(disk)
    assert everything(again) == wanted(0, count)
    assert (again.max_offset, again.max_physical_offset) == (count, count * 100)
    assert disk.listdir(DIRECTORY) == NAMES[: -(-count // PER_FILE)]


def test_units_can_be_written_at_any_time() -> None:
    queue = a_queue()
    for start in range(0, 2000, 37):
        fill(queue, start, start + 37)
        if start % 5 == 0:
            queue.write_out()
        assert everything(queue) == wanted(0, start + 37)


def test_a_read_ends_at_the_end_of_a_file() -> None:
    queue = filled(700)
    queue.write_out()
    assert len(queue.units(290, 64)) == 10 * 20
    assert len(queue.units(300, 1000)) == 300 * 20
    assert len(queue.units(690, 64)) == 10 * 20
    assert queue.next_file_offset(290) == 300
    assert queue.next_file_offset(300) == 600


def test_a_read_joins_units_of_a_file_and_of_memory() -> None:
    disk = FakeDisk()
    filled(40, disk).write_out()
    queue = reloaded(disk)
    fill(queue, 40, 50)
    assert [unit[0] for unit in UNIT.iter_unpack(queue.units(35, 64))] == [
        number * 100 for number in range(35, 50)
    ]


def test_all_buffered_units_of_a_file_are_written_at_once() -> None:
    disk = FakeDisk()
    queue = filled(250, disk)
    assert queue.written_offset < queue.max_offset
    assert disk.listdir(DIRECTORY) == []
    queue.write_out()
    assert queue.written_offset == queue.max_offset
    assert len(disk.read_bytes(f"{DIRECTORY}/{NAMES[0]}")) == 6000


def test_memory_keeps_only_the_newest_units() -> None:
    queue = filled(5000)
    queue.write_out()
    assert len(queue.tail) <= 512 * 20
    assert everything(queue) == wanted(0, 5000)


def test_a_dispatched_message_gets_no_second_unit() -> None:
    queue = filled(10)
    for number in range(10):
        assert not queue.append(number, number * 100, 100, 0)
    assert everything(queue) == wanted(0, 10)


def test_a_queue_that_starts_above_0_gets_fillers_up_to_its_first_message() -> None:
    disk = FakeDisk()
    queue = a_queue(disk)
    queue.append(310, 31_000, 100, 5)
    assert (queue.min_offset, queue.max_offset) == (310, 311)
    queue.write_out()
    data = disk.read_bytes(f"{DIRECTORY}/{NAMES[1]}")
    assert disk.listdir(DIRECTORY) == [NAMES[1]]
    assert list(UNIT.iter_unpack(data[:220])) == [(0, FILLER_BYTES, 0)] * 10 + [(31_000, 100, 5)]
    again = reloaded(disk)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset, again.max_physical_offset) == (310, 311, 31_100)


def test_a_queue_that_starts_at_a_file_boundary_needs_no_filler() -> None:
    queue = a_queue()
    queue.append(600, 60_000, 100, 5)
    queue.write_out()
    assert queue.min_offset == 600
    assert queue.unit(600) == (60_000, 100, 5)
    assert queue.units(10, 5) == b""


def test_a_unit_after_a_gap_is_appended_at_the_end_and_counted() -> None:
    queue = filled(5)
    assert queue.append(9, 900, 100, 0)
    assert queue.misplaced_count == 1
    assert queue.unit(5) == (900, 100, 0)
    assert queue.append(0, 1000, 100, 0)
    assert queue.unit(6) == (1000, 100, 0)
    assert not queue.append(3, 2000, 100, 0)


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("end", [0, 1, 299, 300, 301, 599, 650, 700])
def test_units_beyond_the_log_end_are_truncated(end: int, written: bool) -> None:
    disk = FakeDisk()
    queue = filled(700, disk)
    if written:
        queue.write_out()
    queue.truncate_behind(end * 100)
    assert queue.max_offset == end
    assert everything(queue) == wanted(0, end)
    assert queue.max_physical_offset == (end * 100 if end else -1)
    fill(queue, end, 800)
    queue.write_out()
    assert everything(queue) == wanted(0, 800)
    assert everything(reloaded(disk)) == wanted(0, 800)


def test_truncated_units_do_not_reappear_after_a_crash() -> None:
    disk = FakeDisk()
    queue = filled(200, disk)
    queue.write_out()
    queue.truncate_behind(50 * 100)
    fill(queue, 50, 60)
    queue.write_out()
    assert reloaded(disk.killed()).max_offset == 60


def overwrite(disk: FakeDisk, number: int, unit: tuple[int, int, int], name: str) -> None:
    disk.open(f"{DIRECTORY}/{name}").pwrite(UNIT.pack(*unit), number * 20)


def test_a_crash_hole_after_the_scan_start_ends_the_queue() -> None:
    disk = FakeDisk()
    filled(200, disk).write_out()
    overwrite(disk, 100, (0, 0, 0), NAMES[0])
    queue = reloaded(disk)
    assert (queue.max_offset, queue.verified_from) == (200, 200)
    queue.truncate_behind(10_000)
    assert (queue.max_offset, queue.verified_from) == (100, 100)
    assert not any(disk.read_bytes(f"{DIRECTORY}/{NAMES[0]}")[100 * 20 :])


def test_a_hole_in_the_middle_is_kept_and_can_be_repaired() -> None:
    disk = FakeDisk()
    filled(200, disk).write_out()
    overwrite(disk, 100, (0, 0, 0), NAMES[0])
    queue = reloaded(disk)
    queue.truncate_behind(20_000)
    assert (queue.max_offset, queue.unit(100)) == (200, (0, 0, 0))
    queue.repair(100, 10_000, 100, 700)
    assert everything(queue) == wanted(0, 200)
    assert everything(reloaded(disk)) == wanted(0, 200)


@pytest.mark.parametrize("end", [1, 40, 150, 299, 300, 420, 599])
@pytest.mark.trial(short=10, long=400)
def test_a_flipped_bit_does_not_move_the_truncation_point(end: int, seed: int) -> None:
    """But for the unit beside the cut, of which nothing else in the queue can tell."""
    random = Random(seed)
    disk = FakeDisk()
    filled(600, disk).write_out()
    number = random.choice([each for each in range(600) if each not in (end - 1, end)])
    position = number % PER_FILE * 20 + random.randrange(12)
    disk.flip_bit(f"{DIRECTORY}/{NAMES[number // PER_FILE]}", position, random.randrange(8))
    queue = reloaded(disk)
    assert queue.max_offset == 600
    queue.truncate_behind(end * 100)
    assert queue.max_offset == end
    assert queue.max_physical_offset <= end * 100
    queue = reloaded(disk)
    queue.correct_min_offset((end - 1) * 100)
    if end > 1 and number != end - 2:
        assert queue.min_offset == end - 1


@pytest.mark.trial(short=10, long=400)
def test_a_bit_set_after_the_end_is_not_taken_for_a_unit(seed: int) -> None:
    random = Random(seed)
    disk = FakeDisk()
    filled(350, disk).write_out()
    position = random.randrange(50 * 20, PER_FILE * 20)
    if position // 20 == 50:
        position += 20  # beside the last unit it cannot be told from a second one
    disk.flip_bit(f"{DIRECTORY}/{NAMES[1]}", position, random.randrange(8))
    queue = reloaded(disk)
    assert (queue.max_offset, queue.misfit) == (350, "")
    queue.mend()
    assert not any(disk.read_bytes(f"{DIRECTORY}/{NAMES[1]}")[50 * 20 :])


@pytest.mark.parametrize("damage", ["hole", "bit", "all of it", "first half", "second half"])
def test_a_partial_unit_is_repaired_when_its_message_is_dispatched_again(
    damage: str,
) -> None:
    disk = FakeDisk()
    queue = filled(210, disk)
    queue.write_out()  # unit 204 lies across byte 4096
    path = f"{DIRECTORY}/{NAMES[0]}"
    if damage == "bit":
        disk.flip_bit(path, 204 * 20 + 6, 3)
    else:
        start, end = {
            "hole": (204 * 20, 205 * 20),
            "all of it": (204 * 20, 205 * 20),
            "first half": (204 * 20, 4096),
            "second half": (4096, 205 * 20),
        }[damage]
        disk.open(path).pwrite(bytes(end - start), start)
    queue = reloaded(disk)
    queue.tail_first = queue.max_offset
    assert not queue.append(204, 20_400, 100, 204 * 7)
    assert everything(reloaded(disk)) == wanted(0, 210)


def test_a_torn_unit_at_the_end_is_repaired_when_dispatched_again() -> None:
    disk = FakeDisk()
    filled(205, disk).write_out()  # unit 204 lies across byte 4096
    path = f"{DIRECTORY}/{NAMES[0]}"
    disk.open(path).pwrite(bytes(6000 - 4096), 4096)
    queue = reloaded(disk)
    queue.truncate_behind(20_400)
    fill(queue, 204, 210)
    assert everything(queue) == wanted(0, 210)


def test_a_gap_in_the_log_gets_units_that_point_at_it() -> None:
    disk = FakeDisk()
    queue = filled(10, disk)
    queue.fill_gap(13, 1000, 300)
    fill(queue, 13, 20)
    queue.write_out()
    units = wanted(0, 10) + [(1000, 300, 0)] * 3 + wanted(13, 20)
    assert everything(reloaded(disk)) == units
    queue.fill_gap(13, 1000, 300)
    assert queue.max_offset == 20


def test_units_for_a_gap_at_the_end_are_written_with_the_others() -> None:
    unwritten: list[StoredUnits] = []
    queue = ConsumeQueue("T", 0, DIRECTORY, QueueFiles(FakeDisk(), 6000), unwritten)
    queue.fill_gap(2, 0, 1 << 40)
    assert unwritten == [queue] and queue.dirty
    assert everything(queue) == [(0, FILLER_BYTES - 1, 0)] * 2


def test_a_repaired_unit_is_synced_again() -> None:
    unwritten: list[StoredUnits] = []
    queue = ConsumeQueue("T", 0, DIRECTORY, QueueFiles(FakeDisk(), 6000), unwritten)
    fill(queue, 0, 700)
    queue.write_out()
    queue.mark_synced(700)
    assert f"{DIRECTORY}/{NAMES[0]}" not in queue.unsynced_paths()
    queue.repair(5, 1, 2, 3)
    assert (queue.unit(5), queue.max_physical_offset) == ((1, 2, 3), 70_000)
    assert f"{DIRECTORY}/{NAMES[0]}" in queue.unsynced_paths() and unwritten == [queue]
    queue.repair(699, 70_000, 50, 1)
    assert (queue.unit(699), queue.max_physical_offset) == ((70_000, 50, 1), 70_050)
    queue.repair(700, 1, 1, 1)
    assert queue.max_offset == 700


def test_a_full_disk_leaves_the_units_in_memory() -> None:
    disk = FakeDisk()
    queue = filled(10, disk)
    disk.fail_next("pwrite", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull, match="consume queue"):
        queue.write_out()
    assert everything(queue) == wanted(0, 10)
    queue.write_out()
    assert everything(reloaded(disk)) == wanted(0, 10)


def test_the_min_offset_of_a_queue_follows_the_log() -> None:
    queue = filled(700)
    queue.write_out()
    queue.correct_min_offset(450 * 100 + 1)
    assert queue.min_offset == 451
    queue.correct_min_offset(10**9)
    assert queue.min_offset == 451


def test_files_of_deleted_records_are_released_except_the_last() -> None:
    disk = FakeDisk()
    queue = filled(700, disk)
    queue.write_out()
    paths = [f"{DIRECTORY}/{name}" for name in NAMES]
    assert queue.trim_before(299 * 100) == []
    assert queue.trim_before(450 * 100) == paths[:1]
    assert queue.min_offset == 450
    assert queue.trim_before(10**9) == paths[1:2]
    for path in paths[:2]:
        disk.unlink(path)
    again = reloaded(disk)
    assert (again.min_offset, again.max_offset) == (600, 700)
