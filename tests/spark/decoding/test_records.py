"""Ends of queues, and conditions that are not errors."""

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.plan import (
    QueueRange,
    Selection,
    last_message_at,
    plan,
    plan_queue,
)
from spark.source.plan import pack as pack_ranges
from storage.errors import StoreError
from tests.spark.store_writer import UNIT, StoreWriter, patch

MESSAGES = 400
"""More than one consume queue file holds, in four log files."""


@pytest.fixture
def written(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path)
    for number in range(MESSAGES):
        writer.append("t", 0, bytes(number), {"KEYS": str(number)})
    return writer.close()


def queue_of(writer: StoreWriter, published_offset: int | None = None) -> Queue:
    return Queue(Store(str(writer.root)), "t", 0, published_offset)


def count(queue: Queue, first: int = 0, end: int | None = None) -> int:
    return sum(len(records) for records in queue.records(first, end))


def log_file(writer: StoreWriter, offset: int) -> tuple[Path, int]:
    """The log file that holds an offset, and the position in it."""
    return writer.root / "commitlog" / f"{offset // 65536 * 65536:020}", offset % 65536


def test_a_queue_is_read_to_its_sparse_tail(written: StoreWriter) -> None:
    assert count(queue_of(written)) == MESSAGES
    assert len(list((written.root / "commitlog").iterdir())) > 1
    assert len(list((written.root / "consumequeue/t/0").iterdir())) == 2


def test_any_range_of_a_queue_can_be_read(written: StoreWriter) -> None:
    offsets = [
        int(offset)
        for records in queue_of(written).records(17, 333)
        for offset in records.heads["queue_offset"]
    ]
    assert offsets == list(range(17, 333))


@pytest.mark.parametrize(
    ("position", "content"),
    [
        (0, pack(">i", 500)),
        (4, pack(">I", 0xCBD43194)),
        (12, pack(">i", 1)),
        (20, pack(">q", 122)),
        (28, pack(">q", 7)),
        (84, pack(">i", 122)),
        (84, pack(">i", -1)),
        (84, pack(">i", 2**31 - 1)),
        (36, pack(">i", 0x30)),
    ],
    ids=[
        "size",
        "magic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "body_bytes",
        "negative",
        "huge",
        "v6_flags",
    ],
)
def test_a_queue_ends_at_a_record_of_another_queue(
    written: StoreWriter, position: int, content: bytes
) -> None:
    path, at = log_file(written, written.records[123].physical_offset)
    patch(path, at + position, content)
    assert count(queue_of(written)) == 123
    planned = plan_queue(queue_of(written), Selection())
    assert (planned.rows, planned.is_damaged) == (MESSAGES, False)  # it is passed over
    assert count(queue_of(written), 124) == MESSAGES - 124


@pytest.mark.parametrize(
    "behind_the_body",
    [pack(">B", 2), b"\x01u", b"\x01t" + pack(">H", 9)],
    ids=["length", "name", "rest"],
)
def test_a_queue_ends_at_a_record_of_another_topic(
    written: StoreWriter, behind_the_body: bytes
) -> None:
    path, at = log_file(written, written.records[123].physical_offset)
    patch(path, at + 88 + 123, behind_the_body)
    assert count(queue_of(written)) == 123


@pytest.mark.parametrize(
    "unit",
    [
        UNIT.pack(0, 0, 0),
        UNIT.pack(10**15, 220, 0),
        UNIT.pack(-5, 220, 0),
        UNIT.pack(2**63 - 1, 220, 0),
        UNIT.pack(0, 91 + 8, 0),
        UNIT.pack(65_530, 220, 0),
        UNIT.pack(0, -1, 0),
        UNIT.pack(0, 0x7FFFFFFF, 0),
    ],
    ids=["zero", "past_the_end", "negative", "far", "backwards", "across_files", "size", "filler"],
)
def test_a_queue_ends_at_an_invalid_unit(written: StoreWriter, unit: bytes) -> None:
    path = written.root / "consumequeue/t/0" / f"{0:020}"
    patch(path, 123 * UNIT.size, unit)
    assert count(queue_of(written)) == 123


