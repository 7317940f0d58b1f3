"""Deletion of log files: by age, disk usage, force and request."""

from dataclasses import replace
from datetime import datetime

import pytest

from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.mapped_file import MappedFileQueue, create_mapped_file
from storage.retention.cleaning import (
    FILES_PER_ROUND_MAX,
    ROUNDS_ON_REQUEST,
    UNKNOWN_RATIO,
    Cleaning,
    RetentionHold,
    disk_use,
    used_ratio,
)
from tests.support.clock import ManualClock
from troupemq.testing.fake_disk import FakeDisk

HOUR_MS = 3_600_000
FILE_BYTES = 4096
CONFIG = StoreConfig(root="/store", commit_log_file_bytes=FILE_BYTES)
NOON_MS = int(datetime(2026, 11, 21, 12, 0).timestamp() * 1000)
"""Noon of the machine's local time: not the hour of deleteWhen."""


class Log:
    """Log files, the oldest written `age_hours[0]` ago, and the decisions about them."""

    def __init__(self, *age_hours: float, config: StoreConfig = CONFIG) -> None:
        self.disk, self.clock = FakeDisk(), ManualClock()
        self.clock.set_wall(NOON_MS)
        self.disk.make_dirs(config.commit_log_dir)
        self.queue = MappedFileQueue(self.disk, config.commit_log_dir, FILE_BYTES, "size")
        for number, hours in enumerate(age_hours):
            self.disk.now_ms = int(NOON_MS - hours * HOUR_MS)
            folder, first_offset = config.commit_log_dir, number * FILE_BYTES
            file = create_mapped_file(self.disk, folder, first_offset, FILE_BYTES, sparse=False)
            file.write(b"x", 0)
            self.queue.add(file)
        self.cleaning = Cleaning(config, self.disk, self.clock)

    def expired(self, needed_from: int = 1 << 40) -> list[tuple[int, str]]:
        """Number and reason of each file that may go."""
        return [(number, reason) for number, reason, _ in self.expired_for(needed_from=needed_from)]

    def expired_for(
        self, *holds: RetentionHold, needed_from: int = 1 << 40
    ) -> list[tuple[int, str, tuple[RetentionHold, ...]]]:
        """Return the files to delete, with reasons and ignored holds."""
        self.decision = self.cleaning.decide(self.queue.files, needed_from, lambda: holds)
        return [
            (item.file.first_offset // FILE_BYTES, item.reason, item.losers)
            for item in self.decision.expired
        ]

    def at_hour(self, hour: int) -> "Log":
        self.clock.set_wall(NOON_MS + (hour - 12) * HOUR_MS)
        return self


def test_outside_the_hour_of_deletewhen_no_file_is_deleted() -> None:
    assert Log(900, 800, 700).expired() == []


def test_at_the_hour_of_deletewhen_old_files_are_deleted_except_the_last() -> None:
    log = Log(900, 800, 700).at_hour(4)
    assert log.expired() == [(0, "old at deleteWhen"), (1, "old at deleteWhen")]


def test_several_hours_are_separated_by_semicolons() -> None:
    config = replace(CONFIG, delete_when="04;16;")
    assert [bool(Log(900, 1, config=config).at_hour(hour).expired()) for hour in (4, 5, 16)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("text", ["4 o'clock", "24", "04,05", "-1"])
def test_an_invalid_hour_is_reported(text: str) -> None:
    with pytest.raises(StoreError, match="deleteWhen is"):
        replace(CONFIG, delete_when=text)


def test_a_file_expires_exactly_at_its_age_and_never_in_the_middle() -> None:
    log = Log(72, 71.999, 900, 1)
    log.cleaning.request()
    assert log.expired() == [(0, "old, on request")]


def test_a_request_lasts_twenty_rounds() -> None:
    log = Log(900, 1)
    log.cleaning.request()
    rounds = [bool(log.expired()) for _ in range(ROUNDS_ON_REQUEST + 2)]
    assert rounds == [True] * 20 + [False] * 2


def test_at_most_ten_files_are_deleted_in_a_round() -> None:
    log = Log(*[900] * 14).at_hour(4)
    assert [number for number, _ in log.expired()] == list(range(FILES_PER_ROUND_MAX))


def test_a_file_in_use_is_kept() -> None:
    log = Log(900, 900, 900, 900).at_hour(4)
    assert [number for number, _ in log.expired(needed_from=2 * FILE_BYTES)] == [0, 1]
    assert [number for number, _ in log.expired(needed_from=2 * FILE_BYTES - 1)] == [0]


@pytest.mark.parametrize(
    ("ratio", "gone"), [(0.75, []), (0.751, [0]), (0.85, [0]), (0.851, [0, 1])]
)
def test_the_disk_ratios_decide_about_deletion(ratio: float, gone: list[int]) -> None:
    log = Log(900, 1, 1)
    log.disk.usage = ratio
    assert [number for number, _ in log.expired()] == gone


def test_unexpired_files_are_deleted_only_if_settings_allow() -> None:
    log = Log(900, 1, 1)
    log.disk.usage = 0.95
    assert log.expired() == [(0, "old and the disk fills up"), (1, "the disk is full")]
    log = Log(900, 1, 1, config=replace(CONFIG, clean_file_forcibly_enable=False))
    log.disk.usage = 0.95
    assert log.expired() == [(0, "old and the disk fills up")]


@pytest.mark.parametrize(("set_to", "used"), [(1, 10), (10, 10), (60, 60), (95, 95), (100, 95)])
def test_the_ratio_of_the_setting_is_kept_within_limits(set_to: int, used: int) -> None:
    assert replace(CONFIG, disk_max_used_percent=set_to).disk_max_used_percent == used


@pytest.mark.parametrize(("ratio", "is_full"), [(0.9, False), (0.9001, True)])
def test_past_the_warning_ratio_the_disk_is_full(ratio: float, is_full: bool) -> None:
    disk = FakeDisk()
    disk.usage = ratio
    assert disk_use(CONFIG, disk).is_full is is_full
    assert not disk_use(replace(CONFIG, disk_warning_ratio=0.95), disk).is_full


def test_a_disk_ratio_is_rounded_up_and_shown_as_in_the_original() -> None:
    disk = FakeDisk()
    disk.usage = 0.9001
    assert used_ratio(disk, "/store") == 0.91
    disk.make_dirs(CONFIG.consume_queue_dir)
    assert str(disk_use(CONFIG, disk)) == "CL:  0.91 CQ:  0.91 INDEX: -1.00"
    disk.make_dirs(CONFIG.index_dir)
    assert str(disk_use(CONFIG, disk)) == "CL:  0.91 CQ:  0.91 INDEX:  0.91"
    disk.usage = 0.29  # 0.29 * 100 is a little more than 29
    assert used_ratio(disk, "/store") == 0.29


def test_a_disk_of_unknown_usage_does_not_count_as_full() -> None:
    disk = FakeDisk()
    disk.fail_next("usage_ratio", OSError(5, "input/output error"), times=2)
    use = disk_use(CONFIG, disk)
    assert (use.log, use.queues, use.is_full) == (UNKNOWN_RATIO, UNKNOWN_RATIO, False)


LEASE = RetentionHold(FILE_BYTES + 1, "lease audit")
ARCHIVE = RetentionHold(2 * FILE_BYTES, "archive /a", is_lease=False)


def test_a_held_file_does_not_expire_by_age() -> None:
    log = Log(900, 900, 900, 900, 1).at_hour(4)
    assert log.expired_for(LEASE, ARCHIVE) == [(0, "old at deleteWhen", ())]
    assert log.decision.kept_file is log.queue.files[1]
    assert log.decision.kept_for == (LEASE,)
    assert [number for number, _, _ in log.expired_for(ARCHIVE)] == [0, 1]
    assert log.decision.kept_for == (ARCHIVE,)
    log.disk.usage = 0.8
    assert [number for number, _, _ in log.expired_for(LEASE, ARCHIVE)] == [0]


def test_a_lease_that_starts_at_a_file_end_does_not_retain_the_file() -> None:
    log = Log(900, 900, 1).at_hour(4)
    assert len(log.expired_for(RetentionHold(FILE_BYTES, "lease"))) == 1
    assert len(log.expired_for(RetentionHold(FILE_BYTES - 1, "lease"))) == 0


def test_a_full_disk_deletes_leased_files_and_names_the_leases() -> None:
    log = Log(900, 900, 900, 1, 1)
    log.disk.usage = 0.86
    assert log.expired_for(LEASE, ARCHIVE) == [
        (0, "old and the disk fills up", ()),
        (1, "the disk is full", (LEASE,)),
        (2, "the disk is full", (LEASE, ARCHIVE)),
        (3, "the disk is full", (LEASE, ARCHIVE)),
    ]
    log = Log(900, 900, 1, config=replace(CONFIG, clean_file_forcibly_enable=False))
    log.disk.usage = 0.95
    assert [number for number, _, _ in log.expired_for(LEASE)] == [0]


def test_an_operators_request_overrides_leases_but_not_the_archive() -> None:
    log = Log(900, 900, 900, 900, 1)
    log.cleaning.request()
    assert log.expired_for(LEASE, ARCHIVE) == [
        (0, "old, on request", ()),
        (1, "old, on request", (LEASE,)),
    ]
    assert log.decision.kept_for == (LEASE, ARCHIVE)
    assert [reason for _, reason, _ in log.at_hour(4).expired_for(LEASE)] == [
        "old at deleteWhen",
        "old, on request",
        "old, on request",
        "old, on request",
    ]


def test_holds_are_read_only_when_a_file_could_expire() -> None:
    def never() -> list[RetentionHold]:
        raise AssertionError("asked")

    log = Log(1, 1, 1).at_hour(4)
    assert log.cleaning.decide(log.queue.files, 1 << 40, never).expired == []
