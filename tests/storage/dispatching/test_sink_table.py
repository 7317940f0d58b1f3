"""The table of sinks follows the log, whatever is left of its file; power cuts by seed."""

from dataclasses import dataclass, field, replace
from random import Random
from time import thread_time

import pytest

from protocol.sink import SINK_MARK, SinkMark
from storage.config import StoreConfig
from storage.dispatching.sink_table import (
    DAY_MS,
    NO_SINK_FILE,
    SAVE_BYTES,
    Lane,
    Progress,
    SinkTable,
)
from storage.errors import StoreError
from storage.log.commit_log import PutRecord
from storage.queues.dispatch_entry import DispatchEntry
from tests.support.puts import put
from tests.support.transactions import TransactionLog
from troupemq.testing.fake_disk import FakeDisk

CONFIG = StoreConfig(root="/store", commit_log_file_bytes=8192)
FILE = "/store/troupemq/sinks.json"


def record(
    mark: SinkMark, *, topic: str = "Topic", offset: int = SINK_MARK, more: bytes = b""
) -> PutRecord:
    """A message of a sink."""
    text = mark.properties(more, topic)
    return put(topic=topic, properties=text, prepared_offset=offset)


def marked(sequence: int, *, batch: int = 0, partition: int = 0, query: str = "q") -> SinkMark:
    return SinkMark(query, partition, batch, sequence, sequence.to_bytes(8, "big"))


def table_of(log: TransactionLog, config: StoreConfig = CONFIG) -> SinkTable:
    commit_log = log.log
    return SinkTable(config, log.disk, commit_log.view, lambda: commit_log.flushed_offset)


def saved(log: TransactionLog, table: SinkTable) -> None:
    log.log.sync(log.log.end_offset)
    table.sync()


@pytest.fixture
def log() -> TransactionLog:
    return TransactionLog(FakeDisk(), CONFIG)


@pytest.fixture
def table(log: TransactionLog) -> SinkTable:
    made = table_of(log)
    assert made.load(0, 0) == ""
    return made


def test_the_last_message_of_a_lane_sets_its_progress(
    log: TransactionLog, table: SinkTable
) -> None:
    for mark in (marked(0), marked(1), marked(0, partition=1), marked(0, batch=1)):
        table.dispatch([log.append(record(mark))])
    table.dispatch([log.append(record(marked(1), topic="Other")), log.plain()])
    assert table.find(Lane("q", 0, "Topic")) == Progress(1, 1, bytes(8), log.now_ms - 20)
    assert table.find(Lane("q", 1, "Topic")) == Progress(0, 1, bytes(8), log.now_ms - 30)
    assert table.find(Lane("q", 0, "Other")) == Progress(0, 2, b"\0" * 7 + b"\1", log.now_ms - 10)
    assert table.find(Lane("q", 2, "Topic")) is None
    assert table.covered_offset == log.log.end_offset


def test_copies_and_older_messages_do_not_change_progress(
    log: TransactionLog, table: SinkTable
) -> None:
    table.dispatch([log.append(record(marked(5, batch=2)))])
    known = table.find(Lane("q", 0, "Topic"))
    table.dispatch([log.append(record(marked(9, batch=9), offset=0))])
    table.dispatch([log.append(record(marked(4, batch=2))), log.append(record(marked(8)))])
    found = table.find(Lane("q", 0, "Topic"))
    assert found == known


def test_sink_messages_of_ipv6_clients_are_dispatched_without_another_read(
    log: TransactionLog,
) -> None:
    commit_log, read = log.log, []

    def view(offset: int, count: int) -> memoryview:
        read.append(offset)
        return commit_log.view(offset, count)

    table = SinkTable(CONFIG, log.disk, view, lambda: commit_log.flushed_offset)
    key = f"FD{'0' * 28}02{'000118B4AAC26F1A2B3C0000'}"  # address, process, class, time
    table.dispatch([log.append(put(properties=f"UNIQ_KEY\x01{key}".encode()))])
    assert not read
    last = log.append(record(marked(0)))
    table.dispatch([last])
    assert read == [last.physical_offset]


def test_a_delayed_sink_message_counts_for_its_real_topic(
    log: TransactionLog, table: SinkTable
) -> None:
    waiting = record(marked(0), topic="SCHEDULE_TOPIC_XXXX", more=b"REAL_TOPIC\x01Orders")
    table.dispatch([log.append(waiting)])
    assert [lane.topic for lane in table.lanes()] == ["Orders"]


def test_a_saved_table_shortens_the_read_at_a_start(log: TransactionLog, table: SinkTable) -> None:
    table.dispatch([log.append(record(marked(0))), log.plain()])
    saved(log, table)
    again = table_of(log)
    assert again.load(0, log.log.end_offset) == ""
    assert again.covered_offset == log.log.end_offset
    assert again.lanes() == table.lanes()
    assert list(again.lanes()) == list(table.lanes())


