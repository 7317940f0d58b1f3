"""Worker processes read index keys; without them the index gets the same keys."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actors.dispatching import catch_up
from actors.dispatching.catch_up import KeyFeed
from actors.dispatching.part_pool import PartPool
from storage.config import StoreConfig
from storage.dispatching.dispatch import Follower
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.index.key_columns import KeyPart
from storage.log.reader import LogReader
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_chunks import PartOrder
from storage.recovery.part_worker import KeyPartReader, KeyPartsHere
from tests.storage.dispatching.test_followers import Noting
from tests.support.clock import ManualClock
from tests.support.puts import HOST, append, put

RECORDS = 3000
PART_BYTES = 32 << 10


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageStore]:
    """One with a log of several files and nothing in its index."""
    monkeypatch.setattr(catch_up, "FAR_BYTES", 64 << 10)
    config = StoreConfig(
        root=str(tmp_path),
        commit_log_file_bytes=256 << 10,
        max_hash_slots=4096,
        max_index_entries=1000,
    )
    made = MessageStore(config, RealDisk(), ManualClock())
    made.open()
    made.commit_log.store_host = HOST
    for number in range(RECORDS):
        properties = f"UNIQ_KEY\x01{number:016d}\x02KEYS\x01order {number}".encode()
        append(made.commit_log, [put(bytes(90), properties=properties)], number)
    yield made
    made.abandon()


def brought_on(store: MessageStore, feed: KeyFeed, others: list[Follower], by_parts: int) -> int:
    """Indexes the log; how many records came in parts, which end after so many parts."""
    index = store.index
    assert index is not None
    position = count = 0
    while position < store.commit_log.end_offset:
        part = feed.at(position, index, others) if by_parts else None
        if part is not None:
            index.dispatch_part(part)
            position, count, by_parts = part.end, count + part.record_count, by_parts - 1
        else:
            read = store.lagging.reader.read(position, 50)
            index.dispatch(read.entries)
            position = read.next_offset
    index.write_out()
    return count


def entries(index: Index | None) -> list[tuple[int, int, int, int]]:
    assert index is not None
    return [entry for file in index.files for entry in file.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [None, 3])
def test_an_index_fed_by_parallel_workers_has_all_keys(
    store: MessageStore, killed_at: int | None
) -> None:
    pools = list[PartPool[KeyPart]]()

    def opened(order: PartOrder, _: LogReader) -> PartPool[KeyPart]:
        made = PartPool(replace(order, part_bytes=PART_BYTES), KeyPartReader, 2, nice=1)
        pools.append(made)
        return made

    feed = KeyFeed(store.commit_log, opened)
    if killed_at is None:
        assert brought_on(store, feed, [], 1 << 30) > RECORDS * 3 // 4
    else:
        assert store.index is not None
        position = 0
        for _ in range(killed_at):
            part = feed.at(position, store.index, [])
            assert part is not None
            store.index.dispatch_part(part)
            position = part.end
        for worker in pools[0]._workers:
            worker.kill()
        brought_on(store, feed, [], 1 << 30)
    feed.close()
    assert len(pools) == 1 and not pools[0]._workers
    found = entries(store.index)
    assert len(found) == 3 * RECORDS
    again = Index(replace(store.config, root=f"{store.config.root}/again"), store.disk, store.clock)
    for read in read_slices(store):
        again.dispatch(read)
    again.write_out()
    assert entries(again) == found
    again.close()


def read_slices(store: MessageStore) -> Iterator[list[DispatchEntry]]:
    position = 0
    while position < store.commit_log.end_offset:
        read = store.lagging.reader.read(position, 50)
        yield read.entries
        position = read.next_offset


def test_records_needed_by_other_targets_are_read_singly(store: MessageStore) -> None:
    heads = list(store.commit_log.walk(0))
    feed = KeyFeed(store.commit_log, KeyPartsHere)
    assert brought_on(store, feed, [Noting("behind", 0)], 1 << 30) == 0
    assert store.index is not None
    store.index.drop_from("")
    border = heads[RECORDS // 2].physical_offset
    in_parts = brought_on(store, feed, [Noting("half behind", border)], 1 << 30)
    assert 0 < in_parts <= RECORDS // 2


def test_a_short_rest_starts_no_worker_process(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "FAR_BYTES", 1 << 30)

    def refused(order: PartOrder, reader: LogReader) -> KeyPartsHere:
        raise AssertionError("a process would have been started")

    assert brought_on(store, KeyFeed(store.commit_log, refused), [], 1 << 30) == 0
