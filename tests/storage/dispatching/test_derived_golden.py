"""Queues and index beside the original's: read as it reads them, made again byte by byte."""

from collections import Counter
from pathlib import Path

import pytest

from storage.dispatching.dispatch import Dispatcher, entry_of
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.index.key_hash import TopicHashes
from storage.queues.consume_queue import UNIT
from storage.queues.consume_queues import ConsumeQueues
from tests.storage.derived import DELAY_LEVELS_MS, config, golden_heads
from tests.support.by_hand import BY_HAND
from tests.support.clock import ManualClock
from tests.support.golden import manifest, store

UNTIL_FOREVER = 1 << 62


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "slave", "crashed-recovered", BY_HAND])
def test_every_unit_is_read_as_by_the_original(name: str, tmp_path: Path) -> None:
    queues = ConsumeQueues(config(str(store(name, tmp_path))), RealDisk())
    queues.load()
    found = {}
    for queue in queues:
        units: list[tuple[int, ...]] = []
        while len(units) < queue.max_offset:
            units += list(UNIT.iter_unpack(queue.units(len(units), 1000)))
        found[f"{queue.topic}/{queue.queue_id}"] = [[i, *unit] for i, unit in enumerate(units)]
    queues.close()
    assert found == manifest(name)["consumeQueues"]


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "slave", BY_HAND])
def test_every_index_header_and_entry_follows_from_the_records(name: str, tmp_path: Path) -> None:
    root = store(name, tmp_path)
    index = Index(config(str(root)), RealDisk(), ManualClock())
    index.load(clean=True, safe_timestamp=0)
    said = manifest(name)["indexFiles"]
    assert [
        (
            file.path.rpartition("/")[2],
            file.begin_timestamp,
            file.end_timestamp,
            file.begin_physical_offset,
            file.end_physical_offset,
            file.used_slots,
            file.next_entry,
        )
        for file in index.files
    ] == [
        (
            each["file"],
            each["beginTimestamp"],
            each["endTimestamp"],
            each["beginPhyOffset"],
            each["endPhyOffset"],
            each["hashSlotCount"],
            each["indexCount"],
        )
        for each in said
    ]
    hashes = TopicHashes()
    entries = [entry_of(head, DELAY_LEVELS_MS) for head in golden_heads(root)]
    wanted = [
        (hashes.index_hash(e.topic, key), e.physical_offset) for e in entries for key in e.keys
    ]
    assert [(each[0], each[1]) for file in index.files for each in file.entries()] == wanted
    index.close()


def test_queries_return_the_results_of_the_original(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    index = Index(config(str(root)), RealDisk(), ManualClock())
    index.load(clean=True, safe_timestamp=0)
    queries = manifest("clean")["officialClient"]["queryByKey_max64"]
    assert len(queries) > 5
    for name, offsets in queries.items():
        topic, _, key = name.partition("#")
        found = index.query(topic, key, 64, 0, UNTIL_FOREVER).physical_offsets
        assert sorted(found) == (offsets if isinstance(offsets, list) else []), name
    index.close()


@pytest.mark.parametrize("name", ["clean", "slave", "v6", "crashed-recovered", BY_HAND])
@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_a_log_dispatched_again_gives_the_same_queue_files(
    name: str, batch: int, tmp_path: Path
) -> None:
    root = store(name, tmp_path / "theirs")
    ours = tmp_path / "ours"
    queues, index = _dispatch(root, ours, batch)
    queues.close()
    index.close()
    assert _files(ours / "consumequeue") == _files(root / "consumequeue")


@pytest.mark.parametrize("name", ["clean", "slave", "v6", "ext", BY_HAND])
@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_a_log_dispatched_again_gives_the_same_index_files(
    name: str, batch: int, tmp_path: Path
) -> None:
    root = store(name, tmp_path / "theirs")
    ours = tmp_path / "ours"
    queues, index = _dispatch(root, ours, batch)
    queues.close()
    index.close()
    wanted = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert [path.read_bytes() for path in sorted((ours / "index").iterdir())] == wanted


def test_the_index_recovered_by_the_original_has_one_duplicate_entry(tmp_path: Path) -> None:
    """The original repeats the first key of a record with keys in two files; TroupeMQ does not."""
    root = store("torn-recovered", tmp_path / "theirs")
    queues, ours = _dispatch(root, tmp_path / "ours", 100)
    theirs = Index(config(str(root)), RealDisk(), ManualClock())
    theirs.load(clean=True, safe_timestamp=0)
    pairs = [
        Counter((each[0], each[1]) for file in index.files for each in file.entries())
        for index in (theirs, ours)
    ]
    assert sum((pairs[0] - pairs[1]).values()) == 1
    assert not pairs[1] - pairs[0]
    for each in (queues, ours, theirs):
        each.close()


def _dispatch(root: Path, ours: Path, batch: int) -> tuple[ConsumeQueues, Index]:
    settings = config(str(ours))
    queues = ConsumeQueues(settings, RealDisk())
    index = Index(settings, RealDisk(), ManualClock())
    dispatcher = Dispatcher(queues, [index])
    end = manifest(root.name)["commitLogEnd"]
    heads = [head for head in golden_heads(root) if head.physical_offset < end]
    entries = [entry_of(head, DELAY_LEVELS_MS) for head in heads]
    for start in range(0, len(entries), batch):
        dispatcher.dispatch(entries[start : start + batch])
        dispatcher.write_out()
    return queues, index


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
