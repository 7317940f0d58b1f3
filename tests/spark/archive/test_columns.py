"""Conversion of the first archive format: the same table as with current columns."""

from pathlib import Path
from zlib import compress

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from spark.archive.columns import ARCHIVE_COLUMNS, renewed
from spark.decoding.decode import decode
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.plan import Selection, plan
from tests.spark.archive_writer import OLD_COLUMNS, as_format_1
from tests.spark.rows import row_of_record
from tests.spark.store_writer import HOST_V6, StoreWriter, patch


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path)
    for number in range(40):
        is_compressed = number % 3 == 0
        body = b"%d" % number * number
        writer.append(
            "t",
            0,
            compress(body) if is_compressed else body,
            {"KEYS": str(number), "a": "b"} if number % 4 else {},
            sys_flag=0x301 if is_compressed else 0,
            store_host=HOST_V6 if number % 5 == 0 else bytes([10, 0, 0, 1, 0, 0, 0, 80]),
            tags_code=number,
        )
    return writer.close()


def read(writer: StoreWriter, columns: list[str]) -> pa.Table:
    batches = [
        decode(records, columns)
        for queue in plan(Store(str(writer.root)), Selection())
        for records in Queue(Store(str(writer.root)), queue.topic, queue.queue_id).records(0)
    ]
    return pa.Table.from_batches(batches)


def of_format_1(writer: StoreWriter) -> pa.Table:
    """Return what the first archive format had: stored bodies and texts, times in ms."""
    return as_format_1(read(writer, [*OLD_COLUMNS, "day"]))


def test_the_first_format_has_every_current_column_except_the_partition(
    writer: StoreWriter,
) -> None:
    old = of_format_1(writer)
    assert "queue_id" in old.column_names
    rows = renewed(old).to_pylist()
    wanted = [
        {name: row[name] for name in ARCHIVE_COLUMNS if name != "topic"}
        for number, record in enumerate(writer.records)
        for row in [row_of_record(record, tags_code=number)]
    ]
    assert rows == wanted


def test_a_slice_of_a_first_format_table_converts_like_the_whole(
    writer: StoreWriter,
) -> None:
    old = of_format_1(writer).slice(7, 9)
    assert renewed(old).to_pylist() == renewed(of_format_1(writer)).to_pylist()[7:16]
    few = renewed(old.select(["queue_id", "queue_offset", "properties"]))
    assert few.column_names == ["queueId", "queueOffset", "properties"]
    assert renewed(old.slice(0, 0)).num_rows == 0


def test_a_damaged_body_of_the_first_format_is_reported(writer: StoreWriter) -> None:
    record = writer.records[22]
    patch(writer.root / "commitlog" / f"{0:020}", record.physical_offset + 88, b"#")
    found = renewed(of_format_1(writer))["bodyCrcOk"].to_pylist()
    assert [number for number, is_ok in enumerate(found) if not is_ok] == [22]


def test_table_with_current_columns_stays_unchanged(writer: StoreWriter) -> None:
    table = read(writer, ["queueId", "body"])
    assert renewed(table) is table