def test_records_not_yet_synced_are_not_saved(log: TransactionLog, table: SinkTable) -> None:
    table.dispatch([log.append(record(marked(0)))])
    assert table.unsynced(at_once=True) is None
    log.log.sync(log.log.end_offset)
    table.dispatch([log.append(record(marked(1)))])
    copy = table.unsynced()
    assert copy is not None, "a copy waits until the log is on disk as far as the copy reaches"
    assert [each.sequence for each in copy.lanes.values()] == [1]
    table.save(copy)
    table.mark_synced(copy)
    assert table.unsynced() is None
    log.log.sync(log.log.end_offset)
    assert table.unsynced() is None, "the log has not grown enough"
    assert table.unsynced(at_once=True) is not None


def test_the_table_is_saved_after_the_log_has_grown(log: TransactionLog, table: SinkTable) -> None:
    table.dispatch([log.plain()])
    saved(log, table)
    plain = log.plain()
    entry = replace(plain, physical_offset=plain.physical_offset + SAVE_BYTES)
    table.dispatch([entry])
    log.log.sync(log.log.end_offset)
    assert table.unsynced() is None
    far = SinkTable(CONFIG, log.disk, log.log.view, lambda: SAVE_BYTES * 2)
    assert far.load(0, log.log.end_offset) == ""
    far.dispatch([entry])
    assert far.unsynced() is not None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, NO_SINK_FILE),
        (b"", "it is damaged"),
        (b"{}\n00000000\n", "it is damaged"),
        (b"[1]\n3ab9ea12\n", "it is damaged"),
    ],
)
def test_an_invalid_sink_table_file_is_ignored(
    log: TransactionLog, table: SinkTable, data: bytes | None, reason: str
) -> None:
    table.dispatch([log.append(record(marked(0)))])
    saved(log, table)
    log.disk.unlink(FILE)
    if data is not None:
        file = log.disk.open(FILE, create=True)
        file.pwrite(data, 0)
    again = table_of(log)
    assert again.load(0, log.log.end_offset) == reason
    assert (again.covered_offset, again.lanes()) == (0, {})
    again.dispatch(log.entries())
    assert again.lanes() == table.lanes()


def test_a_sink_table_file_of_another_log_is_ignored(log: TransactionLog, table: SinkTable) -> None:
    table.dispatch([log.append(record(marked(0)))])
    saved(log, table)
    end = log.log.end_offset
    assert "reaches" in table_of(log).load(0, end - 1)
    other = TransactionLog(FakeDisk(), CONFIG)
    other.now_ms += 1
    other.append(record(marked(0)))
    stranger = SinkTable(CONFIG, log.disk, other.log.view, lambda: end)
    assert "another record" in stranger.load(0, end)


def test_lanes_are_dropped_by_age_and_by_count(log: TransactionLog) -> None:
    table = table_of(log, replace(CONFIG, sink_progress_days=2, sink_progress_max=3))
    table.load(0, 0)
    for partition in range(4):
        table.dispatch([log.append(record(marked(0, partition=partition)))])
    assert [lane.partition for lane in table.lanes()] == [1, 2, 3]
    assert table.evicted_count == 1
    table.dispatch([log.append(record(marked(1, partition=1)))])
    log.now_ms += 2 * DAY_MS - 10
    table.dispatch([log.plain()])
    assert table.find(Lane("q", 1, "Topic")) is not None
    assert table.find(Lane("q", 2, "Topic")) is None
    saved(log, table)
    assert [lane.partition for lane in table.lanes()] == [1]


def test_old_lanes_are_dropped_in_linear_time(log: TransactionLog, table: SinkTable) -> None:
    """20,000 took 113 ms, 100,000 three seconds."""
    table.dispatch([log.append(record(marked(0)))])
    old = Progress(0, 0, bytes(8), 1)
    table._lanes = {Lane(f"q{number}", 0, "Topic"): old for number in range(60_000)}
    began_s = thread_time()
    log.log.sync(log.log.end_offset)
    assert table.unsynced(at_once=True) is not None and not table._lanes
    assert thread_time() - began_s < 0.4


def test_an_account_with_too_many_lanes_loses_only_its_own(log: TransactionLog) -> None:
    """Others' queries would store again what they repeat."""
    table = table_of(log, replace(CONFIG, sink_progress_max=4))
    table.load(0, 0)

    def add(owner: str, partition: int) -> None:
        mark = marked(0, partition=partition)._replace(owner=owner)
        table.dispatch([log.append(record(mark))])

    add("aa", 0)
    for partition in range(20):
        add("bb", partition)
    assert [(lane.owner, lane.partition) for lane in table.lanes()] == [
        ("aa", 0),
        *(("bb", partition) for partition in (17, 18, 19)),
    ]
    saved(log, table)
    again = table_of(log, replace(CONFIG, sink_progress_max=4))
    assert again.load(0, log.log.end_offset) == ""
    add("cc", 0)
    assert Lane("q", 0, "Topic", "aa") not in table.lanes(), "of several the quietest"
    again.dispatch([log.append(record(marked(0)._replace(owner="bb")))])
    assert Lane("q", 0, "Topic", "aa") in again.lanes()


