"""The log of a slave: bytes as they come, records as they become whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import OffsetError, StoreError
from storage.files.disk import RealDisk
from storage.log.commit_log import PutRecord, prepare_file
from storage.message_store import MessageStore
from storage.replica.replica_log import ReplicaLog
from tests.storage.replica.test_replica_log_replica_scan import published
from tests.support.brokers import STORE, store_in
from tests.support.golden import manifest, replication, store, transfers

FILE_BYTES = 65_536


def open_store(root: Path, config: StoreConfig = STORE) -> MessageStore:
    opened = MessageStore(store_in(root, config), RealDisk(), SystemClock())
    opened.open()
    return opened


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path / "store")
    yield opened
    opened.abandon()


def take(replica: ReplicaLog, made: MessageStore, data: bytes) -> int:
    """Writes all of it, with the files that it takes; returns how many records are whole now."""
    while data:
        data = data[replica.write(data) :]
        if data:
            wanted = made.commit_log.queue.capacity_end
            made.commit_log.adopt(prepare_file(wanted, made.config, made.disk))
    return len(published(replica))


def reports(name: str) -> set[int]:
    lines = replication(name)
    return {line["reportOffset"] for line in lines if "reportOffset" in line}


@pytest.mark.parametrize("name", ("a-fresh-slave", "e-sync-master-ack-and-timeout"))
def test_a_recorded_stream_yields_the_records_that_the_original_reported(
    name: str, made: MessageStore
) -> None:
    replica = ReplicaLog(made.commit_log, ())
    ends = {0}
    for offset, body in transfers(name):
        assert offset == replica.received_offset
        take(replica, made, body)
        ends.add(made.commit_log.end_offset)
    assert reports(name) <= ends
    assert replica.received_offset == made.commit_log.end_offset == max(reports(name))


def test_a_recorded_stream_starts_an_empty_log_at_its_own_offset(made: MessageStore) -> None:
    replica = ReplicaLog(made.commit_log, ())
    (begin, _), *rest = transfers("c-wiped-slave-joins-late")
    assert (replica.is_empty, begin) == (True, 2 * FILE_BYTES)
    replica.check_begin(begin)
    replica.begin_at(prepare_file(begin, made.config, made.disk))
    assert (made.commit_log.min_offset(), made.commit_log.end_offset) == (begin, begin)
    for _, body in rest:
        take(replica, made, body)
    assert made.commit_log.end_offset == max(reports("c-wiped-slave-joins-late"))
    numbers = [head.queue_offset for head in made.commit_log.walk(0)]
    assert numbers, "records are found from the log's new beginning on"


@pytest.mark.heavy
@pytest.mark.parametrize("chunk_bytes", (1, 7, 1000, 40_000))
def test_a_golden_log_is_replicated_byte_for_byte_in_any_slices(
    chunk_bytes: int, made: MessageStore, tmp_path: Path
) -> None:
    files = sorted((store("clean", tmp_path) / "commitlog").iterdir())
    end = manifest("clean")["commitLogEnd"]
    data = b"".join(path.read_bytes() for path in files)[:end]
    replica = ReplicaLog(made.commit_log, ())
    records = sum(
        take(replica, made, data[start : start + chunk_bytes])
        for start in range(0, end, chunk_bytes)
    )
    assert records == len(manifest("clean")["rawRecords"])
    assert made.commit_log.end_offset == end
    for mine, theirs in zip(made.commit_log.queue.files, files, strict=False):
        count = min(end - mine.first_offset, FILE_BYTES)
        assert mine.file.pread(count, 0) == theirs.read_bytes()[:count]


def test_incomplete_bytes_are_not_read_and_dropped_on_request(made: MessageStore) -> None:
    replica = ReplicaLog(made.commit_log, ())
    ((_, _), (_, body), *_) = transfers("a-fresh-slave")
    take(replica, made, body)
    end = made.commit_log.end_offset
    assert take(replica, made, body[:100]) == 0
    assert (made.commit_log.end_offset, replica.received_offset) == (end, end + 100)
    assert replica.read(end, 100) == body[:100]
    with pytest.raises(OffsetError):
        replica.read(end, 101)
    replica.drop_partial()
    file = made.commit_log.queue.files[0]
    assert replica.received_offset == end and file.is_zero_from(end)


def test_an_empty_log_must_start_at_a_file_boundary(made: MessageStore) -> None:
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog must be the same"):
        ReplicaLog(made.commit_log, ()).check_begin(FILE_BYTES + 1)


def test_a_blank_that_misses_the_file_end_means_another_file_size(made: MessageStore) -> None:
    replica = ReplicaLog(made.commit_log, ())
    blank = bytes.fromhex("00000100cbd43194")
    with pytest.raises(StoreError, match="A BLANK at 0 does not fit a file of 65536 bytes"):
        take(replica, made, blank)


def test_the_bytes_compared_with_the_master_include_the_newest_record(tmp_path: Path) -> None:
    """Though its body is longer than what is compared at least, and all zeros."""
    opened = open_store(tmp_path / "store")
    replica = ReplicaLog(opened.commit_log, ())
    records = [data for _, data in transfers("a-fresh-slave")]
    take(replica, opened, b"".join(records))
    end = opened.commit_log.end_offset
    assert replica.overlap_start(end) == end - 4096
    record = PutRecord(b"T", 0, 0, 0, 0, 0, bytes(8), 0, 0, bytes(20_000), b"", 0)
    opened.commit_log.append([record], 0)
    opened.catch_up()
    for queues in (opened.consume_queues, ()):
        again = ReplicaLog(opened.commit_log, (), queues)
        start = again.overlap_start(opened.commit_log.end_offset)
        assert start == (end if queues else opened.commit_log.end_offset - 4096)
    opened.abandon()
