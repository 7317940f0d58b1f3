"""Our Spark data source over the network, from the official broker and from ours."""

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark.decoding.columns import MESSAGE_COLUMNS
from spark.source.options import parse_options
from spark.source.reading import RangesPartition
from spark.source.stream import StoreStreamReader
from tests.compat.corpus import SERIAL, Outgoing, varied
from tests.compat.patience import wait_until
from tests.compat.python_clients import PATIENT, new_topic
from tests.compat.servers import BROKER_NAME, Broker
from tests.spark.planned import rows_of
from troupemq import Admin, Message, Producer

pytestmark = pytest.mark.slow(seconds=3)

COUNT = 84
QUEUES = 4


@pytest.fixture(scope="module")
def sent(any_broker: Broker) -> tuple[dict[str, str], list[Outgoing]]:
    """Options that name a topic of that broker, and what is in it."""
    topic = new_topic(any_broker, "spark-source", QUEUES)
    outgoing = varied(topic, COUNT, waits=True)
    name_server = any_broker.name_server.address
    with Producer("source-sender", name_server, settings=PATIENT) as producer:
        for each in outgoing:
            properties = {**each.properties, SERIAL: each.serial}
            keys = each.keys.split() if each.keys else ()
            producer.send(
                Message(
                    topic,
                    each.body,
                    tags=each.tags,
                    keys=keys,
                    properties=properties,
                    flag=each.flag,
                )
            )
    with Admin(name_server) as admin:
        wait_until(lambda: admin.message_count(topic) == COUNT, f"{COUNT} messages in {topic}")
    return {"nameServer": name_server, "topic": topic}, outgoing


def serials(rows: list[Any]) -> list[str]:
    return sorted(dict(row["properties"])[SERIAL] for row in rows)


def test_a_batch_has_every_message_as_it_was_sent(
    sent: tuple[dict[str, str], list[Outgoing]],
) -> None:
    given, outgoing = sent
    rows = rows_of(given)
    assert list(rows[0]) == list(MESSAGE_COLUMNS)
    found = {dict(row["properties"])[SERIAL]: row for row in rows}
    assert len(rows) == len(found) == COUNT
    for each in outgoing:
        row = found[each.serial]
        assert (row["body"], row["tags"], row["flag"]) == (each.body, each.tags, each.flag)
        assert (row["topic"], row["brokerName"]) == (given["topic"], BROKER_NAME)
        assert each.user_properties().items() <= dict(row["properties"]).items()
        assert row["bodyCrcOk"]
    positions = {(row["queueId"], row["queueOffset"]) for row in rows}
    assert len(positions) == COUNT


def test_tags_and_expressions_choose_messages(
    sent: tuple[dict[str, str], list[Outgoing]],
) -> None:
    given, outgoing = sent
    tagged = serials(rows_of({**given, "subExpression": "TagA || TagB"}))
    assert tagged == sorted(each.serial for each in outgoing if each.tags in ("TagA", "TagB"))
    red = serials(rows_of({**given, "subExpression": "colour = 'red' AND TAGS IS NOT NULL"}))
    assert red == sorted(
        each.serial for each in outgoing if each.tags and each.properties.get("colour") == "red"
    )
    assert 0 < len(red) < len(tagged) < COUNT


def test_a_time_chooses_the_first_message_stored_then_or_later(
    sent: tuple[dict[str, str], list[Outgoing]],
) -> None:
    given, _ = sent
    rows = rows_of(given)
    times = sorted(int(row["storeTimestamp"].timestamp() * 1000) for row in rows)
    for moment in (times[0], times[COUNT // 2], times[COUNT // 2] + 1, times[-1] + 1):
        found = rows_of({**given, "startingTimestamp": str(moment)})
        assert found == [row for row in rows if row["storeTimestamp"].timestamp() * 1000 >= moment]


def test_a_stream_reads_each_message_once(sent: tuple[dict[str, str], list[Outgoing]]) -> None:
    given, _ = sent
    told = parse_options({**given, "startingOffsets": "earliest"})
    reader = StoreStreamReader(told, ("queueId", "queueOffset"))
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(30))) != start:
        for task in reader.partitions(start, end):
            assert isinstance(task, RangesPartition)
            for batch in reader.read(task):
                found += [(row["queueId"], row["queueOffset"]) for row in batch.to_pylist()]
        start = end
    assert list(start[given["topic"]]) == [BROKER_NAME]
    assert sorted(found) == sorted((row["queueId"], row["queueOffset"]) for row in rows_of(given))