def test_sink_progress_settings_below_1_are_refused() -> None:
    for name in ("sink_progress_days", "sink_progress_max"):
        with pytest.raises(StoreError, match="must be 1 or more"):
            replace(CONFIG, **{name: 0})  # type: ignore[arg-type]


@dataclass
class Run:
    """A log with sinks, its table, and what the table must know, told the simple way."""

    random: Random
    disk: FakeDisk = field(default_factory=FakeDisk)
    ahead: bool = False
    """Lets the file run ahead of what is on disk of the log."""
    log: TransactionLog = field(init=False)
    table: SinkTable = field(init=False)
    entries: list[tuple[DispatchEntry, bytes]] = field(default_factory=list)
    next: dict[int, tuple[int, int]] = field(default_factory=dict)
    doubts: set[str] = field(default_factory=set)

    def open(self, end: int) -> None:
        self.log = TransactionLog(self.disk, CONFIG, end)
        log = self.log.log
        self.table = SinkTable(
            CONFIG,
            self.disk,
            log.view,
            lambda: log.end_offset if self.ahead else log.flushed_offset,
        )
        self.doubts.add(self.table.load(0, end))
        self.table.dispatch([entry for entry, _ in self.entries])

    def step(self) -> None:
        action = self.random.choices(
            [self.send, self.plain, self.sync_log, self.save], [9, 3, 2, 2]
        )
        action[0]()

    def send(self) -> None:
        partition = self.random.randrange(3)
        batch, sequence = self.next.get(partition, (0, 0))
        if self.random.random() < 0.2:
            batch, sequence = batch + 1, 0
        self.next[partition] = batch, sequence + 1
        self._note(self.log.append(record(marked(sequence, batch=batch, partition=partition))))

    def plain(self) -> None:
        self._note(self.log.plain())

    def _note(self, entry: DispatchEntry) -> None:
        self.entries.append(
            (entry, bytes(self.log.log.view(entry.physical_offset, entry.record_bytes)))
        )
        self.table.dispatch([entry])

    def sync_log(self) -> None:
        self.log.log.sync(self.log.log.end_offset)

    def save(self) -> None:
        copy = self.table.unsynced(at_once=True)
        if copy is not None:
            self.table.save(copy)
            self.table.mark_synced(copy)

    def power_cut(self) -> None:
        flushed = self.log.log.flushed_offset
        self.disk = self.disk.crashed(self.random.randrange(1 << 30))
        kept: list[tuple[DispatchEntry, bytes]] = []
        for entry, data in self.entries:
            if entry.physical_offset >= flushed and not self._holds(entry.physical_offset, data):
                break
            kept.append((entry, data))
        self.entries = kept
        last = kept[-1][0] if kept else None
        self.open(last.end_offset if last else 0)
        self.next.clear()
        expected = table_of(self.log)
        expected.load(0, 0)
        expected.dispatch([entry for entry, _ in kept])
        assert self.table.lanes() == expected.lanes()
        for lane, progress in expected.lanes().items():
            self.next[lane.partition] = progress.batch, progress.sequence

    def _holds(self, offset: int, data: bytes) -> bool:
        number, position = divmod(offset, CONFIG.commit_log_file_bytes)
        path = f"{CONFIG.commit_log_dir}/{number * CONFIG.commit_log_file_bytes:020d}"
        if not self.disk.exists(path):
            return False
        return self.disk.read_bytes(path)[position : position + len(data)] == data


def replay(seed: int, *, ahead: bool = False) -> set[str]:
    """Runs one seed; AssertionError says what was wrong. Why the file was not believed."""
    run = Run(Random(seed), ahead=ahead)
    run.open(0)
    for _ in range(4):
        for _ in range(run.random.randint(1, 40)):
            run.step()
        run.power_cut()
    return run.doubts


@pytest.mark.trial(short=20, long=1000)
def test_the_sink_table_agrees_with_the_log_after_every_power_cut(seed: int) -> None:
    assert replay(seed) <= {"", NO_SINK_FILE}


def test_a_sink_table_file_ahead_of_the_log_is_ignored() -> None:
    """Waiting until the log is on disk is needed: or all of the log would have to be read again."""
    doubts = [doubt for seed in range(30) for doubt in replay(seed, ahead=True)]
    assert [doubt for doubt in doubts if doubt.startswith("it reaches")]
