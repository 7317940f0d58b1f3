"""Compaction of many small files, all at once or not at all, with kills at any time."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.compact import compact
from spark.archive.files import Archive, DamagedMessage
from spark.archive.read import read_file
from spark.archive.write import SCHEMA
from spark.jobs import load_job
from storage.errors import StoreError
from tests.spark.archive_writer import add_run
from tests.spark.ran import write_messages
from tests.spark.rows import Row, in_order
from tests.spark.store_writer import StoreWriter, patch

ENDS = (100, 150, 200)
"""Messages after each run; the first run has the names of the first format."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreWriter:
    """Return a store that no test changes."""
    return write_messages(StoreWriter(tmp_path_factory.mktemp("store")), ENDS[-1])


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory, store: StoreWriter) -> Path:
    """Return an archive to be copied."""
    return Path(of_three_runs(tmp_path_factory.mktemp("three") / "archive", store).output)


@pytest.fixture
def archive(tmp_path: Path, three_runs: Path) -> Archive:
    return Archive(str(copytree(three_runs, tmp_path / "archive")))


def of_three_runs(output: Path, store: StoreWriter) -> Archive:
    archive = Archive(str(output))
    for end in ENDS[:-1]:
        add_run(archive, store.root, store.records[end].physical_offset, is_old=end == ENDS[0])
    add_run(archive, store.root)
    return archive


def rows(archive: Archive) -> list[Row]:
    """Return the rows by the manifests, after checking each file."""
    found = []
    for run in archive.runs():
        archive.check(run)
        for file in archive.manifest(run).files:
            table = read_file(archive.run_directory(run) / file.path, ARCHIVE_COLUMNS)
            found += [{**row, "topic": file.topic, "day": file.day} for row in table.to_pylist()]
    return in_order(found)


def verified(archive: Archive, store: StoreWriter) -> dict[str, Any]:
    given = {"store": str(store.root), "output": str(archive.output), "verify": True}
    return load_job("archive").main(None, given)


def run_directories(archive: Archive) -> list[str]:
    return sorted(path.name for path in archive.output.iterdir() if path.name[0] != "_")


@pytest.mark.heavy
def test_a_compacted_run_has_all_messages_with_current_columns(
    archive: Archive, store: StoreWriter
) -> None:
    before = rows(archive)
    files = sum(len(archive.manifest(run).files) for run in archive.runs())
    given = {"store": str(store.root), "output": str(archive.output), "compact": True}
    given["grace_hours"] = 0
    load_job("archive").check(given)
    assert not load_job("archive").needs_spark(given)
    report = load_job("archive").main(None, given)
    assert (report["files_before"], report["rows"]) == (files, len(before))
    assert archive.runs() == [4]
    assert run_directories(archive) == ["run=00000004"]
    manifest = archive.manifest(4)
    assert len(manifest.files) == len({(file.topic, file.day) for file in manifest.files})
    for file in manifest.files:
        path = archive.run_directory(4) / file.path
        assert parquet.read_schema(path).names == SCHEMA.names
    assert rows(archive) == before
    assert verified(archive, store)["clean"]


def test_the_manifest_stays_correct_after_compaction(archive: Archive) -> None:
    old = [archive.manifest(run) for run in archive.runs()]
    compact(None, str(archive.output))
    (run,) = archive.runs()
    manifest = archive.manifest(run)
    assert manifest.ends == old[-1].ends
    assert manifest.published_offset == old[-1].published_offset
    for queue in manifest.queues:
        parts = [
            each
            for before in old
            for each in before.queues
            if (each.topic, each.queue_id) == (queue.topic, queue.queue_id)
        ]
        assert (queue.first, queue.last) == (parts[0].first, parts[-1].last)
        assert queue.rows == sum(each.rows for each in parts) == queue.last - queue.first + 1


@pytest.mark.heavy
def test_the_next_run_continues_after_a_compaction(tmp_path: Path, store: StoreWriter) -> None:
    archive = Archive(str(tmp_path / "archive"))
    for end in ENDS[:-1]:
        add_run(archive, store.root, store.records[end].physical_offset)
    compact(None, str(archive.output))
    add_run(archive, store.root)
    assert archive.runs() == [3, 4]
    assert len(rows(archive)) == ENDS[-1] * 3 // 4
    compact(None, str(archive.output))
    assert archive.runs() == [5]
    assert verified(archive, store)["compared"] == ENDS[-1] * 3 // 4


