"""The one appender: numbers without holes, whatever does not get into the log."""

import errno
from dataclasses import asdict

import pytest

from actors.engine.interfaces import SnapshotRef
from actors.sending.appender import Appender, Put, Record
from actors.statistics.counts import PutStats, TopicCounts
from protocol.bodies_tables import TopicConfig
from protocol.codes import TRANSACTION_PREPARED
from protocol.message import body_crc
from storage.errors import StoreError
from storage.log.commit_log import BatchPart, CommitLog, PutBatch, prepare_file
from storage.queues.dispatch_entry import DispatchEntry, single_entries
from tests.support.brokers import STORE
from tests.support.puts import HOST, put
from troupemq.testing.fake_disk import FakeDisk

CONFIG = TopicConfig("Topic", 4, 4)
NOW_MS = 1_700_000_000_000
HALF_A_FILE = STORE.commit_log_file_bytes // 2


class Made:
    """An appender with a log of one file."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.log = CommitLog(STORE, self.disk)
        self.log.load()
        self.log.start_at(0, 0)
        self.log.store_host = HOST
        self.stats = PutStats()
        self.appender = Appender(self.log, SnapshotRef({"Topic": CONFIG}), self.stats)

    def put(self, body: bytes, queue_id: int = 1, sys_flag: int = 0, delay_ms: int = 0) -> Put:
        """A put of one record."""
        given = asdict(put(body, queue_id=queue_id, sys_flag=sys_flag))
        record = Record(**given, tags_code=77, keys=(b"key",), delay_ms=delay_ms)
        return Put(self.appender.state_of("Topic", CONFIG), record)

    def batch(self, *bodies: bytes, queue_id: int = 1) -> Put:
        """A put of a batch."""
        parts: list[BatchPart] = [(7, body_crc(body), body, b"", b"") for body in bodies]
        batch = PutBatch(
            b"Topic", queue_id, 0, 0, 0, HOST, 0, parts, sum(map(len, bodies)),
            [77] * len(bodies), [(body,) for body in bodies],
        )  # fmt: skip
        return Put(self.appender.state_of("Topic", CONFIG), batch)

    def append(self, *puts: Put) -> tuple[int, list[int]]:
        """Return the number of stored puts, and the queue offsets of the dispatch entries."""
        stored, entries = self.appender.append(puts, NOW_MS)
        return stored, [entry.queue_offset for entry in single_entries(entries)]


def test_records_get_queue_offsets_and_physical_offsets() -> None:
    made = Made()
    made.appender.start_at({("Topic", 1): 10, ("Other", 0): 5})
    puts = [made.put(b"1"), made.put(b"22"), made.put(b"3"), made.put(b"4", queue_id=2)]
    assert made.append(*puts) == (4, [10, 11, 12, 0])
    sizes = []
    for record in (each.group for each in puts):
        assert isinstance(record, Record)
        stored = made.log.read_record(record.physical_offset)
        assert stored is not None
        assert (stored.body, stored.queue_offset) == (record.body, record.queue_offset)
        sizes.append(record.record_bytes)
    counts = made.stats.by_topic["Topic"]
    assert (counts.count, counts.times) == (4, 4)
    assert counts.bytes == made.log.end_offset == sum(sizes)


def test_batch_records_get_queue_offsets_and_physical_offsets() -> None:
    made = Made()
    put = made.batch(b"1", b"22")
    assert made.append(made.put(b"0"), put, made.put(b"3")) == (3, [0, 1, 2, 3])
    assert isinstance(put.group, PutBatch)
    stored = [made.log.read_record(offset) for offset in put.group.offsets]
    assert [(each.body, each.queue_offset) for each in stored if each] == [(b"1", 1), (b"22", 2)]
    _, entries = made.appender.append([put], NOW_MS + 1)
    first, second = put.group.offsets
    first_bytes, second_bytes = second - first, made.log.end_offset - second
    assert put.group.physical_offset == first
    assert put.group.record_bytes == first_bytes + second_bytes
    assert single_entries(entries) == [
        DispatchEntry(b"Topic", 1, 4, first, first_bytes, 77, NOW_MS + 1, 0, (b"1",)),
        DispatchEntry(b"Topic", 1, 5, second, second_bytes, 77, NOW_MS + 1, 0, (b"22",)),
    ]
    counts = made.stats.by_topic["Topic"]
    assert (counts.count, counts.times, counts.bytes) == (6, 4, made.log.end_offset)


def test_a_batch_that_does_not_fit_releases_its_queue_offsets() -> None:
    made = Made()
    large = bytes(HALF_A_FILE)
    assert made.append(made.put(large), made.batch(large, b"1")) == (1, [0])
    assert made.append(made.put(b"2")) == (1, [1])


def test_a_dispatched_message_is_due_its_delay_after_the_store_time() -> None:
    made = Made()
    _, entries = made.appender.append([made.put(b"now"), made.put(b"later", delay_ms=500)], NOW_MS)
    assert [
        (entry.tags_code, entry.store_timestamp, entry.keys) for entry in single_entries(entries)
    ] == [
        (77, NOW_MS, (b"key",)),
        (NOW_MS + 500, NOW_MS, (b"key",)),
    ]


def test_records_that_do_not_fit_release_their_queue_offsets() -> None:
    made = Made()
    large = bytes(HALF_A_FILE)
    puts = [made.put(b"1"), made.put(large), made.put(large), made.put(b"2", queue_id=2)]
    assert made.append(*puts) == (2, [0, 1])
    needed = made.log.next_file_offset_to_prepare()
    assert needed is not None
    made.log.adopt(prepare_file(needed, STORE, made.disk))
    assert made.append(made.put(b"instead")) == (1, [2])
    assert made.append(*puts[2:]) == (2, [3, 0])


def test_a_failed_append_releases_its_queue_offsets() -> None:
    made = Made()
    assert made.append(made.put(b"1")) == (1, [0])
    made.disk.fail_next("pwrite", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StoreError):
        made.append(made.put(b"2"), made.put(b"3"), made.batch(b"6", b"7"))
    assert made.stats.by_topic["Topic"] == TopicCounts(1, made.log.end_offset, 1)
    assert made.append(made.put(b"5")) == (1, [1])


def test_a_prepared_record_has_no_queue_offset() -> None:
    made = Made()
    prepared = made.put(b"half", sys_flag=TRANSACTION_PREPARED)
    assert made.append(made.put(b"1"), prepared, made.put(b"2")) == (3, [0, 0, 1])


def test_a_removed_queue_restarts_unless_it_has_grown_meanwhile() -> None:
    made = Made()
    made.appender.start_at({("Unused", 0): 7})
    made.append(made.put(b"1"), made.put(b"2", queue_id=2), made.put(b"3", queue_id=2))
    gone = [("Topic", 1, 1), ("Topic", 2, 1), ("Unused", 0, 7), ("Unknown", 0, 0)]
    made.appender.forget_queues(gone)
    assert made.append(made.put(b"4"), made.put(b"5", queue_id=2)) == (2, [0, 2])
    assert made.appender.own_state_of("Unused").next_offsets == {}


def test_the_state_of_a_topic_stays_while_its_configuration_changes() -> None:
    made = Made()
    state = made.appender.own_state_of("Topic")
    assert (state.config, state.queue_id_limit) == (CONFIG, 4)
    assert made.appender.state_of("Topic", TopicConfig("Topic", 8, 2)) is state
    assert state.queue_id_limit == 8
    unknown = made.appender.own_state_of("SCHEDULE_TOPIC_XXXX")
    assert (unknown.topic, unknown.queue_id_limit) == (b"SCHEDULE_TOPIC_XXXX", 1)
