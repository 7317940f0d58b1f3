"""Reads from a broker and writes to it by the one session, and their results."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.broker_server import RunningBroker
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.properties import parse
from remoting.sync_connection import SyncConnection
from tests.spark.ran import Ran, write_messages
from tests.spark.source.test_cluster import tell_routes
from tests.spark.store_writer import StoreWriter
from tests.support.golden import REPOSITORY
from tests.support.sockets import HOST, serving_broker
from tests.troupemq.fake_server import FakeServer

SUNK = ("versioned", "streamed")
PAGE, OF_THE_PAGE = "docs/pipeline.md", "paged"
"""Page with programs, and the topic that they send to here."""


@contextmanager
def over_the_network(ran: Ran) -> Iterator[None]:
    """Return the steps that read from a broker, which runs meanwhile."""
    root = ran.directory / "served"
    write_messages(StoreWriter(root, log_file_bytes=16 << 20, queue_file_bytes=60_000), 200)
    with serving_broker(root) as running, FakeServer() as name_server:
        routes = {"broker-a": f"{HOST}:{running.ports.main}"}
        tell_routes(name_server, routes, ["orders", "123", OF_THE_PAGE, *SUNK])
        given = {"nameServer": name_server.address, "topicPattern": "orders|123"}
        ran.rows("over the network", store=None, options=given, where="queueId = 1")
        ran.steps["stream over the network"] = {
            "do": "stream",
            "options": {**given, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"},
            "checkpoint": str(ran.directory / "network checkpoint"),
        }
        with plan_writes(ran, running, name_server.address):
            yield


@contextmanager
def plan_writes(ran: Ran, running: RunningBroker, name_server: str) -> Iterator[None]:
    """Plan batches and a stream from a store to new topics, some of them twice."""
    with SyncConnection(f"{HOST}:{running.ports.main}") as line:
        for topic in (OF_THE_PAGE, *SUNK):
            header = CreateTopicHeader(topic, "TBW102", 4, 4, 6, "SINGLE_TAG")
            line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
    columns = ["body", "tags", "keys", "properties", "keys as queueKey", "flag"]
    topics = {"topicPattern": "orders|123"}
    step: dict[str, Any] = {
        "do": "write",
        "store": str(ran.all.root),
        "read": topics,
        "columns": columns,
        "options": {
            "nameServer": name_server,
            "topic": "versioned",
            "txnAppId": "test",
            "txnVersion": "4",
        },
    }
    ran.steps["write"] = ran.steps["write again"] = step
    ran.steps["overwrite"] = {**step, "mode": "overwrite"}
    ran.steps["write a wrong column"] = {**step, "columns": ["body", "msgId"]}
    stream = {
        **step,
        "do": "write stream",
        "read": {**topics, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"},
        "options": {"nameServer": name_server, "topic": "streamed"},
        "checkpoint": str(ran.directory / "sink checkpoint"),
    }
    ran.steps["write a stream"] = stream
    ran.steps["a crash"] = {**stream, "do": "forget commit"}
    ran.steps["write the last batch again"] = stream
    plan_page(ran, name_server)
    yield
    ran.paged = sunk(running, OF_THE_PAGE)
    ran.sunk = {topic: sunk(running, topic) for topic in SUNK}


def plan_page(ran: Ran, name_server: str) -> None:
    """Plan every program of the page, with paths of the test."""
    text = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    folder = ran.directory / "page"
    ours = {
        "/data/store": str(ran.first.root),
        "/data/archive": str(ran.directory / "archive"),
        "localhost:9876": name_server,
        "/data/checkpoint": str(folder / "checkpoint"),
    }
    for number, block in enumerate(blocks):
        topic = OF_THE_PAGE if "nameServer" in block else "orders"
        block = block.replace('"Orders"', f'"{topic}"')
        for theirs, own in ours.items():
            block = block.replace(theirs, own + (f"{number}" if "checkpoint" in theirs else ""))
        blocks[number] = block
    ran.steps["page"] = {"do": "page", "blocks": blocks, "folder": str(folder)}


def check_page(ran: Ran) -> None:
    """Check that the stream's table has the whole topic, and that all messages arrived."""
    of_topic = [record for record in ran.first.records if record.topic == "orders"]
    wanted = [f"orders {each.queue_id} {each.queue_offset}" for each in of_topic]
    assert ran.results["page"] == sorted(wanted)
    sent = sorted(body for _, body in ran.paged)
    assert sent == [b"a book", b'{"region":"north","customer":"c1"}']


def check_written(ran: Ran) -> None:
    """Check that every message arrived once, and that errors are one sentence."""
    assert [ran.results[step] for step in ("write", "write again", "a crash")] == [None] * 3
    *batches, last = ran.results["write a stream"]
    assert batches
    assert ran.results["write the last batch again"] == [last]
    found = {topic: sorted(messages) for topic, messages in ran.sunk.items()}
    assert found == dict.fromkeys(SUNK, written_by(ran))
    assert "a topic cannot be overwritten" in ran.results["overwrite"]["error"]
    assert "a message has no column msgId to write" in ran.results["write a wrong column"]["error"]


def written_by(ran: Ran) -> list[tuple[str, bytes]]:
    """Return the expected contents of each topic, sorted."""
    records = enumerate(ran.all.records)
    return sorted((f"key{n}", each.body) for n, each in records if each.topic in ("orders", "123"))


def sunk(running: RunningBroker, topic: str) -> list[tuple[str, bytes]]:
    """Return the keys and bodies of all messages of a topic."""
    log = running.broker.store.commit_log
    heads = [head for head in log.walk(log.min_offset()) if head.topic == topic.encode()]
    records = [log.read_record(head.physical_offset) for head in heads]
    return [
        (parse(each.properties).get("KEYS", ""), each.body) for each in records if each is not None
    ]
