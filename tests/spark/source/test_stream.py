"""Batches of a stream: limits, restarts, new queues, losses; without a JVM."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from spark.source.offsets import Bounds
from spark.source.options import parse_options
from spark.source.stream import StoreStreamReader, behind, within_rows
from storage.errors import StoreError
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch

COLUMNS = ("topic", "queueId", "queueOffset")


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path, log_file_bytes=8192)
    return write(writer, "a", 100)


def write(writer: StoreWriter, topic: str, count: int, body: bytes = b"") -> StoreWriter:
    """Three messages of four to queue 0, one to queue 1, one a second."""
    for number in range(count):
        moment = NOVEMBER_ROOT_MS + len(writer.records) * 1000
        writer.append(topic, int(number % 4 == 3), body, store_timestamp=moment)
    return writer.close()


def stream(writer: StoreWriter, **given: str) -> StoreStreamReader:
    options = {"store": str(writer.root), "startingOffsets": "earliest", **given}
    return StoreStreamReader(parse_options(options), COLUMNS)


def read(reader: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    return [
        tuple(row.values())
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def batches(
    reader: StoreStreamReader, limit: ReadLimit, start: dict[str, Any] | None = None
) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Return the batches that Spark would request until nothing is new: (end, rows)."""
    start = reader.initialOffset() if start is None else start
    while (end := reader.latestOffset(start, limit)) != start:
        yield end, read(reader, start, end)
        start = end


def everything(writer: StoreWriter) -> list[Any]:
    return sorted((r.topic, r.queue_id, r.queue_offset) for r in writer.records)


def test_a_stream_starts_at_the_max_offset_by_default(writer: StoreWriter) -> None:
    given = parse_options({"store": str(writer.root)})
    reader = StoreStreamReader(given, COLUMNS)
    assert reader.initialOffset() == {"a": {"0": 75, "1": 25}}
    assert stream(writer).initialOffset() == {"a": {"0": 0, "1": 0}}
    told = stream(writer, startingOffsets='{"a":{"0":7,"1":-1}}')
    assert told.initialOffset() == {"a": {"0": 7, "1": 25}}
    reader = StoreStreamReader(
        parse_options(
            {"store": str(writer.root), "startingTimestamp": str(NOVEMBER_ROOT_MS + 40_000)}
        ),
        COLUMNS,
    )
    assert reader.initialOffset() == {"a": {"0": 30, "1": 10}}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("given", "limit", "sizes"),
    [
        ({}, ReadAllAvailable(), [100]),
        ({"maxOffsetsPerTrigger": "30"}, ReadMaxRows(30), [30, 30, 30, 10]),
        ({"maxOffsetsPerTrigger": "1"}, ReadMaxRows(1), [1] * 100),
        ({"maxOffsetsPerTrigger": "30"}, ReadAllAvailable(), [100]),
        ({"maxBytesPerTrigger": str(92 * 50)}, ReadMaxBytes(92 * 50), [49, 49, 2]),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), [1] * 100),
        (
            {"maxOffsetsPerTrigger": "60", "maxBytesPerTrigger": str(92 * 50)},
            ReadMaxRows(60),
            [49, 49, 2],
        ),
    ],
)
def test_batches_obey_limits_and_contain_each_message_once(
    writer: StoreWriter, given: dict[str, str], limit: ReadLimit, sizes: list[int]
) -> None:
    reader = stream(writer, **given)
    found = [rows for _, rows in batches(reader, limit)]
    assert sorted(row for rows in found for row in rows) == everything(writer)
    assert [len(rows) for rows in found] == sizes
    assert isinstance(reader.getDefaultReadLimit(), ReadLimit)


