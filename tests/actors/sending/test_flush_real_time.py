"""ASYNC_FLUSH: when what is written reaches the disk, and what the checkpoint may say of it."""

import errno
from dataclasses import replace
from random import Random
from struct import unpack
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.retention.messages import SyncSoon
from protocol.codes import ResponseCode
from storage.config import StoreConfig
from storage.errors import SyncFailed
from storage.log.commit_log import CommitLog
from storage.recovery.checkpoint import Checkpoint
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

PAGE_BYTES = 4096
BROKEN = OSError(errno.EIO, "Input/output error")


def broker(seed: int = 4, **settings: Any) -> SimulatedBroker:
    config: StoreConfig = replace(STORE, **settings)
    made = SimulatedBroker(seed, FakeDisk(), store_config=config)
    made.make_topic()
    return made


def disk_of(made: SimulatedBroker) -> FakeDisk:
    assert isinstance(made.disk, FakeDisk)
    return made.disk


def log_of(made: SimulatedBroker) -> CommitLog:
    return made.broker.store.commit_log


def until_flushed(made: SimulatedBroker) -> float:
    """Return the time until everything is synced, ms."""
    log, started_ms = log_of(made), made.clock.monotonic_ms()
    made.system.run_until(lambda: log.flushed_offset == log.end_offset, 60_000)
    return made.clock.monotonic_ms() - started_ms


def saved(made: SimulatedBroker) -> tuple[int, int, int]:
    """The checkpoint as it is in its file."""
    data = made.disk.read_bytes(STORE.checkpoint_path)
    physic_ms, logics_ms, index_ms = unpack(">qqq", data[:24])
    return physic_ms, logics_ms, index_ms


def test_four_dirty_pages_are_flushed_at_the_next_half_second() -> None:
    made = broker()
    made.system.advance(10_000)
    made.send(b"x" * (4 * PAGE_BYTES))
    assert until_flushed(made) == 500
    made.system.advance(200)
    made.send(b"x" * (4 * PAGE_BYTES))
    assert until_flushed(made) == 300


def test_fewer_pages_are_flushed_by_the_thorough_flush_after_ten_seconds() -> None:
    made = broker()
    made.send(b"x" * (4 * PAGE_BYTES))
    until_flushed(made)
    made.send(b"a little")
    for _ in range(19):
        made.system.advance(500)
        assert log_of(made).flushed_offset < log_of(made).end_offset
    made.system.advance(500)
    assert log_of(made).flushed_offset == log_of(made).end_offset


def test_small_writes_add_up_to_four_pages() -> None:
    made = broker()
    while log_of(made).end_offset < 3 * PAGE_BYTES:
        made.send(b"x" * 1000)
    made.system.advance(1000)
    assert log_of(made).flushed_offset == 0
    made.send(b"x" * PAGE_BYTES)
    made.system.advance(500)
    assert log_of(made).flushed_offset == log_of(made).end_offset


def test_an_idle_broker_syncs_nothing_but_its_checkpoint_once_a_minute() -> None:
    made = broker()
    made.send()
    made.system.advance(80_000)
    before = disk_of(made).sync_count
    made.system.advance(180_000)
    assert disk_of(made).sync_count - before == 3


@pytest.mark.parametrize(
    ("settings", "after_ms"),
    [
        ({"flush_interval_ms": 100, "flush_least_pages": 1}, 100),
        ({"flush_least_pages": 0}, 500),
        ({"flush_thorough_interval_ms": 2000}, 2000),
        ({"flush_interval_ms": 3000, "flush_thorough_interval_ms": 1000}, 3000),
    ],
)
def test_the_flush_period_follows_its_settings(settings: dict[str, int], after_ms: float) -> None:
    made = broker(**settings)
    made.send(b"x" * PAGE_BYTES)
    assert until_flushed(made) == after_ms


