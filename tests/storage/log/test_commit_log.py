"""The commit log: appending, rolling, reading, flushing, failing."""

import errno
from dataclasses import dataclass

import pytest

from protocol.message import BLANK_MAGIC, SIZE_AND_MAGIC
from storage.config import StoreConfig
from storage.errors import DiskFull, OffsetError, StoreError, SyncFailed
from storage.log.commit_log import CommitLog, Placed, group_bytes_of, prepare_file
from tests.support.puts import HOST, batch, put
from troupemq.testing.fake_disk import FakeDisk

NOW_MS = 1_700_000_000_000
RECORD_BYTES = group_bytes_of(put(), HOST)
RECORDS_PER_FILE = 4
FILE_BYTES = RECORDS_PER_FILE * RECORD_BYTES + 8 + 60
"""Four records, and a rest of 68 bytes."""


@dataclass
class Log:
    """A commit log and what it lies on."""

    disk: FakeDisk
    config: StoreConfig
    log: CommitLog

    def append(self, count: int, now_ms: int = NOW_MS) -> list[Placed]:
        return self.log.append([put(b"%04d" % n) for n in range(count)], now_ms)

    def adopt_next(self) -> None:
        offset = self.log.next_file_offset_to_prepare()
        assert offset is not None
        self.log.adopt(prepare_file(offset, self.config, self.disk))

    def durable(self) -> bytes:
        """The log after the power cut, of a dozen, that has left least of it."""
        found = [self.disk.crashed(seed) for seed in range(12)]
        names = self.disk.listdir(self.config.commit_log_dir)
        texts = [
            b"".join(disk.read_bytes(f"{self.config.commit_log_dir}/{name}") for name in names)
            for disk in found
        ]
        return min(texts, key=lambda text: len(text.rstrip(b"\0")))


@pytest.fixture
def log() -> Log:
    disk = FakeDisk()
    config = StoreConfig(root="/store", commit_log_file_bytes=FILE_BYTES)
    made = CommitLog(config, disk)
    made.load()
    made.start_at(0, 0)
    made.store_host = HOST
    return Log(disk, config, made)


def test_a_new_log_has_one_empty_file(log: Log) -> None:
    assert log.disk.listdir("/store/commitlog") == ["00000000000000000000"]
    assert (log.log.min_offset(), log.log.end_offset, log.log.flushed_offset) == (0, 0, 0)
    assert log.log.next_file_offset_to_prepare() == FILE_BYTES


def test_records_are_read_back_by_offset(log: Log) -> None:
    placed = log.append(3)
    assert placed == [(number * RECORD_BYTES, RECORD_BYTES) for number in range(3)]
    assert log.log.end_offset == 3 * RECORD_BYTES
    for number, (offset, _) in enumerate(placed):
        record = log.log.read_record(offset)
        assert record is not None
        assert record.body == b"%04d" % number
        assert record.store_timestamp == NOW_MS


def test_a_read_inside_a_record_returns_no_record(log: Log) -> None:
    log.append(3)
    for offset in (-1, 1, 4, RECORD_BYTES - 1, 3 * RECORD_BYTES, 1 << 40):
        assert log.log.read_record(offset) is None


def test_a_read_at_or_after_the_end_returns_nothing(log: Log) -> None:
    log.append(1)
    assert len(log.log.view(0, RECORD_BYTES)) == RECORD_BYTES
    with pytest.raises(OffsetError):
        log.log.view(0, RECORD_BYTES + 1)


def test_a_chunk_that_spans_files_rolls_with_a_blank_between(log: Log) -> None:
    log.adopt_next()
    placed = log.append(6)
    assert [offset for offset, _ in placed[3:]] == [
        3 * RECORD_BYTES,
        FILE_BYTES,
        FILE_BYTES + RECORD_BYTES,
    ]
    blank = log.log.view(4 * RECORD_BYTES, 8)
    assert SIZE_AND_MAGIC.unpack(blank) == (68, BLANK_MAGIC)
    assert [head.physical_offset for head in log.log.walk(0)] == [offset for offset, _ in placed]


