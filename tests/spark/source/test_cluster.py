"""Reads over the network from our broker: equal to those of its files; without a JVM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import BrokerData, QueueData, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.codes import COMPRESSED, RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.tags import java_hash_code
from remoting.sync_connection import SyncConnection
from spark.source import cluster as cluster_module
from spark.source.options import parse_options
from spark.source.reading import RangesPartition
from spark.source.stream import StoreStreamReader
from storage.errors import StoreError
from tests.spark.planned import rows_of, tasks_of
from tests.spark.store_writer import HOST_V6, NOVEMBER_ROOT_MS, StoreWriter
from tests.support.brokers import send_command
from tests.support.sockets import HOST, serving_broker
from tests.troupemq.fake_server import FakeServer

COUNT = 150
TOPICS = ("orders", "paid", "%DLQ%group")
PLENTY = "x" * 200


@dataclass
class Served:
    """A broker over a store with all kinds of messages, and who knows it."""

    store: Path
    name_server: str
    broker: str

    def given(self, **options: str) -> dict[str, str]:
        return {"nameServer": self.name_server, **options}


def write(root: Path) -> None:
    """Plain, compressed and IPv6 ones, with tags and properties, one a second."""
    writer = StoreWriter(root, log_file_bytes=16 << 20, queue_file_bytes=60_000)
    for number in range(COUNT):
        tag = "ab"[number % 2]
        is_compressed = number % 5 == 0
        body = f"{number} {PLENTY}".encode()
        writer.append(
            TOPICS[number % 3],
            number // 3 % 2,
            compress(body) if is_compressed else body,
            {"TAGS": tag, "KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}", "n": str(number)},
            store_timestamp=NOVEMBER_ROOT_MS + number // 6 * 1000,
            born_host=HOST_V6 if number % 7 == 0 else bytes([10, 0, 0, 1, 0, 0, 0, 80]),
            tags_code=java_hash_code(tag),
            sys_flag=COMPRESSED if is_compressed else 0,
            flag=number,
            reconsume_times=number % 4,
        )
    writer.close()


def tell_routes(
    name_server: FakeServer, brokers: dict[str, str], topics: Sequence[str] = TOPICS
) -> None:
    """Register all topics; "gone" is in the list and has no route."""
    listed = TopicList([*topics, "TBW102", "broker-a", "gone"])
    name_server.on(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        lambda command: command.answer(body=listed.encode()),
    )

    def route(command: RemotingCommand) -> RemotingCommand:
        if (command.fields or {})["topic"] not in (*topics, "broker-a"):
            return command.answer(17, remark="no route")
        data = TopicRouteData(
            [QueueData(name, 2, 2, 6) for name in brokers],
            [BrokerData("c", name, {0: address}) for name, address in brokers.items()],
        )
        return command.answer(body=data.encode(standard_json=True))

    name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)


@pytest.fixture(params=["in bulk", "by pulls"])
def served(
    running: Served, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Served:
    """Read in both ways: as if the broker had said lately that it is an official one, too."""
    if request.param == "by pulls":
        monkeypatch.setitem(cluster_module._REFUSED_UNTIL_S, running.broker, inf)
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("cluster")
    write(root)
    with serving_broker(root) as running:  # stopped again: the files have all of it then
        send_a_batch(f"{HOST}:{running.ports.main}")
    with serving_broker(root) as running, FakeServer() as name_server:
        address = f"{HOST}:{running.ports.main}"
        tell_routes(name_server, {"broker-a": address})
        yield Served(root, name_server.address, address)


def send_a_batch(address: str) -> None:
    """And makes the topics, whose messages the store has already."""
    batch = [BatchMessage(b"of a batch", b"TAGS\x01a\x02"), BatchMessage(b"and more")]
    body = encode_batch(batch)
    with SyncConnection(address) as line:
        for topic in TOPICS:
            header = CreateTopicHeader(topic, "TBW102", 2, 2, 6, "SINGLE_TAG")
            line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        line.ask(send_command(body, topic="orders", queue_id=1, batch=True))


def both(served: Served, **given: str) -> tuple[list[Any], list[Any]]:
    """Over the network, and from the files."""
    store = {"store": str(served.store), "brokerName": "broker-a"}
    return rows_of(served.given(**given)), rows_of({**store, **given})


def test_every_column_of_every_message_equals_the_store(served: Served) -> None:
    found, stored = both(served)
    assert found == stored
    assert len(found) == COUNT * 2 // 3 + 2
    assert {row["brokerName"] for row in found} == {"broker-a"}
    assert sum(row["body"].endswith(PLENTY.encode()) for row in found) == COUNT * 2 // 3
    assert [row["body"] for row in found[50:52]] == [b"of a batch", b"and more"]
    assert any(row["bornHost"].startswith("[::1]") for row in found)


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "%DLQ%group"},
        {"topics": "orders,paid", "subExpression": "b"},
        {"topicPattern": "p.*", "subExpression": "n BETWEEN 20 AND 90", "expressionType": "SQL92"},
        {"startingTimestamp": str(NOVEMBER_ROOT_MS + 7000)},
        {"startingTimestamp": str(NOVEMBER_ROOT_MS + 7001)},
        {"startingTimestamp": "0", "endingTimestamp": str(NOVEMBER_ROOT_MS + 9999)},
        {"topic": "paid", "maxRecordsPerPartition": "7"},
    ],
)
def test_options_work_as_for_a_store(served: Served, given: dict[str, str]) -> None:
    found, stored = both(served, **given)
    assert found == stored != []


def test_offsets_are_reported_per_broker_and_queue(served: Served) -> None:
    offsets = '{"paid":{"broker-a":{"0":5,"1":-1}}}'
    found = rows_of(served.given(topic="paid", startingOffsets=offsets), ("queueId", "queueOffset"))
    assert [tuple(row.values()) for row in found] == [(0, number) for number in range(5, 25)]


def test_tasks_obey_message_limit_and_requested_count(
    served: Served,
) -> None:
    limited = tasks_of(served.given(topic="paid", maxRecordsPerPartition="7"))
    assert max(sum(p.end - p.first for p in task.ranges) for task in limited) == 7
    assert len(tasks_of(served.given(topic="paid"))) == 1
    assert len(tasks_of(served.given(topic="paid", minPartitions="3"))) >= 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topic": "order"}, r"topic: .* has no topic order; it has .*orders"),
        (
            {"topic": "paid", "startingOffsets": '{"paid":{"broker-a":{"0":5}}}'},
            "says nothing of queue 1 of paid at broker-a: name every queue",
        ),
        (
            {"topic": "paid", "endingOffsets": '{"paid":{"broker-a":{"0":5,"1":99}}}'},
            "queue 1 of paid at broker-a ends at 25, not at 99: messages are gone, or never were",
        ),
    ],
)
def test_missing_topics_and_brokers_are_refused(
    served: Served, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(StoreError, match=sentence):
        tasks_of(served.given(**given))


def test_no_group_appears_at_the_broker_and_no_offset_is_committed(served: Served) -> None:
    rows_of(served.given())
    with SyncConnection(served.broker) as line:
        groups = line.ask(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})).body
        offsets = line.ask(RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET, {})).body
    assert b"TOOLS_CONSUMER" in bytes(groups or b"")
    assert b"troupemq" not in bytes(groups or b"")
    assert b"paid" not in bytes(offsets or b"")


def test_a_stream_continues_per_broker_and_queue(served: Served) -> None:
    def reader() -> StoreStreamReader:
        given = served.given(topic="orders", startingOffsets="earliest")
        return StoreStreamReader(parse_options(given), ("queueId", "queueOffset"))

    start = reader().initialOffset()
    assert start == {"orders": {"broker-a": {"0": 0, "1": 0}}}
    found: list[tuple[int, int]] = []
    for _ in range(3):
        end = reader().latestOffset(start, ReadMaxRows(30))
        for task in reader().partitions(start, end):
            assert isinstance(task, RangesPartition)
            for batch in reader().read(task):
                found += [(row["queueId"], row["queueOffset"]) for row in batch.to_pylist()]
        start = end
    assert sorted(found) == [(0, number) for number in range(25)] + [
        (1, number) for number in range(27)
    ]
    assert reader().latestOffset(start, ReadAllAvailable()) == start
    with pytest.raises(StoreError, match="queue 7 of orders at broker-a is gone"):
        reader().latestOffset({"orders": {"broker-a": {"7": 3}}}, ReadAllAvailable())


def test_an_unreachable_name_server_is_skipped(served: Served) -> None:
    with FakeServer() as gone:
        pass
    given = {"nameServer": f"{gone.address};{served.name_server}", "topic": "paid"}
    assert len(rows_of(given)) == 50
    with pytest.raises(StoreError, match=f"nameServer {gone.address}: .*refused"):
        tasks_of({"nameServer": gone.address})
