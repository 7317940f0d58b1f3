"""All queues of a store together."""

import errno
from dataclasses import replace

import pytest

from storage.errors import DiskFull, StoreError
from storage.queues.consume_queue import UNIT
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.queue_files import OPEN_FILES_MAX, UNIT_BYTES
from storage.queues.unsynced import sync_files
from tests.storage.derived import RECORD_BYTES, START_MS, config, entry
from troupemq.testing.fake_disk import FakeDisk

PREPARED, COMMIT, ROLLBACK = 4, 8, 12


def reloaded(disk: FakeDisk) -> ConsumeQueues:
    queues = ConsumeQueues(config(), disk)
    queues.load()
    return queues


def test_entries_reach_their_queues() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append([entry(n, queue_id=n % 3, queue_offset=n // 3) for n in range(10)])
    queues.append([entry(10, topic=b"%RETRY%G", queue_offset=0)])
    assert queues.next_offsets() == {("T", 0): 4, ("T", 1): 3, ("T", 2): 3, ("%RETRY%G", 0): 1}
    assert queues.max_physical_offset() == 11 * RECORD_BYTES
    assert queues.last_store_timestamp == START_MS + 10_000
    assert len(queues) == 4
    queue = queues.get("T", 1)
    assert queue is not None
    assert queue.unit(2) == (7 * RECORD_BYTES, RECORD_BYTES, 0)
    assert queues.get("T", 3) is None


def test_prepared_and_rolled_back_records_have_no_unit() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append(
        [entry(n, sys_flag=flag) for n, flag in enumerate((COMMIT, PREPARED, ROLLBACK, 0))]
    )
    assert queues.next_offsets() == {("T", 0): 2}


def test_all_units_are_found_after_a_restart() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(n, queue_id=n % 4, queue_offset=n // 4) for n in range(2000)])
    queues.write_out_all()
    again = reloaded(disk)
    assert again.next_offsets() == queues.next_offsets()
    assert again.max_physical_offset() == queues.max_physical_offset()
    assert reloaded(FakeDisk()).max_physical_offset() == -1


def test_dispatching_again_changes_nothing() -> None:
    disk = FakeDisk()
    entries = [entry(n, queue_id=n % 4, queue_offset=n // 4) for n in range(100)]
    queues = ConsumeQueues(config(), disk)
    queues.append(entries)
    queues.write_out_all()
    again = reloaded(disk)
    again.append(entries)
    assert again.next_offsets() == queues.next_offsets()


def test_only_queues_with_new_units_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append([entry(n, queue_id=n % 4, queue_offset=n // 4) for n in range(8)])
    queues.write_out_all()
    queues.append([entry(8, queue_id=0, queue_offset=2)])
    assert [queue.queue_id for queue in queues if queue.written_offset < queue.max_offset] == [0]
    queues.write_out_all()
    assert all(queue.written_offset == queue.max_offset and not queue.dirty for queue in queues)


def test_after_a_full_disk_the_same_entries_can_be_dispatched_again() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    entries = [entry(n, queue_id=n % 4, queue_offset=n // 4) for n in range(40)]
    queues.append(entries)
    disk.fail_next("pwrite", OSError(errno.ENOSPC, "no space"), times=2)
    for _ in range(2):
        with pytest.raises(DiskFull):
            queues.write_out_all()
        queues.append(entries)
    queues.write_out_all()
    assert reloaded(disk).next_offsets() == {("T", n): 10 for n in range(4)}


@pytest.mark.heavy
def test_a_thousand_queues_keep_few_files_open() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(n, queue_id=n, queue_offset=0) for n in range(1000)])
    queues.write_out_all()
    again = reloaded(disk)
    assert again._files.open_count <= OPEN_FILES_MAX
    assert all(queue.units(0, 1) == UNIT.pack(n * 100, 100, 0) for n, queue in enumerate(queues))
    assert queues._files.open_count <= OPEN_FILES_MAX


def test_units_survive_a_power_cut_once_synced() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(n, queue_id=n % 4, queue_offset=n // 4) for n in range(2000)])
    queues.sync_all()
    assert queues.synced_store_timestamp == START_MS + 1999_000
    for seed in range(10):
        again = reloaded(disk.crashed(seed))
        assert again.next_offsets() == queues.next_offsets()


@pytest.mark.trial(short=12, long=1000)
def test_a_power_cut_leaves_a_prefix_that_can_be_completed(seed: int) -> None:
    disk = FakeDisk()
    entries = [entry(n, queue_id=n % 3, queue_offset=n // 3, tags_code=-n) for n in range(3000)]
    queues = ConsumeQueues(config(), disk)
    queues.append(entries[:1000])
    queues.sync_all()
    for start in range(1000, 3000, 100):
        queues.append(entries[start : start + 100])
        queues.write_out_all()
    after = disk.crashed(seed)
    again = reloaded(after)
    again.append(entries[500:])
    again.write_out_all()
    for queue in reloaded(after):
        assert queue.max_offset == 1000
        for offset in range(1000):
            number = offset * 3 + queue.queue_id
            assert queue.unit(offset) == (number * 100, 100, -number)


def test_a_sync_takes_only_queues_with_enough_dirty_pages() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(n, queue_id=0) for n in range(250)])
    queues.append([entry(250, queue_id=1, queue_offset=0)])
    queues.write_out_all()
    taken = queues.unsynced(1)
    assert taken.files.paths == ["/store/consumequeue/T/0/00000000000000000000"]
    assert taken.store_timestamp is None
    sync_files(disk, taken.files)
    queues.mark_synced(taken)
    assert queues.unsynced(1).files.paths == []
    everything = queues.unsynced()
    assert everything.files.paths == ["/store/consumequeue/T/1/00000000000000000000"]
    assert everything.store_timestamp == START_MS + 250_000


def test_units_written_while_a_sync_runs_wait_for_the_next() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append([entry(0)])
    taken = queues.unsynced()
    queues.append([entry(1)])
    queues.write_out_all()
    queues.mark_synced(taken)
    assert len(queues.unsynced().files.paths) == 1


def test_a_removed_queue_leaves_memory_and_disk() -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(0, topic=b"A", queue_offset=0), entry(1, topic=b"B", queue_offset=0)])
    queues.write_out_all()
    queues.append([entry(2, topic=b"A", queue_offset=1)])
    disk.make_dirs("/store/away")
    queue = queues.get("A", 0)
    assert queue is not None
    queues.take_out(queue, "/store/away")
    assert queues.get("A", 0) is None
    queues.write_out_all()
    assert queues.next_offsets() == {("B", 0): 1}
    assert disk.listdir("/store/consumequeue") == ["B"]
    queues.append([entry(3, topic=b"A", queue_offset=0)])
    queues.sync_all()
    assert reloaded(disk).next_offsets() == {("A", 0): 1, ("B", 0): 1}


def test_all_queues_follow_the_min_and_max_offset_of_the_log() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append([entry(n, queue_id=n % 2, queue_offset=n // 2) for n in range(1000)])
    queues.truncate_behind(900 * RECORD_BYTES)
    queues.correct_min_offsets(100 * RECORD_BYTES)
    assert [(queue.min_offset, queue.max_offset) for queue in queues] == [(50, 450)] * 2
    assert [len(queue.trim_before(700 * RECORD_BYTES)) for queue in queues] == [1, 1]
    assert [queue.min_offset for queue in queues] == [350, 350]


@pytest.mark.parametrize("topic", [b"", b"..", b"../../etc", b"a/b", b"a\0b"])
def test_an_invalid_topic_name_is_refused(topic: bytes) -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    with pytest.raises(StoreError, match="cannot name a directory"):
        queues.append([entry(0, topic=topic)])


@pytest.mark.parametrize("number", [-1, -(1 << 63), 1 << 62, (1 << 63) - 1])
def test_a_queue_offset_out_of_range_is_refused_or_stored_at_the_end(number: int) -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    with pytest.raises(StoreError, match=f"is message {number} of queue 0 of topic 'T'"):
        queues.append([entry(0, queue_offset=number)])
    queues.append([entry(1, queue_offset=0), entry(2, queue_offset=number)])
    queues.sync_all()
    assert queues.next_offsets() == {("T", 0): 2}, "at the end, as any number that does not fit"


def test_the_highest_queue_offset_is_stored() -> None:
    disk = FakeDisk()
    last = ((1 << 63) - 1) // UNIT_BYTES
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(0, queue_offset=last), entry(1, queue_offset=last + 1)])
    queues.sync_all()
    assert reloaded(disk).next_offsets() == {("T", 0): last + 2}


def filled(disk: FakeDisk) -> ConsumeQueues:
    """Two files of each of two queues."""
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(n, queue_id=n % 2, queue_offset=n // 2) for n in range(800)])
    queues.sync_all()
    return queues


QUEUE = "/store/consumequeue/T/1"
NAMES = [f"{number * 6000:020d}" for number in range(2)]


def test_a_queue_with_a_misfit_file_is_reported_by_name() -> None:
    disk = FakeDisk()
    filled(disk)
    disk.open(f"{QUEUE}/{NAMES[1]}").set_size(4000)
    again = reloaded(disk)
    assert again.misfits() == {("T", 1): f"{QUEUE}/{NAMES[1]} has 4000 bytes"}
    again.mend()
    assert disk.listdir(QUEUE) == NAMES[:1]
    assert again.next_offsets() == {("T", 0): 400, ("T", 1): 300}


@pytest.mark.parametrize("size", [6020, 12_000, 5980])
def test_a_size_that_contradicts_all_files_is_an_operator_error(size: int) -> None:
    disk = FakeDisk()
    filled(disk)
    settings = replace(config(), consume_queue_file_bytes=size)
    for load in (ConsumeQueues.load, lambda queues: queues.load_known({})):
        with pytest.raises(StoreError, match=f"mappedFileSizeConsumeQueue is {size}"):
            load(ConsumeQueues(settings, disk))


@pytest.mark.parametrize("size", [0, 10, 5980])
def test_one_short_file_alone_is_damaged(size: int) -> None:
    disk = FakeDisk()
    queues = ConsumeQueues(config(), disk)
    queues.append([entry(0)])
    queues.sync_all()
    disk.open(f"/store/consumequeue/T/0/{NAMES[0]}").set_size(size)
    assert reloaded(disk).misfits().keys() == {("T", 0)}


def test_foreign_names_are_left_alone() -> None:
    disk = FakeDisk()
    expected = filled(disk).next_offsets()
    disk.open("/store/consumequeue/file", create=True)
    disk.open("/store/consumequeue/T/7", create=True)
    for name in ("x", "007", "-1", "\u0661"):
        disk.make_dirs(f"/store/consumequeue/T/{name}")
    assert reloaded(disk).next_offsets() == expected


def test_queues_are_reopened_from_the_record_of_a_clean_stop() -> None:
    disk = FakeDisk()
    noted = filled(disk).known()
    again = ConsumeQueues(config(), disk)
    assert again.load_known(noted) == []
    assert again.known() == noted


def test_queues_changed_since_the_clean_stop_are_named() -> None:
    disk = FakeDisk()
    noted = filled(disk).known()
    disk.unlink(f"{QUEUE}/{NAMES[0]}")
    noted["Gone", 3] = (0, 5, 500)
    again = ConsumeQueues(config(), disk)
    assert sorted(again.load_known(noted)) == [("Gone", 3), ("T", 1)]


def test_a_sync_returns_the_durable_physical_offset() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    queues.append([entry(n) for n in range(10)])
    queues.append([entry(10, sys_flag=PREPARED)])
    assert queues.unsynced(1).covered_offset == 0
    taken = queues.unsynced()
    queues.append([entry(11, queue_offset=10)])
    queues.mark_synced(taken)
    assert queues.synced_covered_offset == taken.covered_offset == 11 * RECORD_BYTES
    queues.sync_all()
    assert queues.synced_covered_offset == queues.covered_offset == 12 * RECORD_BYTES


def test_a_repaired_unit_reaches_the_disk_with_the_next_sync() -> None:
    disk = FakeDisk()
    queues = filled(disk)
    queue = queues.get("T", 1)
    assert queue is not None
    queue.repair(5, 1, 2, 3)
    queues.sync_all()
    found = reloaded(disk.crashed(1)).get("T", 1)
    assert found is not None and found.unit(5) == (1, 2, 3)