def test_a_chunk_can_roll_more_than_once(log: Log) -> None:
    for _ in range(3):
        current = log.log.queue.capacity_end
        log.log.adopt(prepare_file(current, log.config, log.disk))
    assert len(log.append(14)) == 14
    assert sum(1 for _ in log.log.walk(0)) == 14


def test_without_a_next_file_the_unwritten_rest_is_returned(log: Log) -> None:
    placed = log.append(6)
    assert len(placed) == RECORDS_PER_FILE
    assert log.log.next_file_needed == FILE_BYTES
    assert log.append(1) == []
    log.adopt_next()
    assert log.log.next_file_needed is None
    assert log.append(2)[0][0] == FILE_BYTES


def test_a_next_file_is_requested_when_the_last_one_is_in_use(log: Log) -> None:
    log.adopt_next()
    assert log.log.next_file_offset_to_prepare() is None
    log.append(RECORDS_PER_FILE + 1)
    assert log.log.next_file_offset_to_prepare() == 2 * FILE_BYTES


def test_a_batch_lies_in_one_file(log: Log) -> None:
    log.adopt_next()
    log.append(3)
    both = batch(put(), put())
    assert log.log.append([both], NOW_MS) == [(FILE_BYTES, 2 * RECORD_BYTES)]
    assert both.offsets == [FILE_BYTES, FILE_BYTES + RECORD_BYTES]


def test_a_batch_longer_than_a_file_is_refused_and_writes_nothing(log: Log) -> None:
    log.adopt_next()
    with pytest.raises(ValueError):
        log.log.append([put(), put(bytes(FILE_BYTES))], NOW_MS)
    assert log.log.end_offset == 0
    assert log.append(1) == [(0, RECORD_BYTES)]
    assert bytes(log.log.queue.files[0].slice(RECORD_BYTES, 100)) == bytes(100)


def test_the_store_time_does_not_follow_a_clock_that_goes_back(log: Log) -> None:
    log.append(1, NOW_MS)
    log.append(1, NOW_MS - 60_000)
    log.append(1, NOW_MS + 5)
    times = [head.store_timestamp for head in log.log.walk(0)]
    assert times == [NOW_MS, NOW_MS, NOW_MS + 5]
    assert log.log.last_store_timestamp == NOW_MS + 5


def test_a_send_with_a_clock_far_ahead_does_not_freeze_store_times(log: Log) -> None:
    """Otherwise, all timestamps would be equal until the clock catches up, perhaps for years."""
    log.append(1, NOW_MS + 366 * 86_400_000)
    log.append(1, NOW_MS)
    log.append(1, NOW_MS + 5)
    times = [head.store_timestamp for head in log.log.walk(0)]
    assert times[1:] == [NOW_MS, NOW_MS + 5]
    assert log.log.last_store_timestamp == NOW_MS + 5


def test_a_records_real_arrival_time_is_kept_while_the_clock_is_behind(log: Log) -> None:
    log.adopt_next()
    log.append(1, NOW_MS)
    placed = log.append(1, NOW_MS - 60_000) + log.append(1, NOW_MS - 50_000)
    placed += log.append(1, NOW_MS - 49_500) + log.append(1, NOW_MS + 5)
    stored = [head.store_timestamp for head in log.log.walk(0)][1:]
    came = [log.log.came_at(at, ms) for (at, _), ms in zip(placed, stored, strict=True)]
    assert came == [NOW_MS - 60_000, NOW_MS - 50_000, NOW_MS - 50_000, NOW_MS + 5]
    assert log.log.came_at(0, NOW_MS) == NOW_MS


def test_delayed_messages_get_the_clocks_time_as_store_time(log: Log) -> None:
    topics = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "Topic"]
    log.append(1, NOW_MS)
    log.log.append([put(topic=topic) for topic in topics], NOW_MS - 60_000)
    times = [head.store_timestamp for head in log.log.walk(0)]
    assert times == [NOW_MS, NOW_MS - 60_000, NOW_MS - 60_000, NOW_MS]
    assert log.log.last_store_timestamp == NOW_MS


