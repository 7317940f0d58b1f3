"""Messages that a read plans and its tasks find: offsets, times, tags, splits, losses."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from protocol.tags import java_hash_code
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.offsets import bounds, chosen_queues, first_stored_at, queue_end
from spark.source.options import parse_options
from spark.source.reading import range_reader
from spark.source.row_filter import Pushed, narrow
from storage.errors import StoreError
from tests.spark.planned import numbers, options, planned
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch
from tests.support import golden

MESSAGES = 600
TOPICS = ("orders", "paid", "%DLQ%group", "%RETRY%group", "SCHEDULE_TOPIC_XXXX")
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> StoreWriter:
    """600 messages, one a minute: five topics, two queues each, tags a, b and none."""
    writer = StoreWriter(tmp_path_factory.mktemp("reading"))
    write(writer, MESSAGES)
    return writer.close()


def write(writer: StoreWriter, end: int) -> None:
    for number in range(len(writer.records), end):
        tags = {0: {"TAGS": "a"}, 1: {"TAGS": "b", "price": str(number)}, 2: {}}[number % 3]
        writer.append(
            TOPICS[number % 5],
            number // 5 % 2,
            b"%d" % number,
            tags,
            store_timestamp=NOVEMBER_ROOT_MS + number * MINUTE_MS,
            tags_code=java_hash_code(tags["TAGS"]) if tags else 0,
        )


def of(*topics: str) -> list[int]:
    return [number for number in range(MESSAGES) if TOPICS[number % 5] in topics]


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ({}, ["orders", "paid"]),
        ({"topic": "paid"}, ["paid"]),
        ({"topics": "paid,%DLQ%group"}, ["paid", "%DLQ%group"]),
        ({"topicPattern": "(?i)P.*|orders"}, ["paid", "orders"]),
        ({"topicPattern": "pai"}, []),
        ({"topicPattern": ".*"}, ["orders", "paid"]),
        ({"topicPattern": "%DLQ%.*"}, ["%DLQ%group"]),
        ({"topicPattern": "%RETRY%.*"}, ["%RETRY%group"]),
        ({"includeSystemTopics": "true"}, list(TOPICS)),
        ({"includeSystemTopics": "true", "topicPattern": "[%S].*"}, list(TOPICS[2:])),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ["SCHEDULE_TOPIC_XXXX"]),
    ],
)
def test_only_requested_topics_are_read(
    written: StoreWriter, given: dict[str, str], topics: list[str]
) -> None:
    assert numbers(options(written, **given)) == of(*topics)


def test_a_missing_topic_is_refused_with_the_existing_ones(written: StoreWriter) -> None:
    with pytest.raises(StoreError, match=r"^topic: .* has no topic order; it has orders, paid$"):
        planned(options(written, topic="order"))


def minute(number: int) -> str:
    return str(NOVEMBER_ROOT_MS + number * MINUTE_MS)


@pytest.mark.parametrize(
    ("given", "first", "end"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, MESSAGES),
        ({"startingOffsets": '{"paid":{"0":-2,"1":-2}}'}, 0, MESSAGES),
        ({"startingOffsets": '{"paid":{"0":10,"1":10}}'}, 100, MESSAGES),
        ({"endingOffsets": '{"paid":{"0":10,"1":10}}'}, 0, 100),
        ({"endingOffsets": '{"paid":{"0":-1,"1":-1}}'}, 0, MESSAGES),
        ({"startingTimestamp": minute(100)}, 100, MESSAGES),
        ({"startingTimestamp": minute(100), "endingTimestamp": minute(200)}, 100, 200),
        ({"startingTimestamp": minute(9999)}, 0, 0),
        ({"startingTimestamp": "0"}, 0, MESSAGES),
        (
            {
                "startingOffsetsByTimestamp": f'{{"paid":{{"0":{minute(50)},"1":{minute(50)}}}}}',
                "endingOffsetsByTimestamp": f'{{"paid":{{"0":{minute(60)},"1":{minute(60)}}}}}',
            },
            50,
            60,
        ),
    ],
)
def test_a_read_starts_and_ends_at_the_given_offsets(
    written: StoreWriter, given: dict[str, str], first: int, end: int
) -> None:
    found = numbers(options(written, topic="paid", **given))
    assert found == [number for number in of("paid") if first <= number < end]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"startingOffsets": '{"paid":{"0":10}}'},
            "startingOffsets says nothing of queue 1 of paid: name every queue, -2 is its earliest",
        ),
        (
            {"startingOffsets": '{"paid":{"0":1,"1":1},"orders":{"0":1}}'},
            "startingOffsets names queue 0 of orders, which is not read: leave it out",
        ),
        ({"startingOffsets": '{"paid":{"0":1,"1":61}}'}, "queue 1 of paid ends at 60, not at 61"),
        (
            {"endingOffsets": '{"paid":{"0":1,"1":61}}'},
            "queue 1 of paid ends at 60, not at 61: messages are gone, or never were; "
            "failOnDataLoss=false reads what is there",
        ),
    ],
)
def test_offsets_out_of_range_are_refused(
    written: StoreWriter, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(StoreError) as refused:
        planned(options(written, topic="paid", **given))
    assert sentence in str(refused.value)


def test_an_accepted_loss_returns_the_existing_messages(written: StoreWriter) -> None:
    given = options(
        written, topic="paid", endingOffsets='{"paid":{"0":1,"1":61}}', failOnDataLoss="false"
    )
    assert len(numbers(given)) == 61


@pytest.mark.parametrize(
    ("expression", "remainders"),
    [("a", {0}), ("a || b", {0, 1}), ("*", {0, 1, 2}), ("c", set()), ("TAGS = 'b'", {1})],
)
def test_a_subscription_expression_selects_messages(
    written: StoreWriter, expression: str, remainders: set[int]
) -> None:
    for topic in ("paid", "SCHEDULE_TOPIC_XXXX"):
        found = numbers(options(written, topic=topic, subExpression=expression))
        assert found == [number for number in of(topic) if number % 3 in remainders]


def test_sql92_compares_properties_and_unknown_is_no_match(
    written: StoreWriter,
) -> None:
    found = numbers(options(written, topic="paid", subExpression="price BETWEEN 100 AND 300"))
    assert found == [n for n in of("paid") if n % 3 == 1 and 100 <= n <= 300]
    assert numbers(options(written, topic="paid", subExpression="TAGS > 5")) == []


def test_tags_with_equal_hashes_are_distinguished(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    assert java_hash_code("AaAa") == java_hash_code("BBBB")
    for number, tag in enumerate(["AaAa", "BBBB"]):
        writer.append("t", 0, b"%d" % number, {"TAGS": tag}, tags_code=java_hash_code(tag))
    writer.close()
    assert numbers(options(writer, subExpression="BBBB")) == [1]


def test_tags_of_an_extended_queue_are_found(tmp_path: Path) -> None:
    store = golden.store("ext", tmp_path)
    given = parse_options({"store": str(store)})
    reader = range_reader(given, ("tags", "tagsCode"))
    rows = [row for task in planned(given) for b in reader.read(task) for row in b.to_pylist()]
    assert any(row["tagsCode"] < -(2**31) for row in rows)
    for tag in {row["tags"] for row in rows if (row["tags"] or "").isalnum()}:
        some = parse_options({"store": str(store), "subExpression": tag})
        found = range_reader(some, ("tags",))
        count = sum(batch.num_rows for task in planned(some) for batch in found.read(task))
        assert count == sum(row["tags"] == tag for row in rows) > 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("given", "at_least", "rows_max"),
    [
        ({}, 1, None),
        ({"minPartitions": "7"}, 7, None),
        ({"minPartitions": "240"}, 240, 1),
        ({"minPartitions": "1000"}, 240, 1),
        ({"maxRecordsPerPartition": "7"}, 240 // 7, 7),
        ({"maxRecordsPerPartition": "1"}, 240, 1),
        ({"maxBytesPerPartition": "1"}, 240, 1),
        ({"maxBytesPerPartition": "1000"}, 20, 12),
        ({"minPartitions": "3", "maxRecordsPerPartition": "50"}, 5, 50),
    ],
)
def test_tasks_obey_the_requested_count_and_size(
    written: StoreWriter, given: dict[str, str], at_least: int, rows_max: int | None
) -> None:
    found = planned(options(written, **given))
    sizes = [sum(part.end - part.first for part in task) for task in found]
    assert len(found) >= at_least
    assert rows_max is None or max(sizes) <= rows_max
    assert sum(sizes) == 240 and min(sizes) > 0
    assert numbers(options(written, **given)) == of("orders", "paid")
    record_bytes = sum(r.record_bytes for r in written.records if r.topic in ("orders", "paid"))
    assert sum(part.record_bytes for task in found for part in task) == record_bytes


def at(number: int) -> datetime:
    return datetime.fromtimestamp(NOVEMBER_ROOT_MS / 1000 + 60 * number, UTC)


def test_combined_filters_select_the_intersection(written: StoreWriter) -> None:
    pushed = Pushed()
    for each in (
        In(("topic",), ("paid", "orders")),
        EqualTo(("topic",), "paid"),
        EqualTo(("queueId",), 1),
        GreaterThan(("queueOffset",), 9),
        LessThan(("queueOffset",), 40),
        LessThanOrEqual(("queueOffset",), 50),
        EqualTo(("tags",), "a"),
    ):
        pushed, _ = narrow(pushed, each)
    given = options(written)
    found = numbers(given, pushed)
    assert found == [n for n in of("paid") if n // 5 % 2 and 10 <= n // 10 < 40 and n % 3 == 0]


@pytest.mark.parametrize("wanted_filter", [GreaterThan, GreaterThanOrEqual, EqualTo])
def test_a_time_filter_reads_little_more_than_its_range(
    written: StoreWriter, wanted_filter: Any
) -> None:
    pushed, is_exact = narrow(Pushed(), wanted_filter(("storeTimestamp",), at(301)))
    assert not is_exact
    found = numbers(options(written), pushed)
    assert 301 in found and found[0] >= 298
    assert wanted_filter is not EqualTo or found[-1] < 310
    pushed, _ = narrow(Pushed(), LessThan(("storeTimestamp",), at(10).replace(tzinfo=None)))
    assert {6, 5, 1, 0} <= set(numbers(options(written), pushed)) <= set(range(13))


@pytest.mark.heavy
def test_min_and_max_offset_are_found_in_sparse_files(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, queue_file_bytes=400_000)
    for _ in range(3):
        writer.append("t", 0, b"x")
    writer.close()
    queue = Queue(Store(str(tmp_path)), "t", 0)
    assert queue_end(queue) == 3
    writer.keep_records = False
    for _ in range(20_997):
        writer.append("t", 0, b"")
    writer.close()
    queue = Queue(Store(str(tmp_path)), "t", 0)
    assert [queue_end(queue, known) for known in (0, 3, 20_000, 20_999, 21_000)] == [21_000] * 5
    assert bounds(queue).first == 0


def test_units_without_records_do_not_end_a_queue(written: StoreWriter) -> None:
    record = written.records[300]
    queue = Queue(Store(str(written.root)), record.topic, record.queue_id, record.physical_offset)
    assert queue_end(queue) == record.queue_offset
    beginning = Queue(Store(str(written.root)), "orders", 0, 0)
    assert (queue_end(beginning), bounds(beginning).end) == (0, 0)


def test_a_message_after_a_damaged_one_is_found_by_time(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    write(writer, 100)
    writer.close()
    for record in writer.records[40:60]:
        patch(tmp_path / "commitlog" / f"{0:020}", record.physical_offset + 20, b"#")
    queue = Queue(Store(str(tmp_path)), "orders", 0)
    for number in (0, 10, 45, 60, 90, 99):
        found = first_stored_at(queue, bounds(queue), int(minute(number)))
        times = [
            r.store_timestamp for r in writer.records if (r.topic, r.queue_id) == ("orders", 0)
        ]
        first = sum(time < int(minute(number)) for time in times)
        assert found <= first and set(range(found, first)) <= {4, 5}


def test_all_golden_stores_are_planned_up_to_their_last_message(tmp_path: Path) -> None:
    for name in ("clean", "crashed", "crashed-recovered", "v6"):
        given = parse_options(
            {"store": str(golden.store(name, tmp_path)), "includeSystemTopics": "true"}
        )
        reader = range_reader(given, ("queueOffset",))
        rows = sum(batch.num_rows for task in planned(given) for batch in reader.read(task))
        units = golden.manifest(name)["consumeQueues"].values()
        assert rows == sum(len(queue) for queue in units), name
    assert chosen_queues(Store(given.store), given)
