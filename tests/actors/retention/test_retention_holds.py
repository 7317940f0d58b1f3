"""Cleaning with leases and an archive: what they keep stays, what outweighs them is told."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.engine.interfaces import SnapshotRef
from actors.retention.clean_files import FIRST_ROUND_MS
from actors.retention.retention_holds import LEASE_TTL_MS_MAX, KeepingReport, RetentionHolds
from protocol.bodies_own import LeasedQueue, LeasedQueues
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import LeaseHeader, LeaseResponseHeader
from protocol.message import MessageRecord
from protocol.topic_names import SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.retention.archive_manifest import LastMessage
from storage.retention.cleaning import Decision, RetentionHold
from storage.retention.leases import FileLease
from tests.support.archives import write_run
from tests.support.cleaned import (
    BODY,
    CLEAN_MS,
    CONFIG,
    FILE_BYTES,
    HOUR_MS,
    LATER_MS,
    START_MS,
    Cleaned,
)
from tests.support.clock import ManualClock

ARCHIVE = "/archive"
WITH_ARCHIVE = replace(CONFIG, retention_archive_dir=ARCHIVE)
NOW = datetime.fromtimestamp(START_MS / 1000).hour
DAILY = replace(CONFIG, delete_when=f"{NOW:02}")
"""The whole test runs in the hour of deleteWhen."""


def ask(
    cleaned: Cleaned,
    action: str,
    lease: str = "L1",
    *,
    queues: Sequence[LeasedQueue] | None = None,
    code: int = 0,
    **fields: Any,
) -> LeaseResponseHeader | None:
    """Return the header of a successful answer; `code` is the expected code."""
    header = LeaseHeader(action, lease, "audit of X", **fields)
    body = None if queues is None else LeasedQueues(list(queues)).encode()
    answer = cleaned.made.ask(RemotingCommand(RequestCode.LEASE_LOG, header.encode(), body))
    assert answer.code == code, answer
    return LeaseResponseHeader.decode(answer.fields) if not code and answer.fields else None


def first_offset(cleaned: Cleaned) -> int:
    return cleaned.made.broker.store.commit_log.min_offset()


def status(cleaned: Cleaned) -> dict[str, str]:
    return KVTable.decode(cleaned.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def last_of(record: MessageRecord) -> LastMessage:
    return LastMessage(record.queue_offset, record.physical_offset, record.store_timestamp)


def archive_up_to(cleaned: Cleaned, physical_offset: int, run: int = 1) -> None:
    """An archive that has all ordinary messages that begin before an offset."""
    ends = {
        (each.topic, each.queue_id): last_of(each)
        for each in cleaned.made.records()
        if each.physical_offset < physical_offset and each.topic != SCHEDULE_TOPIC
    }
    write_run(cleaned.disk, ARCHIVE, run, ends)


def test_a_lease_retains_its_file_and_later_ones_until_it_moves_or_ends() -> None:
    cleaned = Cleaned(config=DAILY)
    granted = ask(cleaned, "take", offset=2 * FILE_BYTES + 5, ttl_ms=LEASE_TTL_MS_MAX)
    assert granted == LeaseResponseHeader(2 * FILE_BYTES + 5, 0, LEASE_TTL_MS_MAX)
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) == 2 * FILE_BYTES
    ask(cleaned, "take", offset=3 * FILE_BYTES, ttl_ms=LEASE_TTL_MS_MAX)
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) == 3 * FILE_BYTES
    ask(cleaned, "release")
    cleaned.made.system.advance(LATER_MS)
    log = cleaned.made.broker.store.commit_log
    assert first_offset(cleaned) == log.end_offset - log.end_offset % FILE_BYTES


def test_lease_ends_unless_it_is_renewed() -> None:
    cleaned = Cleaned(config=DAILY)
    ask(cleaned, "take", "dead", offset=0, ttl_ms=70_000)
    ask(cleaned, "take", "alive", offset=FILE_BYTES, ttl_ms=30_000)
    with capture_logs() as lines:
        for _ in range(12):
            cleaned.made.system.advance(20_000)
            ask(cleaned, "renew", "alive", ttl_ms=30_000)
    assert first_offset(cleaned) == FILE_BYTES
    ended = [line for line in lines if line["event"] == "log lease expired"]
    assert [line["lease"] for line in ended] == ["dead"]
    ask(cleaned, "renew", "dead", code=ResponseCode.QUERY_NOT_FOUND)


def test_a_lease_by_queues_retains_from_their_first_message() -> None:
    cleaned = Cleaned(config=DAILY)
    places = {
        (each.queue_id, each.queue_offset): each.physical_offset for each in cleaned.made.records()
    }
    cleaned.made.system.advance(45_000)  # the checkpoint vouches for the queues' files

    def taken(*queues: tuple[int, int]) -> int:
        wanted = [LeasedQueue("Topic", queue_id, first) for queue_id, first in queues]
        granted = ask(cleaned, "take", queues=wanted)
        assert granted is not None
        return granted.offset

    assert taken((0, 20), (1, 17)) == places[1, 17]
    assert taken((0, 20), (1, 23), (9, 0)) == places[0, 20]
    assert taken((0, 999)) == cleaned.made.broker.store.checkpoint.durable_offset
    assert taken() > places[0, 49]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"action": "keep"}, "action is keep: it may be take, renew or release"),
        ({"action": "take"}, "the body is missing"),
        ({"action": "take", "lease": "", "offset": 0}, "1 to 64 printable characters"),
    ],
)
def test_an_invalid_lease_request_is_answered_with_an_error(
    fields: dict[str, Any], words: str
) -> None:
    cleaned = Cleaned(4)
    header = replace(LeaseHeader("take", "a"), **fields)
    answer = cleaned.made.ask(RemotingCommand(RequestCode.LEASE_LOG, header.encode()))
    assert answer.code == ResponseCode.SYSTEM_ERROR and words in (answer.remark or "")


def test_a_lease_file_retains_files_until_its_reader_ends() -> None:
    cleaned = Cleaned(config=DAILY)
    cleaned.disk.now_ms = START_MS
    lease = FileLease.acquire(cleaned.disk, CONFIG.root, "job-1", "traffic", FILE_BYTES)
    assert lease is not None
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) == FILE_BYTES
    assert "lease job-1 of traffic" in status(cleaned)["oldLogFilesStayFor"]
    lease._file.close()  # as the kernel does when a process ends
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) > FILE_BYTES


def test_operators_see_leases_and_why_old_files_are_kept() -> None:
    cleaned = Cleaned(config=DAILY)
    assert (status(cleaned)["logLeases"], status(cleaned)["oldLogFilesStayFor"]) == ("0", "")
    ask(cleaned, "take", offset=7, ttl_ms=LEASE_TTL_MS_MAX)
    assert status(cleaned)["logLease_L1"].startswith("audit of X, from offset 7, ")
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    assert status(cleaned)["oldLogFilesStayFor"] == "lease L1 of audit of X"
    told = [line for line in lines if line["event"] == "old log files retained"]
    assert [line["needed_by"] for line in told] == ["lease L1 of audit of X"]


def test_a_request_and_a_full_disk_override_a_lease_and_name_it() -> None:
    cleaned = Cleaned()
    ask(cleaned, "take", offset=0, ttl_ms=LEASE_TTL_MS_MAX)
    with capture_logs() as lines:
        cleaned.delete()
    lost = [line for line in lines if line["event"] == "log file deleted under a lease"]
    gone = [line for line in lines if line["event"] == "log file deleted"]
    assert len(lost) == len(gone) > 3
    assert {line["loser"] for line in lost} == {"lease L1 of audit of X"}
    cleaned = Cleaned(age_hours=1)
    ask(cleaned, "take", offset=0, ttl_ms=LEASE_TTL_MS_MAX)
    cleaned.disk.usage = 0.86
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    lost = [line for line in lines if line["event"] == "log file deleted under a lease"]
    assert {line["reason"] for line in lost} == {"the disk is full"} and first_offset(cleaned)


def test_a_lease_granted_during_a_round_retains_the_remaining_files() -> None:
    cleaned = Cleaned(config=DAILY)
    log = cleaned.made.broker.store.commit_log
    cleaned.made.system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    ask(cleaned, "take", offset=0, ttl_ms=LEASE_TTL_MS_MAX)
    begin = log.min_offset()
    cleaned.made.system.advance(3 * CLEAN_MS)
    assert log.min_offset() == begin


def test_after_a_restart_readers_can_renew_leases_before_any_deletion() -> None:
    cleaned = Cleaned(config=DAILY)
    ask(cleaned, "take", offset=0, ttl_ms=60_000)
    cleaned.made.crash()
    cleaned.made.start()
    cleaned.made.system.advance(FIRST_ROUND_MS // 3)
    ask(cleaned, "renew", code=ResponseCode.QUERY_NOT_FOUND)
    ask(cleaned, "take", offset=FILE_BYTES, ttl_ms=LEASE_TTL_MS_MAX)
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) == FILE_BYTES


def test_with_the_archive_policy_a_request_deletes_no_unarchived_file() -> None:
    cleaned = Cleaned(config=WITH_ARCHIVE)
    archive_up_to(cleaned, 2 * FILE_BYTES + 3000)
    with capture_logs() as lines:
        cleaned.delete()
    assert first_offset(cleaned) == 2 * FILE_BYTES
    told = [line["needed_by"] for line in lines if line["event"] == "old log files retained"]
    assert len(told) == 1 and "the archive /archive has no message" in told[0]
    archive_up_to(cleaned, 4 * FILE_BYTES, run=2)
    cleaned.delete()
    assert first_offset(cleaned) == 4 * FILE_BYTES


def test_delayed_and_half_messages_do_not_retain_a_file() -> None:
    cleaned = Cleaned(12, config=WITH_ARCHIVE)
    made = cleaned.made
    for _ in range(60):
        made.send(BODY, properties="DELAY\x0118")
    for _ in range(60):
        made.send(BODY, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u", sys_flag=4)
    made.system.advance(20_000)
    topics = {each.topic for each in made.records()}
    assert topics == {"Topic", SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"}
    archive_up_to(cleaned, FILE_BYTES)  # all there is of Topic
    last = max(each.physical_offset for each in made.records() if each.topic == "Topic")
    assert last < FILE_BYTES
    cleaned.delete()
    assert first_offset(cleaned) >= 10 * FILE_BYTES
    assert status(cleaned)["oldLogFilesStayFor"] == ""


def test_a_missing_archive_retains_everything_until_it_returns() -> None:
    cleaned = Cleaned(config=replace(WITH_ARCHIVE, delete_when=f"{NOW:02}"))
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    told = [line["needed_by"] for line in lines if line["event"] == "old log files retained"]
    assert told == ["there is no archive at /archive"]
    assert first_offset(cleaned) == 0
    archive_up_to(cleaned, 1 << 40)
    cleaned.made.system.advance(LATER_MS)
    assert first_offset(cleaned) > 3 * FILE_BYTES
    assert status(cleaned)["oldLogFilesStayFor"] == ""


def test_the_reason_for_keeping_an_old_file_is_logged_on_change_and_daily() -> None:
    cleaned, clock = Cleaned(20), ManualClock()
    store = cleaned.made.broker.store
    keeping = RetentionHolds(store, cleaned.disk, clock, SnapshotRef(KeepingReport()))

    def told(*whys: str) -> int:
        kept_for = tuple(RetentionHold(0, why, is_lease=False) for why in whys)
        with capture_logs() as lines:
            keeping.tell(Decision((), store.commit_log.queue.files[0], kept_for))
        return len(lines)

    assert [told("gone"), told("gone"), told("gone", "a lease"), told("gone")] == [1, 0, 1, 1]
    clock.advance(24 * HOUR_MS - 1)
    assert told("gone") == 0
    clock.advance(1)
    assert told("gone") == 1


def test_a_full_disk_overrides_the_archive_policy_and_logs_the_loss() -> None:
    cleaned = Cleaned(config=WITH_ARCHIVE)
    records = cleaned.made.records()
    archive_up_to(cleaned, FILE_BYTES + 5000)
    cleaned.disk.usage = 0.86
    with capture_logs() as lines:
        cleaned.made.system.advance(LATER_MS)
    log = cleaned.made.broker.store.commit_log
    lost = [line for line in lines if line["event"] == "unarchived log file deleted"]
    gone = [line["file"] for line in lines if line["event"] == "log file deleted"]
    assert [line["file"] for line in lost] == gone[1:]
    assert sum(line["messages"] for line in lost) == sum(
        FILE_BYTES + 5000 <= each.physical_offset < log.min_offset() for each in records
    )
    assert all(line["queues"][0].startswith("Topic ") for line in lost)


def test_an_unchanged_archive_is_not_read_again() -> None:
    cleaned = Cleaned(config=replace(WITH_ARCHIVE, delete_when=f"{NOW:02}"))
    archive_up_to(cleaned, FILE_BYTES)
    cleaned.made.system.advance(LATER_MS)
    opened: list[str] = []
    open_file = cleaned.disk.open

    def counting(path: str, create: bool = False, *, read_only: bool = False) -> Any:
        opened.append(path)
        return open_file(path, create, read_only=read_only)

    cleaned.disk.open = counting  # type: ignore[method-assign]
    cleaned.made.system.advance(5 * CLEAN_MS)
    assert [path for path in opened if "/consumequeue/" in path or ARCHIVE in path] == []


class Trial:
    """A broker with files of many ages, leases of both kinds and an archive, all at random."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.with_policy = random.random() < 0.7
        self.is_hour, self.is_requested = random.random() < 0.4, random.random() < 0.4
        self.cleaned = cleaned = Cleaned(0, config=self._config())
        cleaned.disk.now_ms = START_MS - 90 * HOUR_MS
        for _ in range(random.randrange(40, 160)):
            delay = {"properties": "DELAY\x0118"} if random.random() < 0.3 else {}
            cleaned.made.send(BODY, queue_id=random.randrange(2), **delay)
            cleaned.disk.now_ms += random.randrange(HOUR_MS)
        cleaned.made.system.advance(20_000)
        cleaned.disk.now_ms = START_MS
        self.records = cleaned.made.records()
        self.files = cleaned.made.broker.store.commit_log.queue.files
        self.old = {
            file.first_offset
            for file in self.files
            if cleaned.disk.modified_ms(file.path) + 72 * HOUR_MS <= START_MS
        }
        self.leased = [self._lease(number) for number in range(random.randrange(3))]
        self.lacking = self._archive() if self.with_policy else []
        cleaned.disk.usage = random.choice((0.5, 0.8, 0.87))

    def _config(self) -> StoreConfig:
        hour = NOW if self.is_hour else (NOW + 5) % 24
        archive = ARCHIVE if self.with_policy else ""
        return replace(CONFIG, delete_when=f"{hour:02}", retention_archive_dir=archive)

    def _lease(self, number: int) -> int:
        offset = self.random.randrange(self.files[-1].end_offset)
        if self.random.random() < 0.5:
            ask(self.cleaned, "take", str(number), offset=offset, ttl_ms=LEASE_TTL_MS_MAX)
        else:
            assert FileLease.acquire(self.cleaned.disk, CONFIG.root, str(number), "job", offset)
        return offset

    def _archive(self) -> list[int]:
        """Writes one; returns the places of the messages that it lacks."""
        ends: dict[tuple[str, int], LastMessage] = {}
        lacking: list[int] = []
        cuts = {queue_id: self.random.randrange(-1, 80) for queue_id in range(2)}
        for each in self.records:
            if each.topic == SCHEDULE_TOPIC:
                continue
            if each.queue_offset <= cuts[each.queue_id]:
                ends[each.topic, each.queue_id] = last_of(each)
            else:
                lacking.append(each.physical_offset)
        if self.random.random() < 0.1:
            return [0]  # it is not there: nothing is archived
        write_run(self.cleaned.disk, ARCHIVE, 1, ends)
        return lacking

    def expected_begin(self) -> int:
        """Return the min offset after all permitted deletions, by the documented rules."""
        usage = self.cleaned.disk.usage or 0
        by_age = self.is_hour or self.is_requested or usage > 0.75
        log_end = self.cleaned.made.broker.store.commit_log.end_offset
        for file in self.files[:-1]:
            if file.end_offset > log_end:
                return file.first_offset  # the next one is prepared already
            is_leased = any(offset < file.end_offset for offset in self.leased)
            is_lacking = any(place < file.end_offset for place in self.lacking)
            goes = usage > 0.85
            if file.first_offset in self.old and by_age and not is_lacking:
                goes = goes or not is_leased or self.is_requested
            if not goes:
                return file.first_offset
        return self.files[-1].first_offset


@pytest.mark.trial(short=2, long=300)
def test_only_files_without_a_hold_are_deleted(seed: int) -> None:
    trial = Trial(seed)
    made = trial.cleaned.made
    if trial.is_requested:
        assert trial.cleaned.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    made.system.advance(FIRST_ROUND_MS + 15 * CLEAN_MS)
    assert made.broker.store.commit_log.min_offset() == trial.expected_begin()
