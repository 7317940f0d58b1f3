"""Servers for the tests of the sink: a broker of ours with topics, and its routes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.message import MessageRecord, decode_record
from protocol.properties import find_pairs
from remoting.sync_connection import SyncConnection
from spark.sink.options import SinkOptions, parse_sink_options
from tests.support.sockets import HOST, serving_broker
from tests.troupemq.fake_server import FakeServer

TOPICS = ("orders", "paid")
QUEUES = 4


@dataclass
class Served:
    """A broker that serves, and a name server that knows it as broker-a."""

    name_server: FakeServer
    broker: str
    running: Any

    def options(self, **options: str) -> SinkOptions:
        given = {"nameServer": self.name_server.address, "sendTimeoutMs": "5000", **options}
        return parse_sink_options(given)

    def records(self, topic: str = "orders") -> list[MessageRecord]:
        """All of a topic in the log, in its order."""
        log = self.running.broker.store.commit_log
        found = []
        for head in log.walk(log.min_offset()):
            if head.topic == topic.encode():
                view = log.view(head.physical_offset, head.record_bytes)
                found.append(decode_record(bytes(view)))
        return found


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    """Serve both, with the topics; stop them afterwards."""
    with serving_broker(root) as running, FakeServer() as name_server:
        address = f"{HOST}:{running.ports.main}"
        with SyncConnection(address) as line:
            for topic in TOPICS:
                header = CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
                line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        tell_routes(name_server, {"broker-a": address})
        yield Served(name_server, address, running)


def tell_routes(
    name_server: FakeServer,
    brokers: Mapping[str, str | None],
    topics: Sequence[str] = TOPICS,
) -> None:
    """Register the topics' routes; a broker without an address has no master."""

    def answer(command: RemotingCommand) -> RemotingCommand:
        if (command.fields or {})["topic"] not in topics:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        route = TopicRouteData(
            [QueueData(name, QUEUES, QUEUES, 6) for name in brokers],
            [
                BrokerData("cluster", name, {1: "127.0.0.1:1"} if address is None else {0: address})
                for name, address in brokers.items()
            ],
        )
        return command.answer(ResponseCode.SUCCESS, body=route.encode(standard_json=True))

    name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)
    known = ClusterInfo().encode()
    name_server.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=known))


def batches(rows: Sequence[Mapping[str, Any]], size: int = 3) -> list[pa.RecordBatch]:
    """Rows as Spark hands them over."""
    names = {name: None for row in rows for name in row}
    table = pa.Table.from_pylist([{**names, **row} for row in rows])
    return list(table.to_batches(max_chunksize=size))


def sequences(records: Sequence[MessageRecord]) -> Counter[str]:
    """Count each message of a sink, by partition, batch and sequence."""
    texts = (dict(find_pairs(record.properties))[b"TROUPE_SINK"].decode() for record in records)
    return Counter(text.partition(":")[2].rpartition(":")[0] for text in texts)
