"""End of a log after crashes of all kinds."""

import pytest

from protocol.message import decode_record, encode_record
from storage.config import StoreConfig
from storage.log.commit_log import CommitLog, group_bytes_of, prepare_file
from storage.recovery.log_scan import LogScan, start_after_clean_stop, start_after_crash
from tests.support.puts import HOST, put
from troupemq.testing.fake_disk import FakeDisk

NOW_MS = 1_700_000_000_000
FILE_BYTES = 8192
PROPERTIES = b"UNIQ_KEY\x01some-key"
RECORD_BYTES = group_bytes_of(put(properties=PROPERTIES), HOST)


def a_log(files: int = 1, records: int = 0) -> CommitLog:
    disk = FakeDisk()
    config = StoreConfig(root="/store", commit_log_file_bytes=FILE_BYTES)
    log = CommitLog(config, disk)
    log.load()
    log.start_at(0, 0)
    log.store_host = HOST
    for number in range(1, files):
        log.adopt(prepare_file(number * FILE_BYTES, config, disk))
    log.append([put(properties=PROPERTIES) for _ in range(records)], NOW_MS)
    return log


def scanned(log: CommitLog, start: int = 0, *, after_crash: bool = False) -> LogScan:
    scan = LogScan(log.queue, start, check_crc=True, after_crash=after_crash)
    assert sum(map(len, scan.batches())) == scan.record_count
    return scan


