"""Tasks over the network: divided by bytes like those of a store, or by messages."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.raw_records import UNITS_ALONE_MAX
from remoting.sync_connection import SyncConnection
from spark.source import cluster as cluster_module
from spark.source import raw as raw_module
from spark.source.options import parse_options
from spark.source.reading import RangesPartition
from spark.source.stream import StoreStreamReader
from storage.errors import StoreError
from tests.spark.planned import planned, rows_of, tasks_of
from tests.spark.source.test_cluster import tell_routes
from tests.spark.store_writer import StoreWriter
from tests.support.sockets import HOST, serving_broker
from tests.troupemq.fake_server import FakeServer

COUNT = 400


@dataclass
class Served:
    """A store, and who tells of the broker over it."""

    store: Path
    name_server: str
    address: str

    def given(self, **options: str) -> dict[str, str]:
        return {"nameServer": self.name_server, "topic": "t", **options}

    def of_store(self, **options: str) -> dict[str, str]:
        return {"store": str(self.store), "topic": "t", **options}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("splits")
    writer = StoreWriter(root, log_file_bytes=16 << 20, queue_file_bytes=60_000)
    for number in range(COUNT):
        writer.append("t", int(number % 4 == 3), b"x" * (number * 7 % 500))
    writer.close()
    with serving_broker(root) as running, FakeServer() as name_server:
        address = f"{HOST}:{running.ports.main}"
        with SyncConnection(address) as line:
            header = CreateTopicHeader("t", "TBW102", 2, 2, 6, "SINGLE_TAG")
            line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        tell_routes(name_server, {"b": address}, ["t"])
        yield Served(root, name_server.address, address)


@pytest.mark.parametrize("units_at_once", [UNITS_ALONE_MAX, 7])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"maxBytesPerPartition": "10000"},
        {"maxBytesPerPartition": "1"},
        {"maxBytesPerPartition": "20000", "maxRecordsPerPartition": "13"},
        {"minPartitions": "7"},
    ],
)
def test_tasks_equal_those_of_the_store(
    served: Served, given: dict[str, str], units_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_module, "UNITS_ALONE_MAX", units_at_once)
    over_network = planned(parse_options(served.given(**given)))
    stored = planned(parse_options(served.of_store(**given)))
    assert over_network == [[replace(part, broker="b") for part in task] for task in stored]
    assert all(part.record_bytes for task in over_network for part in task)
    limit = int(given.get("maxBytesPerPartition", "100000000"))
    assert all(
        sum(part.record_bytes for part in task) <= limit
        or sum(part.end - part.first for part in task) == 1
        for task in over_network
    )


def stream(given: dict[str, str]) -> StoreStreamReader:
    told = {**given, "startingOffsets": "earliest"}
    return StoreStreamReader(parse_options(told), ("queueId", "queueOffset"))


def batches(reader: StoreStreamReader, limit: ReadLimit) -> list[list[tuple[int, int]]]:
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = []
        for task in reader.partitions(start, end):
            assert isinstance(task, RangesPartition)
            for batch in reader.read(task):
                rows += [(row["queueId"], row["queueOffset"]) for row in batch.to_pylist()]
        found.append(rows)
        start = end
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("limit", [5000, 40_000])
def test_batches_of_a_stream_obey_byte_limits_as_for_a_store(served: Served, limit: int) -> None:
    told = {"maxBytesPerTrigger": str(limit)}
    found = batches(stream(served.given(**told)), ReadMaxBytes(limit))
    assert found == batches(stream(served.of_store(**told)), ReadMaxBytes(limit))
    assert len(found) > 3
    assert sorted(row for rows in found for row in rows) == sorted(
        (queue_id, offset) for queue_id, end in ((0, 300), (1, 100)) for offset in range(end)
    )


# --- a broker that does not serve it


@pytest.fixture
def official(served: Served) -> Iterator[tuple[FakeServer, FakeServer]]:
    """Name server and broker; the broker passes on what an official one knows, too."""

    def pass_on(command: RemotingCommand) -> RemotingCommand:
        with SyncConnection(served.address) as line:
            answer = line.call(RemotingCommand(command.code, command.fields))
        return command.answer(answer.code, answer.fields, remark=answer.remark, body=answer.body)

    with FakeServer() as name_server, FakeServer() as broker:
        for code in (
            RequestCode.PULL_MESSAGE,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
        ):
            broker.on(code, pass_on)
        for code in (RequestCode.READ_RECORDS, RequestCode.READ_UNITS):
            broker.on(code, lambda c: c.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="?"))
        tell_routes(name_server, {"official": broker.address}, ["t"])
        yield name_server, broker


def asked(broker: FakeServer) -> list[int]:
    """The codes that came since the last call."""
    found = []
    while not broker.received.empty():
        found.append(broker.received.get().code)
    return found


def test_an_official_broker_is_pulled_from_after_one_refusal(
    official: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    name_server, broker = official
    given = {"nameServer": name_server.address, "topic": "t"}
    rows = rows_of(given, ("topic", "queueId", "queueOffset", "tagsCode"))
    assert len(rows) == COUNT
    codes = asked(broker)
    assert codes.count(RequestCode.READ_UNITS) == 1
    assert RequestCode.PULL_MESSAGE in codes and RequestCode.READ_RECORDS not in codes
    assert len(rows_of(given, ("body",))) == COUNT
    assert RequestCode.READ_UNITS not in asked(broker), "it would log a line each time"
    now_s = cluster_module._REFUSED_UNTIL_S[broker.address] + 1
    monkeypatch.setattr(cluster_module, "monotonic", lambda: now_s)
    assert all(task.bulk == frozenset() for task in tasks_of(given))
    assert asked(broker).count(RequestCode.READ_UNITS) == 1


def test_byte_limits_are_refused_for_official_brokers(
    official: tuple[FakeServer, FakeServer],
) -> None:
    name_server, _ = official
    given = {"nameServer": name_server.address, "topic": "t"}
    with pytest.raises(
        StoreError,
        match=r"^maxBytesPerPartition: the broker official tells no message lengths, .*"
        r"give maxRecordsPerPartition instead$",
    ):
        planned(parse_options({**given, "maxBytesPerPartition": "1000"}))
    reader = stream({**given, "maxBytesPerTrigger": "1000"})
    with pytest.raises(
        StoreError, match=r"^maxBytesPerTrigger: the broker official .* give maxOffsetsPerTrigger"
    ):
        reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1000))
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_our_and_official_brokers_are_read_together(
    served: Served, official: tuple[FakeServer, FakeServer]
) -> None:
    name_server, broker = official
    tell_routes(name_server, {"official": broker.address, "ours": served.address}, ["t"])
    given = {"nameServer": name_server.address, "topic": "t"}
    found: list[Any] = rows_of(given, ("topic", "brokerName", "queueId", "queueOffset"))
    assert len(found) == len({tuple(row.values()) for row in found}) == 2 * COUNT
    for task in tasks_of(given):
        assert task.bulk == {"ours"}
        assert len({part.broker for part in task.ranges}) == 1