def test_a_flush_makes_all_earlier_bytes_durable(log: Log) -> None:
    log.append(2)
    assert log.log.sync(1) == 2 * RECORD_BYTES == log.log.flushed_offset
    assert log.log.flushed_store_timestamp == NOW_MS
    log.append(1)
    assert log.log.flushed_offset == 2 * RECORD_BYTES
    assert log.durable()[: 2 * RECORD_BYTES] == bytes(log.log.view(0, 2 * RECORD_BYTES))


def test_a_repeated_flush_makes_no_system_call(log: Log) -> None:
    log.append(1)
    log.log.sync(RECORD_BYTES)
    before = log.disk.sync_count
    assert log.log.sync(RECORD_BYTES) == RECORD_BYTES
    assert log.disk.sync_count == before


def test_flushing_over_a_roll_syncs_both_files(log: Log) -> None:
    log.adopt_next()
    log.append(6)
    before = log.disk.sync_count
    assert log.log.sync(log.log.end_offset) == log.log.end_offset
    assert log.disk.sync_count == before + 2
    assert log.durable().rstrip(b"\0").endswith(bytes(log.log.view(FILE_BYTES, 200)).rstrip(b"\0"))


def test_a_failed_flush_is_final(log: Log) -> None:
    log.append(1)
    log.log.sync(RECORD_BYTES)
    log.append(1)
    log.disk.fail_next("sync", OSError(errno.EIO, "broken"))
    for _ in range(2):
        with pytest.raises(SyncFailed):
            log.log.sync(2 * RECORD_BYTES)
    log.append(1)
    with pytest.raises(SyncFailed):
        log.log.sync(3 * RECORD_BYTES)
    assert log.log.flushed_offset == RECORD_BYTES
    assert log.log.sync(RECORD_BYTES) == RECORD_BYTES


def test_a_failed_write_leaves_no_bytes_that_recovery_could_accept(log: Log) -> None:
    log.adopt_next()
    log.append(2)
    end = log.log.end_offset
    real_write = log.log.queue.files[1].file.pwrite
    log.log.queue.files[1].file.pwrite = _failing  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        log.append(4)
    assert log.log.end_offset == end
    assert not log.log.queue.files[0].is_zero_from(end)
    log.log.queue.files[1].file.pwrite = real_write  # type: ignore[method-assign]
    log.append(1)
    assert log.log.queue.files[0].is_zero_from(end + RECORD_BYTES)


def _failing(data: bytes | bytearray | memoryview, position: int) -> None:
    raise OSError(errno.EIO, "broken")


def test_a_full_disk_is_reported_when_the_next_file_is_created(log: Log) -> None:
    log.disk.capacity_bytes = log.disk.used_bytes() + 100
    with pytest.raises(DiskFull, match="the disk is full"):
        prepare_file(FILE_BYTES, log.config, log.disk)
    assert log.disk.listdir("/store/commitlog") == ["00000000000000000000"]


@pytest.mark.parametrize("position", [2, 5, 32, 84])
def test_iteration_skips_blanks(log: Log, position: int) -> None:
    log.append(3)
    log.log.queue.files[0].write(b"\xff", RECORD_BYTES + position)
    assert [head.physical_offset for head in log.log.walk(0)] == [0, 2 * RECORD_BYTES]


def test_iteration_reports_damage_at_the_end(log: Log) -> None:
    log.append(3)
    log.log.queue.files[0].write(b"\xff", 2 * RECORD_BYTES + 4)
    assert [head.physical_offset for head in log.log.walk(0)] == [0, RECORD_BYTES]


def test_views_stay_valid_after_the_log_is_closed(log: Log) -> None:
    log.append(1)
    view = log.log.view(0, RECORD_BYTES)
    log.log.close()
    assert bytes(view[84:92])[4:] == b"0000"