def test_large_or_single_files_stay_unchanged(archive: Archive) -> None:
    compact(None, str(archive.output))
    (run,) = archive.runs()
    again = compact(None, str(archive.output))
    assert (again["output"], again["rows"]) == (None, 0)
    assert again["text"].startswith("Nothing to compact")
    assert archive.runs() == [run]


@pytest.mark.heavy
def test_a_large_file_is_kept_and_small_ones_are_merged(tmp_path: Path, store: StoreWriter) -> None:
    archive = Archive(str(tmp_path / "archive"))
    for end in ENDS[:-1]:
        add_run(archive, store.root, store.records[end].physical_offset)
    add_run(archive, store.root)
    before = rows(archive)
    files = [file for run in archive.runs() for file in archive.manifest(run).files]
    large = max(files, key=lambda file: file.bytes)
    report = compact(None, str(archive.output), large.bytes * 2)
    made = archive.manifest(archive.runs()[0]).files
    assert large.crc32c in {file.crc32c for file in made}
    assert len(made) == report["files"] < report["files_before"]
    assert rows(archive) == before


def test_messages_expired_between_two_runs_are_not_reported_missing(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path / "archive"))
    for first in (0, 300):
        name = f"store{first}"
        writer = StoreWriter(tmp_path / name, log_first_offset=65_536 * first)
        writer.queue_firsts["t", 0] = first
        for number in range(3):
            writer.append("t", 0, b"%d" % number)
        add_run(archive, writer.close().root)
    compact(None, str(archive.output))
    assert [
        (queue.first, queue.last, queue.rows, queue.missed) for queue in archive.manifest(3).queues
    ] == [(0, 2, 3, 0), (300, 302, 3, 297)]
    assert verified(archive, writer)["clean"]


def test_damaged_messages_are_still_reported(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for number in range(9):
        writer.append("t", 0, b"%050d" % number)
    writer.close()
    records = writer.records
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    patch(log, records[2].physical_offset + 90, b"!")
    archive = Archive(str(tmp_path / "archive"))
    add_run(archive, writer.root, records[3].physical_offset)
    add_run(archive, writer.root)
    lost = archive.manifest(1).damaged
    compact(None, str(archive.output))
    manifest = archive.manifest(3)
    why = "the body does not have its CRC"
    assert manifest.damaged == lost
    assert lost == (DamagedMessage("t", 0, 2, records[2].physical_offset, why),)
    assert sum(queue.rows for queue in manifest.queues) == 8
    assert sum(queue.damaged for queue in manifest.queues) == 1
    given = {"store": str(writer.root), "output": str(archive.output), "verify": True}
    report = load_job("archive").main(None, given)
    assert (report["clean"], report["damaged"], report["compared"]) == (True, 1, 8)


class Killed(BaseException):
    """Stands for a kill; the code under test must not catch it."""


@pytest.mark.heavy
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=["publishing", "first", "second", "third"])
def test_a_kill_at_any_rename_causes_no_loss_and_no_duplicate(
    archive: Archive,
    store: StoreWriter,
    number: int,
    is_after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, rename, count = rows(archive), Path.rename, 0

    def dies(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == number and not is_after:
            raise Killed
        moved = rename(path, target)
        if count == number:
            raise Killed
        return moved

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "rename", dies)
        compact(None, str(archive.output))
    is_published = number > 1 or is_after
    assert archive.runs() == ([4] if is_published else [1, 2, 3])
    assert rows(archive) == before
    assert verified(archive, store)["clean"]
    compact(None, str(archive.output))
    assert run_directories(archive) == ["run=00000004"]
    assert not (archive.output / "_staging").exists()
    assert rows(archive) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_changed_archive_file_is_not_compacted(
    archive: Archive, damage: Callable[[Path], None]
) -> None:
    damage(archive.run_directory(1) / archive.manifest(1).files[0].path)
    with pytest.raises(StoreError, match="restore it from a copy"):
        compact(None, str(archive.output))
    assert archive.runs() == [1, 2, 3]


def test_a_compaction_that_would_lose_messages_stops(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.archive.compact.file_tables", lambda path: iter(()))
    with pytest.raises(StoreError, match="does not hold the same messages: nothing was published"):
        compact(None, str(archive.output))
    assert archive.runs() == [1, 2, 3]


def test_missing_archive_is_rejected(tmp_path: Path) -> None:
    check = load_job("archive").check
    with pytest.raises(StoreError, match=r"there is no archive at .*: nothing to compact"):
        check({"store": str(tmp_path), "output": str(tmp_path), "compact": True})
    with pytest.raises(StoreError, match="compact and verify exclude each other"):
        check({"store": "x", "output": "y", "compact": True, "verify": True})
