"""Helper for tests of one queue: a queue of small files, filled by number."""

from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.queue_files import QueueFiles
from troupemq.testing.fake_disk import FakeDisk

PER_FILE = 300
DIRECTORY = "/cq/T/0"
NAMES = [f"{number * 6000:020d}" for number in range(4)]


def a_queue(disk: FakeDisk | None = None) -> ConsumeQueue:
    return ConsumeQueue("T", 0, DIRECTORY, QueueFiles(disk or FakeDisk(), PER_FILE * 20))


def fill(queue: ConsumeQueue, start: int, end: int) -> None:
    """Message n lies at 100·n of the log."""
    for number in range(start, end):
        assert queue.append(number, number * 100, 100, number * 7)


def filled(count: int, disk: FakeDisk | None = None) -> ConsumeQueue:
    queue = a_queue(disk)
    fill(queue, 0, count)
    return queue


def reloaded(disk: FakeDisk) -> ConsumeQueue:
    queue = a_queue(disk)
    queue.load()
    return queue


def everything(queue: ConsumeQueue, first: int = 0) -> list[tuple[int, ...]]:
    """All units from `first` on, read as pulls do."""
    units: list[tuple[int, ...]] = []
    while first + len(units) < queue.max_offset:
        units += UNIT.iter_unpack(queue.units(first + len(units), 64))
    return units


def wanted(start: int, end: int) -> list[tuple[int, ...]]:
    return [(number * 100, 100, number * 7) for number in range(start, end)]
