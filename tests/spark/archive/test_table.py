"""Runs in a table: each message once, with kills between the table's commit and the manifest.

The table is a fake here; tests/compat/test_delta_archive.py has the real one.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark.archive import table as table_module
from spark.archive.files import Archive, Manifest
from spark.archive.frame import archive_files
from spark.archive.messages import WantedMessages, queue_ids
from spark.archive.read import read_file
from spark.archive.table import append_and_publish, finish, table_of
from spark.jobs import load_job
from storage.errors import StoreError
from storage.retention.archive_manifest import MANIFEST
from tests.spark.archive_writer import add_run, staged_run
from tests.spark.ran import write_messages
from tests.spark.store_writer import StoreWriter

FIRST, ALL = 60, 100
NONE: Any = None


class Killed(BaseException):
    """Stands for a kill; the code under test must not catch it."""


class FakeTable:
    """Takes a run's messages by one commit; ignores a repeated version."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
        self.path = Path()

    def append(self, spark: object, staged: Path, manifest: Manifest) -> None:
        assert manifest.table is not None
        self.path = Path(manifest.table.path)
        rows = [
            (file.topic, row["queueId"], row["queueOffset"])
            for file in manifest.files
            for row in read_file(staged / file.path, ("queueId", "queueOffset")).to_pylist()
        ]
        self.path.mkdir(exist_ok=True)
        (self.path / f"commit{manifest.run}").touch()
        self.commits.setdefault((manifest.table.app_id, manifest.run), rows)

    def rows(self, spark: object, manifest: Manifest) -> int:
        return sum(len(rows) for (_, run), rows in self.commits.items() if run == manifest.run)

    @property
    def messages(self) -> list[tuple[str, int, int]]:
        return sorted(row for rows in self.commits.values() for row in rows)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> FakeTable:
    made = FakeTable()
    monkeypatch.setattr(table_module, "append", made.append)
    monkeypatch.setattr(table_module, "_rows", made.rows)
    monkeypatch.setattr(table_module, "_check_known", lambda *_: None)
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreWriter:
    return write_messages(StoreWriter(tmp_path_factory.mktemp("store")), ALL)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"))


def run(archive: Archive, store: StoreWriter, count: int = ALL) -> int | None:
    """Run the job over the first `count` messages; return the run that was finished before."""
    end = store.records[count].physical_offset if count < ALL else None
    with archive.writing():
        finished = finish(NONE, archive)
        made = table_of(NONE, archive, "fake", "app")
        staged, manifest = staged_run(archive, store.root, end)
        append_and_publish(NONE, archive, staged, replace(manifest, table=made))
        archive.clear_staging()
    return finished


def wanted(store: StoreWriter) -> list[tuple[str, int, int]]:
    records = [record for record in store.records if record.topic != "%RETRY%group"]
    return sorted((record.topic, record.queue_id, record.queue_offset) for record in records)


def test_each_run_is_one_commit_and_one_manifest(
    archive: Archive, store: StoreWriter, table: FakeTable
) -> None:
    assert run(archive, store, FIRST) is None
    assert run(archive, store) is None
    assert list(table.commits) == [("app", 1), ("app", 2)]
    assert table.messages == wanted(store)
    manifest = archive.manifest(2)
    assert (manifest.files, manifest.table and manifest.table.format) == ((), "fake")
    assert sum(queue.rows for each in (1, 2) for queue in archive.manifest(each).queues) == 75
    assert not (archive.output / "_staging").exists()


KILLS = ["seal", "append", "publish", "clear_staging"]


@pytest.mark.heavy
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", KILLS)
@pytest.mark.parametrize("number", [1, 2], ids=["first run", "second run"])
def test_a_kill_at_any_step_causes_no_loss_and_no_duplicate(
    archive: Archive,
    store: StoreWriter,
    table: FakeTable,
    step: str,
    is_after: bool,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if number == 2:
        run(archive, store, FIRST // 2)
    place: Any = Archive if step in ("publish", "clear_staging") else table_module
    real: Callable[..., Any] = getattr(place, step)

    def dies(*given: Any) -> None:
        if is_after:
            real(*given)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(place, step, dies)
        run(archive, store, FIRST)
    finished = run(archive, store)
    is_decided = (
        (step == "seal" and is_after)
        or step == "append"
        or (step, is_after)
        == (
            "publish",
            False,
        )
    )
    assert finished == (number if is_decided else None)
    assert table.messages == wanted(store)
    runs = archive.runs()
    assert runs == list(range(1, len(runs) + 1))
    rows = sum(queue.rows for each in runs for queue in archive.manifest(each).queues)
    assert rows == len(table.messages)


def test_a_truncated_manifest_decides_nothing(
    archive: Archive, store: StoreWriter, table: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(staged: Path, manifest: Manifest) -> None:
        (staged / MANIFEST).write_bytes(manifest.encode()[:-9])
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(table_module, "seal", dies)
        run(archive, store, FIRST)
    assert run(archive, store) is None
    assert table.messages == wanted(store)


def test_a_table_with_other_messages_than_decided_is_reported(
    archive: Archive, store: StoreWriter, table: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(archive, store, FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(table_module, "append", lambda *_: None)
        with pytest.raises(StoreError, match=r"has 0 messages of run 2, not 30: restore its"):
            run(archive, store)
    table.commits["another", 3] = [("x", 0, 0)]
    assert archive.runs() == [1]
    with pytest.raises(StoreError, match="has messages of run 3 already, which no manifest names"):
        run(archive, store)
    assert archive.runs() == [1, 2], "the decided one was finished first"


def test_unsupported_formats_are_rejected_with_advice(
    archive: Archive, store: StoreWriter, table: FakeTable, tmp_path: Path
) -> None:
    check = load_job("archive").check
    given = {"store": str(store.root), "output": str(archive.output)}
    with pytest.raises(StoreError, match=r"format=orc has no commits.*use parquet, or a table"):
        check({**given, "format": "orc"})
    run(archive, store, FIRST)
    with pytest.raises(StoreError, match="is fake: give format=fake, or name another output"):
        check(given)
    check({**given, "format": "fake"})
    for what in ("verify", "compact"):
        with pytest.raises(StoreError, match=f"{what} works on Parquet archives, and .* is fake"):
            check({**given, what: True})
    with pytest.raises(StoreError, match=r"restore works on Parquet archives.*read the table"):
        queue_ids(str(archive.output), WantedMessages("orders"))
    with pytest.raises(StoreError, match="use read_archive"):
        archive_files(str(archive.output))
    plain = Archive(str(tmp_path / "plain"))
    add_run(plain, store.root)
    with pytest.raises(StoreError, match="is parquet: give format=parquet"):
        check({**given, "output": str(plain.output), "format": "delta"})
    other = Archive(str(tmp_path / "other"))
    (other.output / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"a table at .*, but no manifest: name another output"):
        table_of(NONE, other, "fake", "app")


def test_retention_counts_messages_of_a_table_as_archived(
    archive: Archive, table: FakeTable, tmp_path: Path
) -> None:
    many = write_messages(StoreWriter(tmp_path / "many", log_file_bytes=8192), ALL)
    run(archive, many)
    report = load_job("retention").main(
        None, {"store": str(many.root), "archive": str(archive.output), "before": 2**42}
    )
    assert report["rows"] > 50 and report["not_archived"] == 0
