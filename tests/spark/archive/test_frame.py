"""Files of an archive that are read; tests/spark/test_with_spark.py has the DataFrame."""

from pathlib import Path

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive.compact import compact
from spark.archive.files import Archive
from spark.archive.frame import archive_files, read_archive
from storage.errors import StoreError
from tests.spark.archive_writer import add_run
from tests.spark.ran import write_messages
from tests.spark.store_writer import StoreWriter

HOUR_MS = 3_600_000


def rows(files: list[str]) -> int:
    return sum(parquet.read_metadata(file).num_rows for file in files)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    store = write_messages(StoreWriter(tmp_path / "store"), 200)
    made = Archive(str(tmp_path / "archive"))
    add_run(made, store.root, store.records[100].physical_offset)
    add_run(made, store.root)
    return made


def test_replaced_runs_are_hidden_and_stay_for_current_readers(
    archive: Archive,
) -> None:
    before = archive_files(str(archive.output))
    compact(None, str(archive.output), grace_ms=HOUR_MS)
    after = archive_files(str(archive.output))
    assert not set(before) & set(after) and len(after) < len(before)
    assert rows(before) == rows(after) == 150, "the old files can be read to their end"
    with archive.writing(HOUR_MS):
        assert rows(before) == 150, "a run that comes soon leaves them there"
    with archive.writing(0):
        assert [Path(file).exists() for file in (before[0], after[0])] == [False, True]


@pytest.mark.heavy
def test_runs_after_a_compaction_repeat_the_replaced_runs(archive: Archive, tmp_path: Path) -> None:
    compact(None, str(archive.output), grace_ms=HOUR_MS)
    more = write_messages(StoreWriter(tmp_path / "more"), 240)
    add_run(archive, more.root)
    assert archive.runs() == [3, 4]
    compact(None, str(archive.output), grace_ms=HOUR_MS)
    assert archive.runs() == [5]
    assert archive.manifest(5).replaces == (1, 2, 3, 4)
    assert rows(archive_files(str(archive.output))) == 180
    with archive.writing():
        assert sorted(path.name for path in archive.output.glob("run=*")) == ["run=00000005"]
    assert archive.runs() == [5]


def test_missing_or_old_archives_fail_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no archive at"):
        archive_files(str(tmp_path))
    store = write_messages(StoreWriter(tmp_path / "store"), 20)
    old = Archive(str(tmp_path / "old"))
    add_run(old, store.root, is_old=True)
    assert rows(archive_files(str(old.output))) == 15
    with pytest.raises(StoreError, match=r"run 1 of .* has the columns of an older version: the"):
        read_archive(None, str(old.output))  # type: ignore[arg-type]
