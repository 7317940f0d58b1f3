"""Comparison of an archive with its log, for all formats of runs."""

from pathlib import Path

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.files import Archive
from spark.archive.read import read_file
from spark.jobs import load_job
from tests.spark.archive_writer import add_run
from tests.spark.ran import write_messages
from tests.spark.rows import in_order, row_of_record
from tests.spark.store_writer import StoreWriter, patch

FIRST, ALL = 300, 400


@pytest.fixture
def store(tmp_path: Path) -> StoreWriter:
    return write_messages(StoreWriter(tmp_path / "store"), ALL)


@pytest.fixture
def archive(tmp_path: Path, store: StoreWriter) -> Archive:
    """Return a run of the first format, followed by one of the current format."""
    archive = Archive(str(tmp_path / "archive"))
    add_run(archive, store.root, store.records[FIRST].physical_offset, is_old=True)
    add_run(archive, store.root)
    return archive


def verify(store: StoreWriter, archive: Archive) -> dict[str, object]:
    given = {"store": str(store.root), "output": str(archive.output), "verify": True}
    return load_job("archive").main(None, given)


@pytest.mark.heavy
def test_runs_of_both_formats_are_read_as_one_table(store: StoreWriter, archive: Archive) -> None:
    paths = {
        run: [archive.run_directory(run) / each.path for each in archive.manifest(run).files]
        for run in archive.runs()
    }
    assert "queue_id" in parquet.read_schema(paths[1][0]).names
    assert "queueId" in parquet.read_schema(paths[2][0]).names
    rows = []
    for run in archive.runs():
        for file in archive.manifest(run).files:
            table = read_file(archive.run_directory(run) / file.path, ARCHIVE_COLUMNS)
            rows += [{**row, "topic": file.topic} for row in table.to_pylist()]
    wanted = [
        {name: row[name] for name in ARCHIVE_COLUMNS if name not in ("tagsCode", "day")}
        for row in map(row_of_record, store.records)
        if row["topic"] != "%RETRY%group"
    ]
    assert [
        {name: row[name] for name in ARCHIVE_COLUMNS if name not in ("tagsCode", "day")}
        for row in in_order(rows)
    ] == in_order(wanted)


@pytest.mark.heavy
def test_runs_of_both_formats_are_compared_with_the_log(
    store: StoreWriter, archive: Archive
) -> None:
    report = verify(store, archive)
    assert (report["runs"], report["clean"]) == (2, True)
    assert (report["compared"], report["expired"]) == (ALL * 3 // 4, 0)


def test_messages_whose_queue_files_have_been_deleted_are_expired(tmp_path: Path) -> None:
    """The second store is the first one later: its queue begins with message 300."""
    archive = Archive(str(tmp_path / "archive"))
    for first in (0, 300):
        writer = StoreWriter(tmp_path / str(first), log_first_offset=65_536 * first)
        writer.queue_firsts["t", 0] = first
        for number in range(3):
            writer.append("t", 0, b"%d" % number)
        add_run(archive, writer.close().root)
    report = verify(writer, archive)
    assert (report["compared"], report["expired"], report["clean"]) == (3, 3, True)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [41, FIRST + 41], ids=["the first format", "the one of today"])
def test_a_message_that_differs_is_named_in_either_format(
    store: StoreWriter, archive: Archive, number: int
) -> None:
    record = store.records[number]
    start = record.physical_offset
    patch(store.root / "commitlog" / f"{start // 65_536 * 65_536:020}", start % 65_536 + 16, b"\7")
    assert verify(store, archive)["differences"] == [
        f"message {record.queue_offset} in queue {record.queue_id} of {record.topic}: flag differs"
    ]
