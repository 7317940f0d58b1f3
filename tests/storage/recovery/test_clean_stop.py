"""Record of a clean stop, and when the next start trusts it."""

from collections.abc import Callable

import pytest

from storage.recovery.clean_stop import read_clean_stop
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

PATH = CONFIG.clean_stop_path
LOG = "/store/commitlog/" + "0" * 20


def stopped() -> SmallStore:
    store = SmallStore()
    store.send(30)
    store.store.close()
    return store


def test_a_clean_start_reads_no_record() -> None:
    first = stopped()
    disk = first.disk
    disk.open(LOG).pwrite(b"\xff", 4)  # The first record's magic: a scan would see it.
    second = SmallStore(disk)
    assert second.report.known and not second.report.gaps
    assert second.report.record_count == 0
    assert second.log.end_offset == first.log.end_offset
    assert second.log.last_store_timestamp == first.log.last_store_timestamp
    assert {queue.max_offset for queue in second.store.consume_queues} == {15}
    assert second.store.lagging.behind == set()


def test_the_record_of_a_clean_stop_is_valid_for_one_start() -> None:
    disk = stopped().disk
    assert disk.exists(PATH)
    second = SmallStore(disk)
    assert not disk.exists(PATH)
    assert not second.killed().report.known


def changed_timestamp(disk: FakeDisk) -> None:
    disk.open("/store/checkpoint").pwrite(bytes(7) + b"\1", 0)


def grown(disk: FakeDisk) -> None:
    stop = read_clean_stop(CONFIG, disk)
    assert stop is not None
    disk.open(LOG).pwrite(b"\1", stop.end_offset + 3)


def flipped(disk: FakeDisk) -> None:
    (byte,) = disk.open(PATH).pread(1, 20)
    disk.open(PATH).pwrite(bytes((byte ^ 1,)), 20)


def cut(disk: FakeDisk) -> None:
    disk.open(PATH).set_size(40)


def emptied(disk: FakeDisk) -> None:
    disk.open(PATH).set_size(0)


@pytest.mark.parametrize("change", [changed_timestamp, grown, flipped, cut, emptied])
def test_the_record_of_a_clean_stop_is_ignored_after_any_change(
    change: Callable[[FakeDisk], None],
) -> None:
    first = stopped()
    change(first.disk)
    second = SmallStore(first.disk)
    assert second.report.clean and not second.report.known
    assert second.log.end_offset == first.log.end_offset
    assert sum(map(len, second.units().values())) == 30


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("/store/consumequeue", "none found in /store/consumequeue"),
        (
            "/store/consumequeue/Topic/0",
            "queue 0 of 'Topic' is rebuilt from the log: it was missing",
        ),
    ],
)
def test_a_queue_that_differs_from_the_clean_stop_is_rebuilt(what: str, said: str) -> None:
    first = stopped()
    first.disk.remove_tree(what)
    second = SmallStore(first.disk)
    (found,) = second.report.findings
    assert second.report.known and found.text.startswith(said)
    assert sum(map(len, second.units().values())) == 30
    third = second.killed()
    assert sum(map(len, third.units().values())) == 30


def test_a_stop_with_undispatched_records_writes_no_clean_stop_record() -> None:
    store = SmallStore()
    store.send(3)
    store.send(3, dispatch=False)
    store.store.close()
    assert not store.disk.exists(PATH)
