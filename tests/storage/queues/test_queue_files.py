"""Few queue files open at a time."""

import errno

import pytest

from storage.queues.queue_files import QueueFiles
from troupemq.testing.fake_disk import FakeDisk

NAME = "00000000000000000000"


def opened(count: int) -> QueueFiles:
    """Files of this many queues, at most three of them open."""
    files = QueueFiles(FakeDisk(), 400, open_max=3)
    for number in range(count):
        files.create(f"/cq/{number}", f"/cq/{number}/{NAME}", durable_names=False)
        files.write(f"/cq/{number}/{NAME}", bytes([number]), 0)
    return files


def test_only_the_most_recently_used_files_stay_open() -> None:
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


@pytest.mark.parametrize("operation", ["open", "view"])
def test_without_a_free_descriptor_other_files_are_closed(operation: str) -> None:
    disk = FakeDisk()
    files = QueueFiles(disk, 400)
    for number in range(8):
        files.create(f"/cq/{number}", f"/cq/{number}/{NAME}", durable_names=False)
        files.write(f"/cq/{number}/{NAME}", bytes([number + 1]), 0)
    files.forget(f"/cq/0/{NAME}")
    used_up = OSError(errno.EMFILE, "Too many open files")
    disk.fail_next(operation, used_up, times=2)
    assert files.view(f"/cq/0/{NAME}")[0] == 1
    assert files.open_count == 2
    disk.fail_next(operation, used_up, times=3)
    with pytest.raises(OSError, match="Too many open files"):
        files.view(f"/cq/1/{NAME}")
    assert [files.view(f"/cq/{n}/{NAME}")[0] for n in range(8)] == [*range(1, 9)]


def test_a_file_that_cannot_be_created_leaves_no_trace() -> None:
    disk = FakeDisk()
    files = QueueFiles(disk, 400)
    disk.fail_next("set_size", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError):
        files.create("/cq/0", f"/cq/0/{NAME}", durable_names=False)
    assert disk.listdir("/cq/0") == []
    assert files.open_count == 0