def test_the_default_limit_comes_from_the_options(writer: StoreWriter) -> None:
    assert stream(writer).getDefaultReadLimit() == ReadAllAvailable()
    assert stream(writer, maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
    assert stream(writer, maxBytesPerTrigger="7").getDefaultReadLimit() == ReadMaxBytes(7)


def test_a_restart_repeats_the_planned_batch_and_continues(writer: StoreWriter) -> None:
    limit = ReadMaxRows(40)
    (first_end, first), (second_end, second), _ = batches(stream(writer), limit)
    write(writer, "a", 60)
    restarted = stream(writer)
    assert read(restarted, first_end, second_end) == second
    later = [row for _, rows in batches(restarted, limit, second_end) for row in rows]
    assert sorted(first + second + later) == everything(writer)


def test_new_topics_and_queues_are_read_from_their_start(writer: StoreWriter) -> None:
    reader = stream(writer)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    writer.append("a", 2, b"")
    writer.append("%DLQ%b", 0, b"")
    write(writer, "b", 3)
    (after, rows), *none = batches(reader, ReadAllAvailable(), end)
    assert none == []
    assert sorted(rows) == [("a", 2, 0), ("b", 0, 0), ("b", 0, 1), ("b", 0, 2)]
    assert after == {"a": {"0": 75, "1": 25, "2": 1}, "b": {"0": 3}}


def test_a_new_queue_that_begins_later_is_read_within_limits(writer: StoreWriter) -> None:
    reader = stream(writer)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    writer.start_queue_at("b", 0, 1000)
    write(writer, "b", 4)
    found = [rows for _, rows in batches(reader, ReadMaxRows(1), end)]
    assert sorted(found) == [[("b", 0, offset)] for offset in (1000, 1001, 1002)] + [[("b", 1, 0)]]


def test_with_available_now_later_messages_are_left_for_the_next_run(writer: StoreWriter) -> None:
    reader = stream(writer)
    reader.prepareForTriggerAvailableNow()
    write(writer, "a", 60)
    write(writer, "b", 1)
    found = list(batches(reader, ReadMaxRows(70)))
    assert sorted(row for _, rows in found for row in rows) == [
        ("a", queue_id, offset) for queue_id, end in ((0, 75), (1, 25)) for offset in range(end)
    ]
    again = stream(writer)
    again.prepareForTriggerAvailableNow()
    (_, rows), *none = batches(again, ReadAllAvailable(), found[-1][0])
    assert (len(rows), none) == (61, [])


def test_messages_expired_before_the_read_are_a_loss(writer: StoreWriter) -> None:
    reader = stream(writer)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (writer.root / "commitlog" / f"{0:020}").unlink()
    gone = {
        (r.topic, r.queue_id, r.queue_offset) for r in writer.records if r.physical_offset < 8192
    }
    with pytest.raises(StoreError, match=r"^queue 0 of a begins at \d+, not at 0: messages are"):
        reader.partitions(start, end)
    accepted = stream(writer, failOnDataLoss="false")
    assert sorted(read(accepted, start, end)) == sorted(set(everything(writer)) - gone)


def test_a_queue_whose_messages_have_all_expired_keeps_its_end(writer: StoreWriter) -> None:
    start = stream(writer, startingOffsets="latest").initialOffset()
    write(writer, "b", 200)
    for first in (0, 8192):
        (writer.root / "commitlog" / f"{first:020}").unlink()
    reader = stream(writer, topic="a", startingOffsets="latest")
    assert reader.initialOffset() == start
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    write(writer, "a", 4)
    ((_, rows),) = batches(stream(writer, topic="a"), ReadAllAvailable(), start)
    assert sorted(rows) == [("a", 0, 75), ("a", 0, 76), ("a", 0, 77), ("a", 1, 25)]


def test_a_recreated_queue_is_a_loss(writer: StoreWriter) -> None:
    start = {"a": {"0": 75, "1": 26}}
    with pytest.raises(StoreError, match=r"^queue 1 of a ends at 25, but the stream has read up"):
        stream(writer).latestOffset(start, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"^queue 0 of gone is gone, but the stream has read up"):
        stream(writer).latestOffset({"gone": {"0": 1}}, ReadAllAvailable())
    accepted = stream(writer, failOnDataLoss="false")
    end = accepted.latestOffset({**start, "gone": {"0": 1}}, ReadAllAvailable())
    assert end == {"a": {"0": 75, "1": 25}, "gone": {"0": 1}}
    assert read(accepted, start, end) == [("a", 1, offset) for offset in range(25)]


def test_a_damaged_message_is_a_loss(writer: StoreWriter) -> None:
    patch(writer.root / "commitlog" / f"{0:020}", writer.records[2].physical_offset + 4, b"#")
    start = {"a": {"0": 0, "1": 0}}
    end = stream(writer).latestOffset(start, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"^message 2 in queue 0 of a is damaged or gone"):
        read(stream(writer), start, end)
    accepted = read(stream(writer, failOnDataLoss="false"), start, end)
    assert sorted(accepted) == sorted(set(everything(writer)) - {("a", 0, 2)})


def test_a_stream_waits_for_a_missing_topic(writer: StoreWriter) -> None:
    reader = stream(writer, topic="b")
    assert reader.initialOffset() == {}
    assert reader.latestOffset({}, ReadAllAvailable()) == {}
    write(writer, "b", 1)
    ((_, rows),) = batches(reader, ReadAllAvailable(), {})
    assert rows == [("b", 0, 0)]


def test_a_limit_is_divided_in_proportion_to_the_lag() -> None:
    parts = {("a", 0): Bounds(0, 900), ("a", 1): Bounds(50, 150), ("b", 0): Bounds(7, 7)}
    shared = within_rows(parts, 100)
    assert shared == {("a", 0): Bounds(0, 90), ("a", 1): Bounds(50, 60), ("b", 0): Bounds(7, 7)}
    assert within_rows(parts, 1000) == parts
    odd = within_rows({("a", number): Bounds(0, 5) for number in range(3)}, 7)
    assert [part.end for part in odd.values()] == [3, 2, 2]


def test_a_progress_report_has_the_lag(writer: StoreWriter) -> None:
    reader = stream(writer)
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(40))
    source = {"endOffset": end, "latestOffset": reader.reportLatestOffset()}
    rate = {"endOffset": 5, "latestOffset": "7"}
    assert behind({"sources": [rate, source]}) == {"a": {"0": 45, "1": 15}}
    assert behind(None) == {}
