"""The rebuild job makes what the broker wrote, changes nothing else, and swaps in whole."""

from pathlib import Path
from typing import Any

import pytest

from spark.analysis.rebuild import StagingDisk
from spark.jobs import rebuild
from storage.checking.store_check import StoreCheck
from storage.checking.store_layout import with_sizes_of_files
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.files.lock_file import StoreLock
from storage.tables.json_config import save
from tests.spark.jobs.test_audit import flip, laid_out
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk

SENT = 250


@pytest.fixture(scope="module")
def whole() -> FakeDisk:
    small = SmallStore()
    small.send(SENT)
    save(small.disk, "/store/config/topics.json", '{"topicConfigTable":{"Topic":{"perm":6}}}')
    small.store.flush()
    small.store.close()
    return small.disk


@pytest.fixture
def store(whole: FakeDisk, tmp_path: Path) -> Path:
    return laid_out(whole, tmp_path)


def contents(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def run(store: Path, **more: Any) -> Any:
    output = str(store.parent / "made")
    return rebuild.main(None, {"store": str(store), "output": output, **more})


def wrong_with(store: Path) -> list[str]:
    config = with_sizes_of_files(RealDisk(), StoreConfig(root=str(store)))
    return [each.text for each in StoreCheck(RealDisk(), config).run().findings if each.is_wrong]


def test_rebuilt_files_equal_those_of_the_broker(store: Path) -> None:
    before = contents(store)
    report = run(store)
    assert (report["rows"], report["differing"], report["damaged"]) == (SENT, [], [])
    assert contents(store) == before
    assert report["text"].splitlines()[-2] == "The files are identical to those of the store."


def test_differing_files_are_named_and_swapped_in(store: Path) -> None:
    queue = store / "consumequeue" / "Topic" / "0" / f"{0:020}"
    intact = queue.read_bytes()
    flip(queue, 20 * 10 + 19)
    assert wrong_with(store) != []
    report = run(store, swap=True)
    assert report["differing"] == [f"consumequeue/Topic/0/{0:020}"]
    assert queue.read_bytes() == intact
    assert wrong_with(store) == []
    assert not (store / "troupemq" / "rebuild").exists()
    assert sorted(path.name for path in store.iterdir() if "before" in path.name) == []


def test_a_store_in_use_is_not_swapped(store: Path) -> None:
    config = with_sizes_of_files(RealDisk(), StoreConfig(root=str(store)))
    disk = RealDisk()
    lock = StoreLock(config, disk)
    lock.acquire()
    before = contents(store)
    with pytest.raises(StoreError, match="in use"):
        run(store, swap=True)
    assert contents(store) == before
    lock.release()


def test_output_that_is_not_empty_is_rejected(store: Path) -> None:
    with pytest.raises(StoreError, match="is not empty: name another output"):
        rebuild.check({"store": str(store), "output": str(store / "index")})


def test_no_file_outside_the_folder_can_be_changed(tmp_path: Path) -> None:
    disk, other = StagingDisk(str(tmp_path / "in")), tmp_path / "out"
    other.mkdir()
    (other / "file").write_bytes(b"old")
    for change in (
        lambda: disk.unlink(f"{other}/file"),
        lambda: disk.remove_tree(str(other)),
        lambda: disk.rename(f"{other}/file", f"{tmp_path}/in/file"),
        lambda: disk.open(f"{other}/file").pwrite(b"new", 0),
        lambda: disk.open(f"{tmp_path}/in2/file", create=True),
    ):
        with pytest.raises(OSError):
            change()
    disk.make_dirs(f"{other}/more")
    assert [path.name for path in other.iterdir()] == ["file"]
    assert (other / "file").read_bytes() == b"old"