def test_the_log_is_left_to_group_commit_under_sync_flush() -> None:
    made = broker(flush_disk_type="SYNC_FLUSH")
    made.send()
    flushed = log_of(made).flushed_offset
    before = disk_of(made).sync_count
    made.system.advance(900)
    assert (log_of(made).flushed_offset, disk_of(made).sync_count) == (flushed, before)


def test_a_flush_over_a_roll_syncs_both_files() -> None:
    made = broker()
    for _ in range(15):
        made.send(b"x" * 4000)
    made.system.advance(1000)
    for _ in range(5):
        made.send(b"y" * 4000)
    assert log_of(made).flushed_offset < STORE.commit_log_file_bytes < log_of(made).end_offset
    until_flushed(made)
    lost = disk_of(made).crashed(1)
    for name in lost.listdir(STORE.commit_log_dir):
        path = f"{STORE.commit_log_dir}/{name}"
        assert lost.read_bytes(path) == made.disk.read_bytes(path)


def test_a_failing_disk_is_logged_once_and_sends_are_still_accepted() -> None:
    made = broker()
    disk_of(made).fail_next("sync", BROKEN)
    made.send(b"x" * (4 * PAGE_BYTES))
    with capture_logs() as lines:
        made.system.advance(30_000)
        assert made.send(b"x" * (4 * PAGE_BYTES)).code == ResponseCode.SUCCESS
        made.system.advance(30_000)
    failures = [line for line in lines if line["event"] == "sync of the commit log failed"]
    assert len(failures) == 1
    assert log_of(made).flushed_offset == 0
    made.crash()


# --- the checkpoint


def test_the_checkpoint_follows_the_thorough_flush_of_the_queues() -> None:
    made = broker()
    made.send()
    sent_ms = made.records()[0].store_timestamp
    made.system.advance(59_000)
    assert saved(made) == (0, 0, 0)
    made.system.advance(3000)
    assert saved(made) == (sent_ms, sent_ms, 0)


def vouched(made: SimulatedBroker, checkpoint: Checkpoint, seed: int) -> None:
    """After a power cut now, everything up to the checkpoint's times is still in its file."""
    before, after = made.disk, disk_of(made).crashed(seed)

    def same(path: str, end: int) -> bool:
        return after.exists(path) and after.read_bytes(path)[:end] == before.read_bytes(path)[:end]

    file_bytes = STORE.commit_log_file_bytes
    ends: dict[str, int] = {}
    for record in made.records():
        offset = record.physical_offset
        is_durable = offset < checkpoint.durable_offset
        if record.store_timestamp <= checkpoint.physic_ms or is_durable:
            path = f"{STORE.commit_log_dir}/{offset - offset % file_bytes:020d}"
            ends[path] = offset % file_bytes + record.record_bytes
        if record.store_timestamp <= checkpoint.logics_ms or is_durable:
            position = record.queue_offset * 20
            first = position - position % STORE.consume_queue_file_bytes
            directory = f"{STORE.consume_queue_dir}/{record.topic}/{record.queue_id}"
            ends[f"{directory}/{first:020d}"] = position - first + 20
    assert [path for path, end in ends.items() if not same(path, end)] == []


