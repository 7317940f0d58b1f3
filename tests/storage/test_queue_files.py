"""Few queue files open at a time; units that are there and units that are not."""

import errno

import pytest

from storage.errors import StoreError
from storage.queue_files import QueueFiles, valid_units
from tests.support.fake_disk import FakeDisk

UNIT = (7).to_bytes(8) + (100).to_bytes(4) + bytes(8)
NAME = "00000000000000000000"


def opened(count: int) -> QueueFiles:
    """Files of this many queues, at most three of them open."""
    files = QueueFiles(FakeDisk(), 400, open_max=3)
    for number in range(count):
        files.create(f"/cq/{number}", f"/cq/{number}/{NAME}", durable_names=False)
        files.write(f"/cq/{number}/{NAME}", bytes([number]), 0)
    return files


def test_only_the_files_used_last_stay_open() -> None:
    files = opened(10)
    assert files.open_count == 3
    assert [files.read(f"/cq/{n}/{NAME}", 1, 0) for n in range(10)] == [
        bytes([n]) for n in range(10)
    ]
    assert files.open_count == 3
    files.close()
    assert files.open_count == 0


def test_a_view_outlives_the_closing_of_its_file() -> None:
    files = opened(1)
    view = files.view(f"/cq/0/{NAME}")
    files.close()
    files.write(f"/cq/0/{NAME}", b"later", 10)
    assert bytes(view[10:15]) == b"later"


def test_a_file_of_another_size_is_refused_or_grown() -> None:
    files = opened(1)
    other = QueueFiles(files.disk, 800)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue is 800"):
        other.check_size(f"/cq/0/{NAME}", may_grow=False)
    other.check_size(f"/cq/0/{NAME}", may_grow=True)
    assert len(other.view(f"/cq/0/{NAME}")) == 800
    with pytest.raises(StoreError):
        files.check_size(f"/cq/0/{NAME}", may_grow=True)


def test_a_file_that_cannot_be_made_leaves_nothing() -> None:
    disk = FakeDisk()
    files = QueueFiles(disk, 400)
    disk.fail_next("set_size", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError):
        files.create("/cq/0", f"/cq/0/{NAME}", durable_names=False)
    assert disk.listdir("/cq/0") == []
    assert files.open_count == 0


@pytest.mark.parametrize("count", [0, 1, 2, 819, 3276])
def test_units_count_up_to_the_first_that_is_none(count: int) -> None:
    zero = bytes(20)
    negative_offset = b"\x80" + UNIT[1:]
    negative_size = UNIT[:8] + b"\xff" + UNIT[9:]
    assert valid_units(UNIT * count) == count
    for bad in (zero, negative_offset, negative_size, UNIT[:8] + zero[8:]):
        assert valid_units(UNIT * count + bad + UNIT * 3) == count


def test_units_are_counted_over_the_whole_file() -> None:
    files = QueueFiles(FakeDisk(), 200_000)
    path = f"/cq/0/{NAME}"
    files.create("/cq/0", path, durable_names=False)
    assert files.count_units(path) == 0
    files.write(path, UNIT * 7000, 0)
    assert files.count_units(path) == 7000
    files.write(path, UNIT * 10_000, 0)
    assert files.count_units(path) == 10_000
