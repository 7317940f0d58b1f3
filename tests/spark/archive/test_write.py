"""Parquet files of a run, as its tasks write them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.archive import write
from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.read import read_file
from spark.archive.write import (
    FILE_COLUMNS,
    WritePart,
    data_directory,
    escaped,
    write_part,
    write_parts,
)
from spark.decoding.store_files import Store
from spark.source.plan import QueueRange, Selection, plan
from spark.source.reading import RangeReader
from spark.source.row_filter import RowFilter
from storage.errors import StoreError
from tests.spark.rows import Row, in_order, row_of_record
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch

DAY_MS = 86_400_000


def written(root: Path, days: Sequence[int], topic: str = "orders") -> StoreWriter:
    """Write a message for each number, stored that many days after the root."""
    writer = StoreWriter(root)
    for number, day in enumerate(days):
        writer.append(
            topic,
            number % 2,
            bytes([number % 256]) * (100 + number),
            {"KEYS": f"key{number}", "TAGS": "a"},
            store_timestamp=NOVEMBER_ROOT_MS + day * DAY_MS + number,
        )
    return writer.close()


def part_of(writer: StoreWriter, staging: Path) -> WritePart:
    """Return the whole store as one task."""
    reader = RangeReader(
        store=str(writer.root),
        commit_log=None,
        published_offset=None,
        broker_name=None,
        columns=FILE_COLUMNS,
        wanted=RowFilter(),
        fail_on_data_loss=False,
    )
    ranges = [each for queue in plan(Store(str(writer.root)), Selection()) for each in queue.ranges]
    (part,) = write_parts(staging, reader, [ranges])
    return part


def rows_in(staging: Path) -> list[Row]:
    rows: list[Row] = []
    data = data_directory(staging)
    for path in data.rglob("*.parquet"):
        topic, day = (each.split("=", 1)[1] for each in path.relative_to(data).parent.parts)
        for row in read_file(path, ARCHIVE_COLUMNS).to_pylist():
            rows.append({**row, "topic": topic.replace("%25", "%"), "day": day})
    return in_order(rows)


def expected(writer: StoreWriter) -> list[Row]:
    rows = in_order(row_of_record(record) for record in writer.records)
    return [{**{n: row[n] for n in ARCHIVE_COLUMNS}, "day": str(row["day"])} for row in rows]


def paths(staging: Path) -> list[str]:
    return sorted(str(p.relative_to(staging)) for p in staging.rglob("*") if p.is_file())


def test_every_column_of_every_message_is_in_the_file_of_its_topic_and_day(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for number in range(60):
        writer.append(
            ("%DLQ%group", "orders")[number % 2],
            number % 3,
            bytes([number]) * number,
            {"KEYS": f"key{number}"},
            store_timestamp=NOVEMBER_ROOT_MS + number // 20 * DAY_MS,
        )
    writer.close()
    part = part_of(writer, tmp_path / "staging")
    assert write_part(part) == part.rows == 60
    assert rows_in(tmp_path / "staging") == expected(writer)
    assert {path.rpartition("/")[0] for path in paths(tmp_path / "staging")} == {
        f"data/topic={topic}/day=2026-11-{day}"
        for topic in ("%25DLQ%25group", "orders")
        for day in (20, 21, 22)
    }


def test_alternating_days_make_more_files_without_more_open_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_OPEN_MAX", 3)
    writer = written(tmp_path / "store", [number % 7 for number in range(70)])
    write_part(part_of(writer, tmp_path / "staging"))
    assert rows_in(tmp_path / "staging") == expected(writer)
    assert len(paths(tmp_path / "staging")) > 7


def test_task_buffers_at_most_the_allowed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", 2_000)
    writer = StoreWriter(tmp_path / "store", queue_file_bytes=200)  # batches of ten
    for number in range(100):
        writer.append("orders", 0, bytes([number]) * 90)
    write_part(part_of(writer.close(), tmp_path / "staging"))
    (path,) = data_directory(tmp_path / "staging").rglob("*.parquet")
    with parquet.ParquetFile(path) as file:
        assert file.metadata.num_row_groups == 10
    assert rows_in(tmp_path / "staging") == expected(writer)


def test_a_message_with_a_damaged_body_is_omitted(tmp_path: Path) -> None:
    writer = written(tmp_path / "store", [0] * 10)
    patch(
        next((writer.root / "commitlog").iterdir()), writer.records[4].physical_offset + 95, b"\xee"
    )
    part = part_of(writer, tmp_path / "staging")
    assert write_part(part) == 9
    found = rows_in(tmp_path / "staging")
    assert found == [row for row in expected(writer) if row["keys"] != "key4"]


def test_a_repeated_task_writes_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of(written(tmp_path / "store", [0, 1, 2] * 10), tmp_path / "staging")
    first = write._File.finish
    calls = 0

    def fails_at_the_second(self: write._File) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        first(self)

    with monkeypatch.context() as failing:
        failing.setattr(write._File, "finish", fails_at_the_second)
        with pytest.raises(StoreError, match=r"cannot write to .*: No space left"):
            write_part(part)
    (left,) = paths(tmp_path / "staging")
    assert left.startswith("data/")  # the first file is whole, and none is unfinished
    write_part(part)
    names = paths(tmp_path / "staging")
    contents = [(tmp_path / "staging" / name).read_bytes() for name in names]
    assert len(names) == 3 and left in names
    write_part(part)
    assert paths(tmp_path / "staging") == names
    assert [(tmp_path / "staging" / name).read_bytes() for name in names] == contents


def test_a_flipped_bit_in_a_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.append("orders", 0, bytes(range(256)) * 40)
    write_part(part_of(writer.close(), tmp_path / "staging"))
    (path,) = data_directory(tmp_path / "staging").rglob("*.parquet")
    with parquet.ParquetFile(path) as file:
        names = [file.metadata.row_group(0).column(n).path_in_schema for n in range(10)]
        column = file.metadata.row_group(0).column(names.index("body"))
    patch(path, column.data_page_offset + column.total_compressed_size - 5, b"\x00")
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        read_file(path, ["body"])


def test_a_task_with_nothing_to_read_writes_nothing(tmp_path: Path) -> None:
    part = part_of(written(tmp_path / "store", [0]), tmp_path / "staging")
    gone = WritePart(0, part.staging, part.reader, (QueueRange("orders", 9, 0, 4),))
    assert write_part(gone) == 0
    assert paths(tmp_path / "staging") == []


def test_names_of_partitions_are_escaped_as_by_spark() -> None:
    assert escaped("%RETRY%a_b-C|1") == "%25RETRY%25a_b-C|1"