@pytest.mark.trial(short=2, long=300)
def test_the_checkpoint_covers_only_synced_data(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker(seed, flush_queue_thorough_interval_ms=3000, flush_queue_least_pages=1)
    random, original, saves = Random(seed), Checkpoint.save, []

    def save(checkpoint: Checkpoint) -> None:
        vouched(made, checkpoint, random.randrange(1000))
        saves.append((checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.durable_offset))
        original(checkpoint)

    monkeypatch.setattr(Checkpoint, "save", save)
    for number in range(150):
        made.start_send(b"x" * random.randrange(2000), queue_id=number % 4, properties="KEYS\x01k")
        if random.random() < 0.5:
            made.system.advance(random.choice((1, 50, 400, 2000)))
    made.system.advance(20_000)
    assert len(set(saves)) > 3
    assert saves == sorted(saves)
    assert saves[-1][2] == log_of(made).end_offset


def test_a_failed_queue_flush_leaves_the_checkpoint_unchanged() -> None:
    made = broker(flush_queue_thorough_interval_ms=5000)
    made.send()
    made.system.advance(8000)
    first = saved(made)
    assert first[1] > 0
    made.send()
    made.system.advance(500)
    disk_of(made).fail_next("sync", BROKEN, below="/store/consumequeue")
    failing = made.clock.monotonic_ms()
    with capture_logs() as lines:
        made.system.run_until(lambda: bool(lines), 20_000)
    assert lines[0]["event"] == "sync of the consume queues failed"
    assert saved(made) == first
    assert made.clock.monotonic_ms() > failing
    made.crash()


@pytest.mark.parametrize("ends", ["power cut", "stop and power cut"])
def test_units_of_a_failed_sync_are_rebuilt_by_the_next_start(ends: str) -> None:
    """The next sync succeeded without them, and the checkpoint vouched for them."""
    made = broker(flush_disk_type="SYNC_FLUSH", flush_queue_thorough_interval_ms=5000)
    made.send(b"first")
    made.system.advance(8000)
    disk = disk_of(made)
    disk.fail_next("sync", BROKEN, below="/store/consumequeue")
    with capture_logs() as lines:
        assert made.send(b"second").code == ResponseCode.SUCCESS
        made.system.advance(30_000)
        assert made.send(b"third", queue_id=1).code == ResponseCode.SUCCESS
    failures = [line for line in lines if line["event"] == "sync of the consume queues failed"]
    assert len(failures) == 1
    if ends == "power cut":
        made.crash()
    else:
        with pytest.raises(SyncFailed, match="The next start rebuilds queues and index"):
            made.stop()
    made.disk = disk.crashed(3)
    made.start()
    assert [each.body for each in made.messages()] == [b"first", b"second"]
    assert [each.body for each in made.messages(queue_id=1)] == [b"third"]
    assert made.broker.store.sync_failure == ""


def test_a_disk_without_room_for_queue_units_does_not_end_the_flushing() -> None:
    made = broker(flush_queue_thorough_interval_ms=5000)
    no_space = OSError(errno.ENOSPC, "No space left on device")
    made.send()
    disk_of(made).fail_next("set_size", no_space, times=40)
    made.system.advance(6000)
    assert saved(made)[1] == 0
    made.system.advance(30_000)
    assert saved(made)[1] == made.records()[0].store_timestamp
    assert made.send().code == ResponseCode.SUCCESS
    assert made.system.address("reput").incarnation == 1


def test_a_reput_failure_does_not_end_the_flushing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker(flush_queue_thorough_interval_ms=5000)
    made.send()
    queues, left = made.broker.store.consume_queues, ["a bug"]
    original = queues.unsynced

    def unsynced(least_pages: int = 0) -> Any:
        if left:
            raise KeyError(left.pop())
        return original(least_pages)

    monkeypatch.setattr(queues, "unsynced", unsynced)
    made.system.advance(20_000)
    assert made.system.address("reput").incarnation == 2
    assert saved(made)[1] == made.records()[0].store_timestamp


def test_queues_removed_while_files_are_synced_are_saved_by_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of that round counted for them, too: they came back after a kill for a minute."""
    made = broker(flush_queue_interval_ms=1000, flush_queue_thorough_interval_ms=60_000)
    queues, thorough_ms = made.broker.store.consume_queues, []
    original = queues.unsynced

    def unsynced(least_pages: int = 0) -> Any:
        if least_pages == 0:
            thorough_ms.append(made.clock.monotonic_ms())
            if len(thorough_ms) == 1:
                made.system.address("flush_real_time").tell(SyncSoon())
        return original(least_pages)

    monkeypatch.setattr(queues, "unsynced", unsynced)
    made.system.advance(125_000)
    first_ms, second_ms, third_ms = thorough_ms
    assert (second_ms - first_ms, third_ms - second_ms) == (1000, 60_000)
