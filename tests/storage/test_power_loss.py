"""Power cuts at any moment, on a disk that keeps or drops every unsynced page: seed by seed.

A run appends, dispatches, flushes and rolls at random, loses power, and starts again, three times.
To repeat one: `replay(SEED)`.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.errors import StoreError
from storage.log.commit_log import PutRecord, prepare_file
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT
from tests.support.clock import ManualClock
from tests.support.puts import HOST, batch, put
from troupemq.testing.fake_disk import FakeDisk

POWER_CUTS = 3
STEPS_MAX = 40
CONFIG = StoreConfig(
    root="/store",
    commit_log_file_bytes=16_384,
    consume_queue_file_bytes=600,
    max_hash_slots=16,
    max_index_entries=60,
)


@dataclass
class Run:
    """One store, and what it must still have after a power cut."""

    random: Random
    disk: FakeDisk
    clock: ManualClock = field(default_factory=ManualClock)
    records: dict[int, bytes] = field(default_factory=dict)
    flushed_offset: int = 0
    count: int = 0

    def open(self) -> None:
        self.store = MessageStore(CONFIG, self.disk, self.clock)
        self.store.open()
        self.log = self.store.commit_log
        self.log.store_host = HOST
        self.next_offsets = self.store.consume_queues.next_offsets()

    def step(self) -> None:
        action = self.random.choices(
            [self.append, self.sync_log, self.sync_queues, self.pass_time], [10, 3, 1, 3]
        )[0]
        action()

    def append(self) -> None:
        """A chunk of single messages and batches, dispatched like a broker's."""
        self.clock.advance(1)
        next_offsets = dict(self.next_offsets)
        sent = [self._messages(next_offsets) for _ in range(self.random.randint(1, 12))]
        groups = [batch(*each) if len(each) > 1 else each[0] for each in sent]
        placed = self.log.append(groups, self.clock.now_ms())
        done = [record for each in sent[: len(placed)] for record in each]
        if placed:
            heads = list(self.log.walk(placed[0][0]))
            for head, record in zip(heads, done, strict=True):
                offset = head.physical_offset
                self.records[offset] = bytes(self.log.view(offset, head.record_bytes))
                queue = record.topic.decode(), record.queue_id
                self.next_offsets[queue] = record.queue_offset + 1
            self.store.dispatcher.dispatch([entry_of(head, ()) for head in heads])
        wanted = self.log.next_file_offset_to_prepare()
        if wanted is not None and self.random.random() < 0.8:
            self.log.adopt(prepare_file(wanted, CONFIG, self.disk))
        if self.random.random() < 0.3:
            self.store.consume_queues.write_out_all()

    def _messages(self, next_offsets: dict[tuple[str, int], int]) -> list[PutRecord]:
        """Return one message of a queue, or a batch."""
        queue = "Topic" + self.random.choice("AB"), self.random.randrange(2)
        count = self.random.choice((1, 1, 1, 3))
        return [self._message(queue, next_offsets) for _ in range(count)]

    def _message(
        self, queue: tuple[str, int], next_offsets: dict[tuple[str, int], int]
    ) -> PutRecord:
        queue_offset = next_offsets.get(queue, 0)
        next_offsets[queue] = queue_offset + 1
        self.count += 1
        return put(
            self.random.randbytes(self.random.choice((0, 10, 200, 3000))),
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=queue_offset,
            properties=b"UNIQ_KEY\x01key%d" % self.count,
        )

    def sync_log(self) -> None:
        self.flushed_offset = self.log.sync(self.log.end_offset)

    def sync_queues(self) -> None:
        """Flush everything, then save the checkpoint, as the flushing actors do."""
        self.store.flush()
        self.flushed_offset = self.log.flushed_offset

    def pass_time(self) -> None:
        """Often enough that the checkpoint's margin of 3 s matters; sometimes the clock is set."""
        self.clock.advance(self.random.choice((5, 2000, 10_000)))
        if self.random.random() < 0.1:
            self.clock.set_wall(self.clock.now_ms() - 30_000)

    def power_cut(self) -> None:
        """Starts again with what is left, and looks at it."""
        self.disk = self.disk.crashed(self.random.randrange(1 << 30))
        self.open()
        self.check()
        self.records = {o: record for o, record in self.records.items() if o < self.log.end_offset}
        self.flushed_offset = self.log.end_offset

    def check(self) -> None:
        """Nothing flushed is lost, nothing has a gap, and what is derived agrees with the log."""
        log = self.log
        assert log.end_offset >= self.flushed_offset, "a flushed record is gone"
        heads = list(log.walk(0))
        expected = [offset for offset in sorted(self.records) if offset < log.end_offset]
        assert [head.physical_offset for head in heads] == expected, "there is a gap"
        for head in heads:
            found = log.view(head.physical_offset, head.record_bytes)
            assert found == self.records[head.physical_offset], "a record has changed"
        for file in log.queue.files:
            assert file.is_zero_from(max(0, log.end_offset - file.first_offset)) or (
                file.end_offset <= log.end_offset
            ), "the rest of the log is not zero"
        self._check_queues()
        assert not self.store.damage.ranges, "a power cut was taken for damage"
        index = self.store.index
        assert index is not None
        self.store.catch_up()
        index.write_out()
        for head in heads[:: self.random.choice((3, 4, 5))]:
            key = head.properties.partition(b"\x01")[2].decode()
            hits = index.query(head.topic.decode(), key, 64, 0, 1 << 62).physical_offsets
            assert head.physical_offset in hits, "the index has lost a record"

    def _check_queues(self) -> None:
        units: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for head in self.log.walk(0):
            queue_units = units.setdefault((head.topic.decode(), head.queue_id), [])
            assert head.queue_offset == len(queue_units)
            queue_units.append((head.physical_offset, head.record_bytes))
        for queue in self.store.consume_queues:
            found: list[tuple[int, int]] = []
            while len(found) < queue.max_offset:
                part = queue.units(len(found), queue.max_offset)
                found += [unit[:2] for unit in UNIT.iter_unpack(part)]
            assert found == units.pop((queue.topic, queue.queue_id), []), "a queue is wrong"
        assert not units, "a queue is missing"


def replay(seed: int, *, without_sync: bool = False) -> Run:
    """Runs one seed; AssertionError says what was lost."""
    random = Random(seed)
    run = Run(random, FakeDisk(without_sync=without_sync))
    run.open()
    for _ in range(POWER_CUTS):
        run.disk.without_sync = without_sync
        for _ in range(random.randint(1, STEPS_MAX)):
            run.step()
        run.power_cut()
    return run


@pytest.mark.trial(short=10, long=1000)
def test_flushed_messages_survive_every_power_cut_without_a_gap(seed: int) -> None:
    replay(seed)


def test_without_fdatasync_a_power_cut_loses_flushed_messages() -> None:
    losses = 0
    for seed in range(10):
        try:
            replay(seed, without_sync=True)
        except (AssertionError, StoreError):
            losses += 1
    assert losses > 5


@pytest.mark.heavy
def test_a_clean_stop_loses_nothing() -> None:
    for seed in range(10):
        run = Run(Random(seed), FakeDisk())
        run.open()
        for _ in range(STEPS_MAX):
            run.step()
        end_offset = run.log.end_offset
        run.store.close()
        run.flushed_offset = end_offset
        run.power_cut()
        assert run.log.end_offset == end_offset
