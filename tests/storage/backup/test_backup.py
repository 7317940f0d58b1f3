"""Tests of storage/backup/: what a copy has that was made while the store was written to.

The disk of the copy is one that forgets; the broker's part is played between two reads of a file.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.message import RecordHead
from storage.backup import run_files
from storage.backup.backup import BackupReport, StoreBackup
from storage.backup.record import BackupFolder
from storage.backup.restore import RestoreReport, StoreRestore
from storage.checking.store_check import StoreCheck
from storage.config import StoreConfig
from storage.errors import (
    DiskFull,
    NewerStore,
    StoreError,
    StoreLocked,
    UnfinishedCopy,
    WrongSetting,
)
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile, file_name
from storage.log.reader import NamedLogReader, walk
from tests.support.clock import ManualClock
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

COPY = replace(CONFIG, root="/copy", commit_log_dir="/copy/commitlog")
NEW = replace(CONFIG, root="/new", commit_log_dir="/new/commitlog")


class Killed(Exception):
    """The process that copies."""


class Case:
    """A store in use, and the folder of its copy."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.small = SmallStore()
        self.disk = disk or FakeDisk()
        self.paced = 0

    def backup(self, pace: Callable[[int], None] = lambda _: None) -> BackupReport:
        folder = BackupFolder(self.disk, "/copy")
        clock = ManualClock(self.small.clock.now_ms())
        run = StoreBackup(CONFIG, self.small.disk, folder, clock, pace=pace)
        return run.run()

    def restore(self) -> RestoreReport:
        return StoreRestore(self.disk, "/copy", NEW).run()

    def dies_at(self, number: int) -> Callable[[int], None]:
        """Ends the run before so many chunks were copied."""
        left = iter(range(number))

        def pace(_: int) -> None:
            if next(left, None) is None:
                raise Killed

        return pace

    def sends(self, count: int, times: int) -> Callable[[int], None]:
        """The broker stores messages between the chunks."""
        left = iter(range(times))

        def pace(_: int) -> None:
            self.paced += 1
            if next(left, None) is not None:
                self.small.send(count)

        return pace

    def offsets(self) -> list[int]:
        """Return the offsets of the records in the store."""
        return [head.physical_offset for head in self.small.log.walk(0)]


def opened(disk: FakeDisk, config: StoreConfig = COPY) -> SmallStore:
    return SmallStore(disk, config=config)


def offsets_in(store: SmallStore) -> list[int]:
    return [head.physical_offset for head in store.log.walk(store.log.min_offset())]


def log_of(disk: Disk) -> list[int]:
    """Return the offsets of all whole records in the copy."""
    reader = NamedLogReader(disk, COPY, 1 << 40)
    found = walk(reader, min(reader.firsts()), 1 << 40)
    return [head.physical_offset for head in found if isinstance(head, RecordHead)]


@pytest.mark.trial(short=12, long=400)
def test_a_copy_made_under_load_holds_all_messages_acknowledged_before(
    seed: int,
) -> None:
    case = Case()
    case.small.send(20 + seed % 90)
    if seed % 3:
        case.small.store.flush()
    case.small.send(seed % 7)
    before = case.offsets()
    report = case.backup(case.sends(1 + seed % 5, 10))
    assert case.paced
    wrong = [each for each in StoreCheck(case.disk, COPY).run().findings if each.is_wrong]
    assert all("topics.json" in each.text for each in wrong), wrong  # which no broker has made
    copy = opened(case.disk)
    found = offsets_in(copy)
    assert found[: len(before)] == before
    assert found == case.offsets()[: len(found)] and copy.log.end_offset == report.log_end
    units = case.small.units()
    for queue, own in copy.units().items():
        assert own == units[queue][: len(own)]
    assert sum(map(len, copy.units().values())) == len(found)
    assert copy.found_by_key() == len(found)