def damage(log: CommitLog, data: bytes, offset: int) -> None:
    log.queue.files[offset // FILE_BYTES].write(data, offset % FILE_BYTES)


def test_an_empty_log_ends_at_its_start() -> None:
    assert scanned(a_log()).end_offset == 0


def test_complete_records_of_all_files_are_counted() -> None:
    log = a_log(files=3, records=150)
    scan = scanned(log)
    assert (scan.end_offset, scan.record_count) == (log.end_offset, 150)
    assert scan.last_store_timestamp == NOW_MS


def test_the_log_continues_in_an_empty_next_file() -> None:
    log = a_log(files=2, records=1)
    while log.queue.find(log.end_offset) is log.queue.files[0]:
        log.append([put(properties=PROPERTIES)], NOW_MS)
    damage(log, bytes(RECORD_BYTES), FILE_BYTES)
    assert scanned(log).end_offset == FILE_BYTES


def test_a_blank_without_a_next_file_is_the_log_end() -> None:
    log = a_log(files=2, records=100)
    log.queue.remove_from(FILE_BYTES)
    end = (FILE_BYTES - 8) // RECORD_BYTES * RECORD_BYTES
    scan = scanned(log)
    assert scan.end_offset == end
    assert "no file follows" in scan.end_reason


@pytest.mark.parametrize(
    "position, data, reason",
    [
        (0, b"\x7f", "lengths"),
        (4, b"\0\0\0\0", "magic"),
        (28, b"\x01", "names the offset"),
        (84, b"\x7f", "lengths"),
        (88, b"?", "CRC"),
    ],
)
def test_a_damaged_record_ends_the_log_before_it(position: int, data: bytes, reason: str) -> None:
    log = a_log(records=5)
    damage(log, data, 2 * RECORD_BYTES + position)
    scan = scanned(log)
    assert (scan.end_offset, scan.record_count) == (2 * RECORD_BYTES, 2)
    assert reason in scan.end_reason


def test_a_record_with_another_physical_offset_does_not_count() -> None:
    log = a_log(records=3)
    damage(log, bytes(log.view(0, RECORD_BYTES)), RECORD_BYTES)
    assert scanned(log).end_offset == RECORD_BYTES


def test_a_dropped_page_ends_the_log() -> None:
    log = a_log(records=60)
    damage(log, bytes(4096), 0)
    assert scanned(log).end_offset == 0


@pytest.mark.parametrize("body_bytes", range(3600, 3720, 7))
def test_a_record_with_a_lost_second_page_does_not_count(body_bytes: int) -> None:
    for topic, properties in [("T" * 100, PROPERTIES * 20), ("T" * 127, b"")]:
        log = a_log(records=0)
        log.append([put(bytes(body_bytes), topic=topic, properties=properties)], NOW_MS)
        whole = scanned(log, after_crash=True)
        assert whole.end_offset == log.end_offset
        if log.end_offset - 2 <= 4096:
            continue
        damage(log, bytes(4096), 4096)
        assert scanned(log, after_crash=True).end_offset == 0


def test_a_record_that_ends_in_zeros_counts_if_another_follows() -> None:
    log = a_log(records=0)
    log.append([put(bytes(3900), properties=b"a\x01" + bytes(300)), put()], NOW_MS)
    assert scanned(log, after_crash=True).end_offset == log.end_offset


def test_a_clean_start_reads_the_last_three_files() -> None:
    assert start_after_clean_stop(a_log(files=5).queue) == 2 * FILE_BYTES
    assert start_after_clean_stop(a_log(files=2).queue) == 0


def test_after_a_crash_the_scan_starts_at_the_newest_file_the_checkpoint_covers() -> None:
    log = a_log(files=4)
    starts = []
    for number in range(4):
        starts.append(NOW_MS + 1000 * number)
        while log.end_offset < (number + 1) * FILE_BYTES - 2 * RECORD_BYTES:
            log.append([put(properties=PROPERTIES)], starts[number])
        if number < 3:
            log.append([put(bytes(400))], starts[number] + 1000)
    firsts = [decode_record(file.view).store_timestamp for file in log.queue.files]
    assert firsts == [NOW_MS, NOW_MS + 1000, NOW_MS + 2000, NOW_MS + 3000]
    assert start_after_crash(log.queue, NOW_MS - 1) == 0
    assert start_after_crash(log.queue, NOW_MS + 2999) == 2 * FILE_BYTES
    assert start_after_crash(log.queue, 1 << 60) == 3 * FILE_BYTES


def test_a_file_without_a_record_is_not_a_scan_start() -> None:
    log = a_log(files=2, records=3)
    assert start_after_crash(log.queue, 1 << 60) == 0


def test_the_codec_and_the_scan_agree_on_every_record() -> None:
    log = a_log(records=1)
    assert encode_record(decode_record(log.view(0, RECORD_BYTES))) == log.view(0, RECORD_BYTES)


# --- damage


def whole(log: CommitLog, *, vouched_offset: int = 0, trusted_until_ms: int = 0) -> LogScan:
    scan = LogScan(
        log.queue,
        0,
        check_crc=True,
        after_crash=True,
        vouched_offset=vouched_offset,
        trusted_until_ms=trusted_until_ms,
    )
    assert sum(map(len, scan.batches())) >= scan.record_count
    return scan


@pytest.mark.parametrize("position", [1, 3, 5, 10, 31, 85, 90, 92, 99])
def test_a_damaged_record_is_skipped_and_reported(position: int) -> None:
    log = a_log(files=2, records=100)
    damage(log, b"\x7f", 2 * RECORD_BYTES + position)
    scan = whole(log)
    assert scan.end_offset == log.end_offset
    assert [gap[:2] for gap in scan.gaps] == [(2 * RECORD_BYTES, 3 * RECORD_BYTES)]
    assert scan.record_count >= 99


def test_a_wrong_length_that_skips_records_hides_none_of_them() -> None:
    log = a_log(records=20)
    damage(log, (3 * RECORD_BYTES).to_bytes(4), 2 * RECORD_BYTES)
    scan = whole(log)
    assert scan.record_count == 19
    assert [gap[:2] for gap in scan.gaps] == [(2 * RECORD_BYTES, 3 * RECORD_BYTES)]


def test_a_lost_page_beyond_the_durable_offset_ends_the_log() -> None:
    log = a_log(files=2, records=100)
    damage(log, bytes(4096 - 2 * RECORD_BYTES), 2 * RECORD_BYTES)
    assert whole(log).end_offset == 2 * RECORD_BYTES
    assert whole(log).gaps == []
    vouched = whole(log, vouched_offset=8192)
    assert vouched.end_offset == log.end_offset and len(vouched.gaps) == 1
    trusted = whole(log, trusted_until_ms=NOW_MS)
    assert trusted.end_offset == log.end_offset and len(trusted.gaps) == 1


def test_a_page_lost_inside_a_record_ends_the_log() -> None:
    log = a_log(files=2, records=100)
    damage(log, bytes(4096), 4096)
    first_lost = 4096 // RECORD_BYTES * RECORD_BYTES
    log.append([put(properties=PROPERTIES)], NOW_MS)
    assert whole(log).end_offset == first_lost


def test_damage_before_a_torn_end_ends_the_log() -> None:
    log = a_log(records=20)
    damage(log, b"\x7f", 2 * RECORD_BYTES + 89)
    assert whole(log).end_offset == log.end_offset
    damage(log, bytes(40), log.end_offset - 40)
    scan = whole(log)
    assert scan.end_offset == 2 * RECORD_BYTES and not scan.gaps
    assert whole(log, vouched_offset=10 * RECORD_BYTES).gaps


def test_a_record_older_than_its_predecessor_is_leftover_data() -> None:
    log = a_log(records=3)
    end = log.end_offset
    log.append([put(properties=PROPERTIES)] * 2, NOW_MS + 10)
    stale = end + RECORD_BYTES
    damage(log, (NOW_MS - 10).to_bytes(8), stale + 56)
    damage(log, b"\x7f", end)
    assert whole(log).end_offset == end


def test_a_store_time_in_the_future_does_not_end_the_log_at_later_damage() -> None:
    """No checksum covers it: all that follows looked left over, and was cut."""
    log = a_log(records=20)
    damage(log, b"\x01", 2 * RECORD_BYTES + 56)
    damage(log, b"\x7f", 10 * RECORD_BYTES + 89)
    scan = whole(log)
    assert scan.end_offset == log.end_offset
    assert [gap[:2] for gap in scan.gaps] == [(10 * RECORD_BYTES, 11 * RECORD_BYTES)]


@pytest.mark.parametrize("position", range(8))
def test_a_blank_with_one_wrong_field_is_still_a_blank(position: int) -> None:
    log = a_log(files=2, records=100)
    end = (FILE_BYTES - 8) // RECORD_BYTES * RECORD_BYTES
    damage(log, b"\x55", end + position)
    scan = whole(log)
    assert scan.end_offset == log.end_offset and not scan.gaps
    assert scan.damaged_blanks == [end]
    assert len(list(log.walk(0))) == 100
