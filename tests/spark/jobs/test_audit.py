"""The audit job names exactly the damaged records, in parts as in one piece."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark.archive.files import Archive
from spark.archive.read import read_file
from spark.jobs import audit
from storage.checking.store_check import StoreCheck
from storage.files.disk import RealDisk
from storage.tables.json_config import save
from tests.spark.archive_writer import add_run
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

SENT = 250


@pytest.fixture(scope="module")
def whole() -> FakeDisk:
    """Return a store of several log and index files that was stopped cleanly."""
    small = SmallStore()
    small.send(SENT)
    save(small.disk, "/store/config/topics.json", '{"topicConfigTable":{"Topic":{"perm":6}}}')
    small.store.flush()
    small.store.close()
    return small.disk


def laid_out(disk: FakeDisk, root: Path) -> Path:
    """Write the files to a real disk."""
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


def test_a_cleanly_stopped_store_has_no_findings(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    assert len(log_files(store)) > 2
    report = run(store)
    assert (report["clean"], report["findings"], report["messages"]) == (True, [], [])
    assert (report["rows"], report["units"], report["queues"]) == (SENT, SENT, 2)
    assert report["index_files"] > 1
    assert report["text"].endswith("No faults found.")


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


def test_a_wrong_unit_is_reported(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    flip(store / "consumequeue" / "Topic" / "0" / f"{0:020}", 20 * 10 + 19)
    report = run(store)
    (finding,) = report["findings"]
    assert finding["text"].startswith("unit 10 of queue 0 of Topic was ")
    assert report["messages"] == []


def test_a_wrong_index_entry_is_reported(whole: FakeDisk, tmp_path: Path) -> None:
    store = laid_out(whole, tmp_path)
    second = sorted((store / "index").iterdir())[1]
    flip(second, 40 + CONFIG.max_hash_slots * 4 + 20 * 5 + 3)
    (finding,) = run(store)["findings"]
    assert finding["part"] == "index" and str(second) in finding["text"]


@pytest.mark.trial(short=6, long=500)
def test_findings_equal_those_of_a_check_in_one_piece(
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


PLACES = {"size": range(4), "magic": range(4, 8), "own offset": range(28, 36)}
"""Bytes of a record's head that identify an intact record; the CRC is that of its body."""

UNIT_BYTES, BODY_AT = 20, 88
CRC, HEAD = "the body does not have its CRC", "the record is not its own"


def units(store: Path) -> dict[tuple[int, int], int]:
    """Return the start of each message: (queue, queue offset) → byte of the log."""
    found = {}
    for queue in (store / "consumequeue" / "Topic").iterdir():
        data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        for number in range(len(data) // UNIT_BYTES):
            unit = data[number * UNIT_BYTES :][:UNIT_BYTES]
            if int.from_bytes(unit[8:12]):
                found[int(queue.name), number] = int.from_bytes(unit[:8])
    return found


@pytest.mark.trial(short=3, long=400)
def test_damaged_messages_are_reported_by_the_audit_and_not_archived(
    whole: FakeDisk, tmp_path: Path, seed: int
) -> None:
    store, random = laid_out(whole, tmp_path), Random(seed)
    places, size = units(store), CONFIG.commit_log_file_bytes
    assert len(places) == SENT
    why: dict[tuple[int, int], str] = {}
    for name in random.sample(sorted(places), random.randint(1, 12)):
        path = store / "commitlog" / f"{places[name] // size * size:020}"
        start = places[name] % size
        body_bytes = int.from_bytes(path.read_bytes()[start + 84 : start + BODY_AT])
        what = random.choice([*PLACES, "body"])
        why[name] = CRC if what == "body" else HEAD
        at = random.choice(PLACES.get(what, range(BODY_AT, BODY_AT + body_bytes)))
        flip(path, start + at, random.randrange(8))
    named = {(each["queue_id"], each["queue_offset"]) for each in run(store)["messages"]}
    assert named == set(why)

    archive = Archive(str(tmp_path / "archive"))
    add_run(archive, store)
    manifest = archive.manifest(1)
    archived = {
        (row["queueId"], row["queueOffset"])
        for file in manifest.files
        for row in read_file(
            archive.run_directory(1) / file.path, ("queueId", "queueOffset")
        ).to_pylist()
    }
    assert archived == set(places) - set(why)
    # The last messages of a queue leave no trace without their heads: the queue ends.
    behind = {
        name
        for name in why
        if all(
            why.get((name[0], number)) == HEAD
            for number in range(name[1], max(at for queue, at in places if queue == name[0]) + 1)
        )
    }
    assert {(each.queue_id, each.queue_offset): each.why for each in manifest.damaged} == {
        name: reason for name, reason in why.items() if name not in behind
    }


def audit_config(store: Path) -> Any:
    from storage.checking.store_layout import with_sizes_of_files
    from storage.config import StoreConfig

    return with_sizes_of_files(RealDisk(), StoreConfig(root=str(store)))


def test_beside_a_broker_the_audit_ends_at_the_published_offset(
    whole: FakeDisk, tmp_path: Path
) -> None:
    store = laid_out(whole, tmp_path)
    first = log_files(store)[0]
    flip(log_files(store)[1], 100)
    report = run(store, published_offset=first.stat().st_size)
    assert report["rows"] < SENT
    assert "commit log" not in report["wrong"]
