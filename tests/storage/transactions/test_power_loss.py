"""Power cuts while transactions come and go: the table and the log always agree afterwards.

A run appends, dispatches and syncs log and table at random, loses power, and starts again, three
times. To repeat one: `replay(SEED)`.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from storage.config import StoreConfig
from storage.log.commit_log import blank
from storage.queues.dispatch_entry import DispatchEntry
from storage.queues.unsynced import sync_files
from storage.transactions.redo_log import NO_REDO_LOG
from storage.transactions.table import TransactionTable, UnsyncedTable
from tests.support.transactions import REDO_LOG, TransactionLog
from troupemq.testing.fake_disk import FakeDisk

POWER_CUTS = 3
STEPS_MAX = 60
CONFIG = StoreConfig(root="/store", commit_log_file_bytes=8192, consume_queue_file_bytes=40 * 20)
"""Table files of 40 units, 960 bytes; a page of the disk holds four of them."""


@dataclass
class Run:
    """One log and its table, and what must be pending."""

    random: Random
    disk: FakeDisk
    ahead: bool = False
    """Lets the table run ahead of what is on disk of the log."""
    log: TransactionLog = field(init=False)
    table: TransactionTable = field(init=False)
    records: dict[int, bytes] = field(default_factory=dict)
    open_halves: dict[int, DispatchEntry] = field(default_factory=dict)
    taken: UnsyncedTable | None = None
    key_count: int = 0

    def open(self, end_offset: int) -> str:
        """A start: what is behind the log's end goes, then the table follows."""
        self.log = TransactionLog(self.disk, CONFIG, end_offset)
        log = self.log.log
        self.table = TransactionTable(
            CONFIG,
            self.disk,
            log.view,
            lambda: log.end_offset if self.ahead else log.flushed_offset,
        )
        reason = self.table.load(0, end_offset)
        covered = self.table.covered_offset
        entries = self.log.entries()
        self.table.dispatch([entry for entry in entries if entry.physical_offset >= covered])
        self.open_halves.clear()
        for entry in entries:
            self.log.next_offsets[entry.topic.decode()] = entry.queue_offset + 1
            self._note(entry)
        self.taken = None
        return reason

    def _note(self, entry: DispatchEntry) -> None:
        """Update the pending half messages by a simple model."""
        view = self.log.log.view(entry.physical_offset, entry.record_bytes)
        self.records[entry.physical_offset] = bytes(view)
        if entry.topic == b"RMQ_SYS_TRANS_HALF_TOPIC":
            if b"TRANSACTION_CHECK_TIMES" in self.records[entry.physical_offset]:
                same = [o for o, half in self.open_halves.items() if half.keys == entry.keys]
                del self.open_halves[same[0]]
            self.open_halves[entry.queue_offset] = entry
        elif entry.topic == b"RMQ_SYS_TRANS_OP_HALF_TOPIC":
            record = self.log.log.read_record(entry.physical_offset)
            assert record is not None
            self.open_halves.pop(int(record.body), None)

    def step(self) -> None:
        actions = [self.half, self.end, self.check_back, self.sync_log, self.write_out]
        actions += [self.take, self.sync_taken, self.sync]
        self.random.choices(actions, [10, 10, 2, 3, 3, 1, 1, 1])[0]()

    def _dispatch(self, entry: DispatchEntry) -> None:
        self._note(entry)
        self.table.dispatch([entry])

    def half(self) -> None:
        self.key_count += 1
        self._dispatch(self.log.half(f"key{self.key_count}"))

    def end(self) -> None:
        if self.open_halves:
            half = self.random.choice(list(self.open_halves.values()))
            if self.random.random() < 0.5:
                self._dispatch(self.log.commit(half))
            if self.random.random() < 0.8:
                self._dispatch(self.log.op(half))

    def check_back(self) -> None:
        if self.open_halves:
            half = self.random.choice(list(self.open_halves.values()))
            self._dispatch(self.log.checked(half.keys[0].decode()))

    def sync_log(self) -> None:
        self.log.log.sync(self.log.log.end_offset)

    def write_out(self) -> None:
        self.table.write_out()

    def take(self) -> None:
        self.taken = self.taken or self.table.unsynced()

    def sync_taken(self) -> None:
        """Sync the taken files, as the flushing thread does some time after its message."""
        if self.taken is not None:
            sync_files(self.disk, self.taken.files)
            self.table.save(self.taken)
            self.table.mark_synced(self.taken)
            self.taken = None

    def sync(self) -> None:
        if self.taken is None:
            self.table.sync()

    def power_cut(self) -> None:
        """Starts again with what is left, and looks at it."""
        flushed = self.log.log.flushed_offset
        was_saved = self.disk.exists(REDO_LOG)
        self.disk = self.disk.crashed(self.random.randrange(1 << 30))
        end = self._surviving(flushed)
        self.records = {offset: data for offset, data in self.records.items() if offset < end}
        doubt = self.open(end)
        assert doubt == "" or (doubt, was_saved) == (NO_REDO_LOG, False)
        found = [(each.queue_offset, each.physical_offset) for each in self.table.pending(1000)]
        assert found == [
            (half.queue_offset, half.physical_offset) for half in self.open_halves.values()
        ]
        assert self.table.verify(self.log.entries()) == []

    def _surviving(self, flushed: int) -> int:
        """The end of the log: behind the last record before which none is lost."""
        end = 0
        for offset, data in sorted(self.records.items()):
            is_lost = not self._holds(offset, data)
            if offset > end:
                is_lost = is_lost or not self._holds(end, blank(offset - end))
            if offset >= flushed and is_lost:
                break
            end = offset + len(data)
        return end

    def _holds(self, offset: int, data: bytes) -> bool:
        number, position = divmod(offset, CONFIG.commit_log_file_bytes)
        path = f"{CONFIG.commit_log_dir}/{number * CONFIG.commit_log_file_bytes:020d}"
        if not self.disk.exists(path):
            return False
        return self.disk.read_bytes(path)[position : position + len(data)] == data


def replay(seed: int, *, ahead: bool = False) -> Run:
    """Runs one seed; AssertionError says what was wrong."""
    random = Random(seed)
    run = Run(random, FakeDisk(), ahead)
    run.open(0)
    for _ in range(POWER_CUTS):
        for _ in range(random.randint(1, STEPS_MAX)):
            run.step()
        run.power_cut()
    return run


@pytest.mark.trial(short=20, long=1000)
def test_the_table_agrees_with_the_log_after_every_power_cut(seed: int) -> None:
    replay(seed)


@pytest.mark.heavy
def test_a_transaction_table_ahead_of_the_log_is_detected() -> None:
    """Keeping changes back until the log is on disk is needed."""
    failures = 0
    for seed in range(30):
        try:
            replay(seed, ahead=True)
        except AssertionError:
            failures += 1
    assert failures > 5
