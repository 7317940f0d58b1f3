"""Restarted queues of a slave, and queues that only look restarted."""

from dataclasses import replace
from random import Random

import pytest

from storage.errors import StoreError
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import DispatchEntry
from storage.replica.queue_generations import QueueGenerations
from storage.retention.trimming import removed_dir
from tests.storage.derived import RECORD_BYTES, config, entry
from tests.support.clock import ManualClock
from troupemq.testing.fake_disk import FakeDisk


class Slave:
    """The queues of a slave, fed with records of 100 bytes."""

    def __init__(self, *, is_extended: bool = False) -> None:
        self.disk = FakeDisk()
        settings = replace(config(), enable_consume_queue_ext=is_extended)
        self.store = MessageStore(settings, self.disk, ManualClock())
        self.store.open()
        self.generations = QueueGenerations(self.store)

    def feed(self, *entries: DispatchEntry) -> None:
        self.generations.append(entries)

    def places(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        """The record that each unit points at, as its number in the log."""
        queue = self.store.consume_queues.get(topic, queue_id)
        assert queue is not None
        units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
        return [unit[0] // RECORD_BYTES for unit in units if unit is not None]


def numbered(first: int, *numbers: int, queue_id: int = 0) -> list[DispatchEntry]:
    """Records from number `first` of the log on, with these places in their queue."""
    return [entry(first + n, queue_offset=o, queue_id=queue_id) for n, o in enumerate(numbers)]


@pytest.mark.parametrize("is_extended", (False, True))
def test_a_new_record_at_offset_0_restarts_the_queue(is_extended: bool) -> None:
    slave = Slave(is_extended=is_extended)
    slave.feed(*numbered(0, 0, 1, 2, 3, 4), *numbered(5, 0, 1, queue_id=1))
    slave.feed(*numbered(10, 0, 1, 2))
    assert slave.places() == [10, 11, 12]
    assert slave.places(queue_id=1) == [5, 6], "another queue is left alone"
    removed, begun = slave.generations.take_removed()
    assert removed.queues == [("T", 0, 5)]
    assert begun == {"T": 10 * RECORD_BYTES}
    assert not slave.generations.removed.queues, "told once"


@pytest.mark.parametrize("is_extended", (False, True))
def test_two_generations_can_arrive_in_one_batch(is_extended: bool) -> None:
    slave = Slave(is_extended=is_extended)
    slave.feed(*numbered(0, 0, 1, 2, 0, 1, 2, 3), *numbered(7, 0))
    assert slave.places() == [7]


def test_files_of_the_old_generation_are_deleted() -> None:
    slave = Slave()
    slave.feed(*numbered(0, 0, 1, 2))
    slave.store.consume_queues.write_out_all()
    slave.feed(*numbered(3, 0))
    assert len(slave.disk.listdir(removed_dir(slave.store.config))) == 1
    slave.store.consume_queues.write_out_all()
    queue = slave.store.consume_queues.get("T", 0)
    assert queue is not None
    queue.load()
    assert slave.places() == [3]


@pytest.mark.parametrize("repeated", range(1, 6))
def test_repeated_records_discard_nothing(repeated: int) -> None:
    """A failed dispatch is repeated; so is what a start reads that the queues have already."""
    slave = Slave()
    records = [*numbered(0, 0, 1, 2), *numbered(3, 0, 1)]
    slave.feed(*records)
    slave.feed(*records[-repeated:])
    assert slave.places() == [3, 4]
    slave.feed(*numbered(5, 2))
    assert slave.places() == [3, 4, 5]


def test_a_repeated_record_beside_a_restarted_queue_discards_nothing() -> None:
    slave = Slave()
    slave.feed(*numbered(0, 0, 1, 2), *numbered(3, 0, 1, queue_id=1))
    slave.feed(*numbered(0, 0), *numbered(5, 0, queue_id=1))
    assert slave.places() == [0, 1, 2]
    assert slave.places(queue_id=1) == [5]


def test_prepared_messages_have_no_queue_offset() -> None:
    slave = Slave()
    slave.feed(*numbered(0, 0, 1))
    slave.feed(entry(2, queue_offset=0, sys_flag=0x4), *numbered(3, 2))
    assert slave.places() == [0, 1, 3]


def test_a_lower_queue_offset_alone_does_not_restart_a_queue() -> None:
    slave = Slave()
    slave.feed(*numbered(0, 0, 1, 2, 3))
    slave.feed(*numbered(4, 2))
    slave.feed(*numbered(5, 1))
    assert slave.places() == [0, 1, 2, 3]
    assert not slave.generations.removed.queues


def test_a_failing_disk_keeps_the_old_queue_and_the_restart_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slave = Slave()
    slave.feed(*numbered(0, 0, 1, 2))

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(slave.store.consume_queues, "take_out", refuse)
        with pytest.raises(StoreError):
            slave.feed(*numbered(3, 0, 1))
    assert slave.places() == [0, 1, 2]
    slave.feed(*numbered(3, 0, 1))
    assert slave.places() == [3, 4]


@pytest.mark.trial(short=40, long=3000)
def test_a_batch_of_records_equals_single_records(seed: int) -> None:
    """Generations, gaps, repetitions and records without a unit, in whatever order."""
    random = Random(seed)
    is_extended = random.random() < 0.3
    records: list[DispatchEntry] = []
    ends = dict.fromkeys(range(3), 0)
    for number in range(random.randint(1, 120)):
        queue_id = random.randrange(3)
        if random.random() < 0.1:
            ends[queue_id] = random.choice((0, 0, 1, ends[queue_id] + 3))
        sys_flag = random.choice((0, 0, 0, 0, 4, 8, 12))
        offset = ends[queue_id]
        records.append(entry(number, queue_offset=offset, queue_id=queue_id, sys_flag=sys_flag))
        ends[queue_id] += not sys_flag & 4
    once, again = Slave(is_extended=is_extended), Slave(is_extended=is_extended)
    position = 0
    while position < len(records):
        start = max(0, position - random.choice((0, 0, 0, 1, 7)))  # some come again
        position += random.randint(1, 40)
        once.feed(*records[start:position])
        for record in records[start:position]:
            again.feed(record)
        assert once.store.consume_queues.known() == again.store.consume_queues.known()
    for queue in once.store.consume_queues:
        assert once.places("T", queue.queue_id) == again.places("T", queue.queue_id)
    assert once.generations.take_removed() == again.generations.take_removed()
