"""Worker processes read the commit log ahead; without them it is read all the same."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from actors.dispatching.part_pool import PartPool, open_parts
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.log.reader import LogReader
from storage.message_store import MessageStore
from storage.recovery.log_chunks import PartOrder, PartReader, PartsHere, ReadPart
from tests.support.clock import ManualClock
from tests.support.puts import HOST, append, put

RECORDS = 3000
PART_BYTES = 64 << 10


class SmallPool(PartPool[ReadPart]):
    """Two processes for a small log; the first of them may be dead from a part on."""

    def __init__(self, order: PartOrder, reader: LogReader, killed_at: int = -1) -> None:
        order = replace(order, part_bytes=PART_BYTES)
        super().__init__(order, PartReader, 2, PartsHere(order, reader), here_bytes=0)
        self.killed_at = killed_at
        self.given: list[ReadPart | None] = []

    def at(self, offset: int) -> ReadPart | None:
        if len(self.given) == self.killed_at:
            for worker in self._workers:
                worker.kill()
        self.given.append(super().at(offset))
        return self.given[-1]


def filled(root: Path) -> StoreConfig:
    """The store of a broker that was killed before its queues were written."""
    config = StoreConfig(root=str(root), commit_log_file_bytes=1 << 20)
    store = MessageStore(config, RealDisk(), ManualClock())
    store.open()
    store.commit_log.store_host = HOST
    for number in range(RECORDS):
        properties = f"UNIQ_KEY\x01{number:08d}".encode()
        record = put(
            bytes(200), queue_id=number % 4, queue_offset=number // 4, properties=properties
        )
        append(store.commit_log, [record], number)
    store.commit_log.sync(store.commit_log.end_offset)
    store.abandon()
    return config


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [-1, 4])
def test_a_log_read_by_parallel_workers_has_all_units(tmp_path: Path, killed_at: int) -> None:
    config = filled(tmp_path)
    pools: list[SmallPool] = []

    def opened(order: PartOrder, reader: LogReader) -> SmallPool:
        pools.append(SmallPool(order, reader, killed_at))
        return pools[-1]

    store = MessageStore(config, RealDisk(), ManualClock(), opened)
    report = store.open()
    assert (report.record_count, report.dispatched_count, report.gaps) == (RECORDS, RECORDS, [])
    assert [queue.max_offset for queue in store.consume_queues] == [RECORDS // 4] * 4
    store.abandon()
    assert len(pools) == 1
    found = [part for part in pools[0].given if part is not None]
    assert sum(part.record_count for part in found) > RECORDS * 3 // 4
    assert not pools[0]._workers, "they are gone when the store is open"


def test_without_worker_processes_the_log_is_read_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = filled(tmp_path)
    asked: list[object] = []

    def refused(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("actors.dispatching.part_pool.Popen", refused)
    store = MessageStore(config, RealDisk(), ManualClock(), SmallPool)
    report = store.open()
    assert (report.record_count, report.dispatched_count, report.gaps) == (RECORDS, RECORDS, [])
    store.abandon()
    assert len(asked) == 1


def test_a_short_log_is_read_in_process(tmp_path: Path) -> None:
    """The test would fail if it started a process: it is not marked `slow`."""
    config = filled(tmp_path)
    store = MessageStore(config, RealDisk(), ManualClock(), open_parts)
    assert store.open().record_count == RECORDS
    store.abandon()