def test_records_after_the_published_offset_are_not_read(written: StoreWriter) -> None:
    record = written.records[200]
    end = record.physical_offset + record.record_bytes
    assert count(queue_of(written, end)) == 201
    assert count(queue_of(written, end - 1)) == 200
    assert count(queue_of(written, 0)) == 0


def test_fillers_at_the_start_of_a_queue_are_skipped(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.start_queue_at("t", 0, 1234)
    for _ in range(70):
        writer.append("t", 0, b"x")
    writer.close()
    assert sorted(path.name for path in (tmp_path / "consumequeue/t/0").iterdir())[0] != f"{0:020}"
    queue = queue_of(writer)
    assert queue.first_message() == 1234
    assert count(queue, 1234) == 70


def test_units_of_expired_log_files_are_skipped(written: StoreWriter) -> None:
    log_file(written, 0)[0].unlink()
    queue = queue_of(written)
    first = next(
        record.queue_offset for record in written.records if record.physical_offset >= 65536
    )
    assert queue.first_message() == first
    assert count(queue, first) == MESSAGES - first
    queue_plan = plan_queue(queue, Selection(starts={("t", 0): 5}))
    assert (queue_plan.first, queue_plan.missed) == (first, first - 5)


def test_a_missing_queue_file_ends_the_queue_before_the_hole(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    for _ in range(650):
        writer.append("t", 0, b"x")
    writer.close()
    (tmp_path / "consumequeue/t/0" / f"{6000:020}").unlink()
    assert count(queue_of(writer)) == 300


def test_a_log_file_deleted_during_the_read_is_a_one_sentence_error(written: StoreWriter) -> None:
    queue = queue_of(written)
    path, _ = log_file(written, 65536)
    path.unlink()
    with pytest.raises(StoreError, match=f"{path.name} was deleted or cut while it was read"):
        count(queue)


def test_a_queue_file_deleted_during_the_read_is_a_one_sentence_error(
    written: StoreWriter,
) -> None:
    files = Store(str(written.root)).queue("t", 0)
    path = written.root / "consumequeue/t/0" / f"{6000:020}"
    path.unlink()
    with pytest.raises(StoreError, match=f"{path.name} was deleted"):
        list(files.chunks(0))


def test_several_log_directories_are_one_log(written: StoreWriter) -> None:
    other = written.root / "other"
    other.mkdir()
    path, _ = log_file(written, 65536)
    path.rename(other / path.name)
    store = Store(str(written.root), f"{written.root}/commitlog,{other}")
    assert count(Queue(store, "t", 0)) == MESSAGES


@pytest.mark.parametrize("make", [lambda path: None, lambda path: (path / "config").mkdir()])
def test_an_empty_store_has_no_records(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    assert plan(Store(str(tmp_path)), Selection()) == []


def test_a_path_without_a_store_is_a_one_sentence_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store directory"):
        Store(str(tmp_path / "nothing"))


def test_a_plan_divides_queues_into_adjacent_ranges(written: StoreWriter) -> None:
    (queue,) = plan(Store(str(written.root)), Selection(), range_bytes=20_000)
    assert queue.rows == MESSAGES
    assert queue.record_bytes == sum(record.record_bytes for record in written.records)
    assert len(queue.ranges) == 6
    assert not queue.is_damaged
    ends = [part.end for part in queue.ranges]
    assert [part.first for part in queue.ranges] == [0, *ends[:-1]]
    assert queue.last == last_message_at(queue_of(written), MESSAGES - 1)


def test_small_ranges_are_combined() -> None:
    ranges = [QueueRange("t", number, 0, 1, size) for number, size in enumerate([40, 40, 40, 500])]
    assert [[part.queue_id for part in task] for task in pack_ranges(ranges, 100)] == [
        [0, 1],
        [2],
        [3],
    ]
