"""A process dies, or power is cut, in the middle of a write: the log cut at every byte.

Whatever is left, the store starts, keeps all complete records, and its queues and its index are
byte for byte those of a store into which only these were written.
"""

from collections.abc import Iterator
from functools import cache

import pytest

from storage.config import StoreConfig
from tests.support.clock import ManualClock
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk

CONFIG = StoreConfig(
    root="/store",
    commit_log_file_bytes=2048,
    consume_queue_file_bytes=200,
    max_hash_slots=16,
    max_index_entries=10,
)
TAIL_RECORDS = 3
RECORDS = 40
FIRST_FILE_RECORDS = 17


def a_store(records: int) -> SmallStore:
    store = SmallStore(FakeDisk(), ManualClock(), CONFIG)
    send(store, records)
    return store


def send(store: SmallStore, records: int) -> None:
    """Each at a time of its own."""
    for _ in range(records):
        store.clock.advance(10)
        store.send(1)


def derived(store: SmallStore) -> dict[str, bytes]:
    """Every queue and index file; index files are named by the clock, so by their order here."""
    store.store.catch_up()
    store.store.dispatcher.write_out()
    disk, files = store.disk, dict[str, bytes]()
    for topic in disk.listdir("/store/consumequeue"):
        for queue in disk.listdir(f"/store/consumequeue/{topic}"):
            for name in disk.listdir(f"/store/consumequeue/{topic}/{queue}"):
                path = f"/store/consumequeue/{topic}/{queue}/{name}"
                files[path] = disk.read_bytes(path)
    for number, name in enumerate(disk.listdir("/store/index")):
        files[f"index {number}"] = disk.read_bytes(f"/store/index/{name}")
    return files


@cache
def expected(records: int) -> tuple[int, dict[str, bytes]]:
    store = a_store(records)
    return store.log.end_offset, derived(store)


def cuts(first: int, last: int) -> Iterator[tuple[int, int]]:
    """(how many bytes of the log are left, how many records are complete then)."""
    ends = [head.physical_offset + head.record_bytes for head in a_store(RECORDS).log.walk(0)]
    for left in range(ends[first - 1], ends[last - 1] + 1):
        yield left, sum(end <= left for end in ends)


@cache
def written(records: int, flushed: bool) -> SmallStore:
    """A store of so many records; `flushed`: but for the last ones."""
    first = a_store(records - TAIL_RECORDS)
    if flushed:
        first.store.flush()
    send(first, TAIL_RECORDS)
    return first


def cut_at(left: int, records: int, *, flushed: bool) -> SmallStore:
    """A store of so many records that died with only `left` bytes of its log written."""
    disk = written(records, flushed).disk.killed()
    for name in disk.listdir("/store/commitlog"):
        file = disk.open(f"/store/commitlog/{name}")
        begin = max(0, left - int(name))
        if begin < 2048:
            file.pwrite(bytes(2048 - begin), begin)
    return SmallStore(disk, ManualClock(), CONFIG)


def check(left: int, complete: int, records: int, *, flushed: bool) -> None:
    store = cut_at(left, records, flushed=flushed)
    heads = list(store.log.walk(0))
    assert len(heads) == complete
    assert not store.report.gaps
    end_offset = heads[-1].physical_offset + heads[-1].record_bytes
    assert store.log.end_offset in (end_offset, -(-end_offset // 2048) * 2048)
    assert derived(store) == expected(complete)[1]
    assert all(
        file.is_zero_from(max(0, store.log.end_offset - file.first_offset))
        for file in store.log.queue.files
    )


@pytest.mark.heavy
@pytest.mark.parametrize("flushed", [False, True])
def test_recovery_truncates_the_last_records_cut_at_any_byte(flushed: bool) -> None:
    for left, complete in cuts(RECORDS - TAIL_RECORDS, RECORDS):
        check(left, complete, RECORDS, flushed=flushed)


@pytest.mark.heavy
@pytest.mark.parametrize("flushed", [False, True])
def test_recovery_truncates_a_record_at_a_roll_cut_at_any_byte(flushed: bool) -> None:
    records = FIRST_FILE_RECORDS + 1
    ends = [head.physical_offset + head.record_bytes for head in a_store(records).log.walk(0)]
    assert ends[-1] > 2048 > ends[-2], "the last record is the first of its file"
    for left, complete in cuts(FIRST_FILE_RECORDS - 1, records):
        check(left, complete, records, flushed=flushed)