@pytest.mark.trial(short=10, long=300)
def test_a_killed_backup_is_marked_unfinished_and_completed_by_the_next_run(
    seed: int,
) -> None:
    case = Case()
    case.small.send(100)
    has_one = seed % 2
    if has_one:
        case.backup()
        before = log_of(case.disk)
        case.small.send(60)
    try:
        case.backup(case.dies_at(seed // 2 % 8))
    except Killed:
        with pytest.raises(UnfinishedCopy, match="run `troupemq store backup`"):
            opened(case.disk)
        if has_one:
            assert case.restore().was_interrupted
            assert offsets_in(opened(case.disk, NEW)) == before
        else:
            with pytest.raises(StoreError, match="not finished"):
                case.restore()
    case.disk = case.disk.killed()
    case.backup()
    assert offsets_in(opened(case.disk)) == case.offsets()


@pytest.mark.trial(short=6, long=200)
def test_a_finished_copy_survives_a_power_cut(seed: int) -> None:
    case = Case()
    case.small.send(50)
    case.backup()
    case.small.send(40)
    case.backup()
    lost = case.disk.crashed(seed)
    assert offsets_in(opened(lost)) == case.offsets()


def test_a_second_run_copies_only_new_data() -> None:
    case = Case()
    case.small.send(400)
    case.small.store.flush()
    case.small.clock.advance(10_000)
    first = case.backup()
    assert first.copied_bytes > 40_000
    case.small.send(2)
    case.small.clock.advance(10_000)
    second = case.backup()
    assert second.copied_bytes < 10_000
    assert second.log_end == case.small.log.end_offset
    assert offsets_in(opened(case.disk)) == case.offsets()


def test_files_deleted_during_the_copy_are_reported_and_leave_no_hole() -> None:
    case = Case()
    case.small.send(300)
    files = case.small.log.queue.files
    assert len(files) > 4
    gone: list[MappedFile] = []

    def delete(_: int) -> None:
        if not gone:
            gone.extend(case.small.log.queue.drop_below(files[3].first_offset))
            for file in gone:
                case.small.disk.unlink(file.path)

    report = case.backup(delete)
    assert report.log_start == files[3].first_offset
    assert log_of(case.disk) == [
        head.physical_offset for head in case.small.log.walk(files[3].first_offset)
    ]
    assert opened(case.disk).log.min_offset() == files[3].first_offset


def test_files_are_kept_by_a_lease_until_they_are_copied() -> None:
    case = Case()
    case.small.send(100)
    leases = f"{CONFIG.root}/troupemq/leases"
    case.small.disk.make_dirs(leases)
    seen: list[str] = []
    case.backup(lambda _: seen.extend(case.small.disk.listdir(leases)))
    assert seen and seen[0].startswith("backup-") and not case.small.disk.listdir(leases)


def test_offsets_are_copied_before_the_log_end_is_fixed_and_topics_after() -> None:
    case = Case()
    case.small.send(20)
    disk = case.small.disk
    disk.make_dirs("/store/config")

    def write(name: str, text: str) -> None:
        file = disk.open(f"/store/config/{name}", create=True)
        file.set_size(0)
        file.pwrite(text.encode(), 0)
        file.close()

    def pace(_: int) -> None:
        for name in ("consumerOffset.json", "topics.json"):
            write(name, '{"now":"later"}')

    for name in ("consumerOffset.json", "topics.json", "topics.json.bak", "odd.tmp"):
        write(name, '{"now":"before"}')
    case.backup(pace)
    found = {
        name: case.disk.read_bytes(f"/copy/config/{name}")
        for name in case.disk.listdir("/copy/config")
    }
    assert found == {
        "consumerOffset.json": b'{"now":"before"}',
        "topics.json": b'{"now":"later"}',
        "topics.json.bak": b'{"now":"before"}',
    }


def test_a_full_disk_ends_the_run_with_an_error_and_leaves_the_store_unchanged() -> None:
    case = Case(FakeDisk(capacity_bytes=30_000))
    case.small.send(400)
    before = case.offsets()
    with pytest.raises(DiskFull, match=r"the copy takes .* more, and .* are free in /copy"):
        case.backup()
    case.disk.capacity_bytes = 1 << 30
    case.backup()
    case.small.send(400)
    case.disk.capacity_bytes = case.disk.used_bytes() + 20_000
    with pytest.raises(DiskFull, match="make room"):
        case.backup()
    case.disk.capacity_bytes = None
    assert offsets_in(opened(case.disk)) == before, "it is what it was"


def test_a_disk_that_fills_up_mid_run_is_reported_and_the_next_run_continues() -> None:
    case = Case()
    case.small.send(200)

    def fill(_: int) -> None:
        case.disk.capacity_bytes = 1

    with pytest.raises(DiskFull):
        case.backup(fill)
    case.disk.capacity_bytes = None
    with pytest.raises(UnfinishedCopy):
        opened(case.disk)
    case.backup()
    assert offsets_in(opened(case.disk)) == case.offsets()


def test_a_copy_of_another_log_is_refused_and_left_unchanged() -> None:
    case = Case()
    case.small.send(30)
    case.backup()
    case.small = SmallStore(clock=ManualClock(77_000))
    case.small.send(50)
    with pytest.raises(StoreError, match="is a copy of another log"):
        case.backup()


def test_unsuitable_target_folders_are_refused() -> None:
    case = Case()
    case.small.send(3)
    case.disk.make_dirs("/copy/photos")
    with pytest.raises(StoreError, match="neither empty nor a copy"):
        case.backup()
    case = Case()
    folder = BackupFolder(case.small.disk, "/store/copy")
    with pytest.raises(StoreError, match="inside the store itself"):
        StoreBackup(CONFIG, case.small.disk, folder, ManualClock()).run()


def test_a_copy_that_a_broker_has_opened_is_refused_as_target() -> None:
    case = Case()
    case.small.send(3)
    case.backup()
    opened(case.disk).store.close()
    with pytest.raises(StoreError, match="a broker has been started on the copy"):
        case.backup()


def test_two_runs_at_a_time_are_refused() -> None:
    case = Case()
    case.small.send(3)
    BackupFolder(case.disk, "/copy").take()
    with pytest.raises(StoreLocked, match="another process copies"):
        case.backup()


def test_a_store_of_a_later_version_is_not_copied() -> None:
    case = Case()
    path = f"{CONFIG.root}/troupemq/format.json"
    case.small.disk.unlink(path)
    file = case.small.disk.open(path, create=True)
    file.pwrite(b'{"format": 9}\n', 0)
    with pytest.raises(NewerStore):
        case.backup()


def test_a_store_without_its_commit_log_is_not_copied() -> None:
    """A backup made an empty copy and ended with exit code 0."""
    case = Case()
    case.small.send(3)
    case.small.store.flush()
    for path in case.small.disk.listdir("/store/commitlog"):
        case.small.disk.unlink(f"/store/commitlog/{path}")
    with pytest.raises(WrongSetting, match="has no commit log"):
        case.backup()
    assert not case.disk.exists("/copy")


@pytest.mark.parametrize("factor", [0.5, 2])
def test_log_files_of_another_size_than_the_setting_are_not_copied_in_part(factor: float) -> None:
    """With half the size, 323 of 519 messages were in the copy, and the exit code was 0."""
    case = Case()
    case.small.send(400)
    case.small.store.flush()
    assert len(case.small.disk.listdir("/store/commitlog")) > 2
    wrong = replace(CONFIG, commit_log_file_bytes=int(CONFIG.commit_log_file_bytes * factor))
    run = StoreBackup(wrong, case.small.disk, BackupFolder(case.disk, "/copy"), ManualClock(0))
    with pytest.raises(StoreError, match="set mappedFileSizeCommitLog to the size of the files"):
        run.run()
    assert not case.disk.exists("/copy")


def test_a_topic_recreated_during_the_run_is_the_new_one_in_the_copy() -> None:
    case = Case()
    case.small.send(40)
    case.small.store.flush()
    began: list[int] = []

    def anew(_: int) -> None:
        if case.disk.exists("/copy/consumequeue/Topic/1/" + file_name(0)) and not began:
            began.append(case.small.log.end_offset)
            queues = case.small.store.consume_queues
            for queue in list(queues):
                queues.take_out(queue, f"/store/gone/{queue.queue_id}")
            case.small._next_offsets.clear()
            case.small.send(6)
            queues.sync_all()

    case.backup(anew)
    assert began
    copy = opened(case.disk)
    assert copy.units() == case.small.units()


def test_full_files_can_be_hard_linked_and_take_no_space() -> None:
    case = Case()
    case.small.send(300)
    shared: list[str] = []

    def share(source: str, target: str) -> bool:
        file = case.disk.open(target, create=True)
        file.pwrite(case.small.disk.read_bytes(source), 0)
        file.close()
        shared.append(target)
        return True

    folder = BackupFolder(case.disk, "/copy")
    run = StoreBackup(CONFIG, case.small.disk, folder, ManualClock(), share=share)
    report = run.run()
    assert report.shared_bytes == len(shared) * CONFIG.commit_log_file_bytes > 0
    assert offsets_in(opened(case.disk)) == case.offsets()


def test_additional_files_are_readable_by_their_owner_only() -> None:
    case = Case()
    case.small.send(3)
    disk = case.small.disk
    disk.make_dirs("/etc/acl")
    for path in ("/etc/broker.conf", "/etc/acl/plain_acl.yml"):
        file = disk.open(path, create=True)
        file.pwrite(path.encode(), 0)
        file.close()
    folder = BackupFolder(case.disk, "/copy")
    also = ["/etc/broker.conf", "/etc/acl"]
    StoreBackup(CONFIG, disk, folder, ManualClock(), also=also).run()
    assert case.disk.read_bytes("/copy/also/acl/plain_acl.yml") == b"/etc/acl/plain_acl.yml"
    assert case.disk.access_of("/copy/also/broker.conf") == "private"
    case.restore()
    assert not case.disk.exists("/new/also")


def test_recorded_files_are_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_NOTE_FILES", 1)
    case, whole = Case(), Case()
    case.small.send(400)
    whole.small = case.small
    with pytest.raises(Killed):
        case.backup(case.dies_at(5))
    assert case.backup().copied_bytes < whole.backup().copied_bytes


def test_a_restore_is_refused_over_a_store_and_restarts_after_an_interruption() -> None:
    case = Case()
    case.small.send(100)
    case.backup()
    with pytest.raises(Killed):
        StoreRestore(case.disk, "/copy", NEW, case.dies_at(2)).run()
    with pytest.raises(UnfinishedCopy):
        opened(case.disk, NEW)
    report = case.restore()
    assert report.log_end == case.small.log.end_offset and not report.was_interrupted
    store = opened(case.disk, NEW)
    assert offsets_in(store) == case.offsets()
    assert not store.report.clean
    store.store.close()
    with pytest.raises(StoreError, match="/new has a store"):
        case.restore()
    with pytest.raises(StoreError, match="is not a copy"):
        StoreRestore(case.disk, "/elsewhere", NEW).run()
