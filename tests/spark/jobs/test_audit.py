"""The audit job names exactly what is damaged, shared out by files as in one piece."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark.jobs import audit
from storage.disk import RealDisk
from storage.json_config import save
from storage.store_check import StoreCheck
from tests.support.fake_disk import FakeDisk
from tests.support.store import CONFIG, SmallStore

SENT = 250


@pytest.fixture(scope="module")
def whole() -> FakeDisk:
    """A store of several log and index files that was stopped cleanly."""
    small = SmallStore()
    small.send(SENT)
    save(small.disk, "/store/config/topics.json", '{"topicConfigTable":{"Topic":{"perm":6}}}')
    small.store.flush()
    small.store.close()
    return small.disk


def laid_out(disk: FakeDisk, root: Path) -> Path:
    """The same files on a real disk."""
    for path, inode in disk._files.items():
        target = root / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(inode.data))
    return root / "store"


def run(store: Path, **more: Any) -> Any:
    return audit.main(None, {"store": str(store), **more})


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def test_a_store_that_was_stopped_is_clean(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    assert len(log_files(store)) > 2
    report = run(store)
    assert (report["clean"], report["findings"], report["messages"]) == (True, [], [])
    assert (report["rows"], report["units"], report["queues"]) == (SENT, SENT, 2)
    assert report["index_files"] > 1
    assert report["text"].endswith("Nothing is wrong.")


def test_a_damaged_body_costs_exactly_its_message(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    unit = (store / "consumequeue" / "Topic" / "1" / f"{0:020}").read_bytes()[7 * 20 :]
    offset = int.from_bytes(unit[:8])
    size = CONFIG.commit_log_file_bytes
    flip(store / "commitlog" / f"{offset // size * size:020}", offset % size + 90)
    report = run(store)
    named = {"topic": "Topic", "queue_id": 1, "queue_offset": 7, "physical_offset": offset}
    assert report["messages"] == [named]
    (finding,) = report["findings"]
    assert finding["text"].endswith("does not have its CRC")
    assert report["wrong"] == {"commit log": 1}


def test_a_wrong_unit_is_named(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    flip(store / "consumequeue" / "Topic" / "0" / f"{0:020}", 20 * 10 + 19)
    report = run(store)
    (finding,) = report["findings"]
    assert finding["text"].startswith("unit 10 of queue 0 of Topic was ")
    assert report["messages"] == []


def test_a_wrong_entry_of_the_index_is_named(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    second = sorted((store / "index").iterdir())[1]
    flip(second, 40 + CONFIG.max_hash_slots * 4 + 20 * 5 + 3)
    (finding,) = run(store)["findings"]
    assert finding["part"] == "index" and str(second) in finding["text"]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_found_is_what_one_check_of_all_finds(
    whole: FakeDisk, tmp_path: Path, seed: int
) -> None:
    store, random = laid_out(whole, tmp_path), Random(seed)
    files = [*log_files(store), *sorted((store / "consumequeue").rglob("0" * 17 + "*"))]
    for _ in range(random.randint(1, 4)):
        path = random.choice(files)
        used = len(path.read_bytes().rstrip(b"\0"))
        flip(path, random.randrange(used), random.randrange(8))
    config = audit_config(store)
    expected = StoreCheck(RealDisk(), config).run()
    report = run(store)
    assert sorted(each["text"] for each in report["findings"]) == sorted(
        each.text for each in expected.findings
    )
    assert report["wrong"] == dict(expected.wrong_counts)


def audit_config(store: Path) -> Any:
    from storage.config import StoreConfig
    from storage.store_layout import with_sizes_of_files

    return with_sizes_of_files(RealDisk(), StoreConfig(root=str(store)))


def test_beside_a_broker_nothing_behind_its_published_offset_is_looked_at(
    whole: FakeDisk, tmp_path: Path
) -> None:
    store = laid_out(whole, tmp_path)
    first = log_files(store)[0]
    flip(log_files(store)[1], 100)
    report = run(store, published_offset=first.stat().st_size)
    assert report["rows"] < SENT
    assert "commit log" not in report["wrong"]
