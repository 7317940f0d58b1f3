"""The records about sends that a producer leaves in the trace topic."""

from threading import Event

import pytest

from protocol.codes import RequestCode
from protocol.compression import decompress
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from protocol.properties import parse
from protocol.topic_names import TRACE_TOPIC
from tests.troupemq.client.cluster import BATCH, MESSAGE, SEND, Cluster, stored
from tests.troupemq.fake_server import serve_routes
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import InFlight, Producer
from troupemq.client.producing.transaction import TransactionProducer, TransactionState
from troupemq.client.settings import ProducerSettings

QUEUE = MessageQueue("T", "a", 0)
TRACED = ProducerSettings(trace=True)


def with_trace_on(command: RemotingCommand) -> RemotingCommand:
    answer = stored(command)
    assert answer.fields is not None
    answer.fields |= {
        "msgId": "7F00000100002A9F0000000000001267",
        "MSG_REGION": "Here",
        "TRACE_ON": "true",
    }
    return answer


@pytest.fixture(autouse=True)
def traced_cluster(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 1, TRACE_TOPIC: 1})
    for code in (SEND, BATCH):
        cluster.a.on(code, with_trace_on)
    cluster.a.succeed(RequestCode.END_TRANSACTION)


def traces(cluster: Cluster, count: int) -> tuple[list[list[str]], list[list[str]]]:
    """So many records, and the keys of each message of traces that they came in."""
    found: list[list[str]] = []
    keys: list[list[str]] = []
    while len(found) < count:
        command = cluster.a.next(SEND)
        header = SendMessageHeader.of_command(command)
        if header.topic == TRACE_TOPIC:
            keys.append(parse((header.properties or "").encode())["KEYS"].split(" "))
            body = decompress(bytes(command.body or b""), header.sys_flag).decode()
            records = body.split("\x02")
            assert records.pop() == ""
            found += [record.split("\x01") for record in records]
    assert len(found) == count
    return found, keys


def test_a_sends_trace_is_written_at_the_latest_at_the_stop(cluster: Cluster) -> None:
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        result = producer.send(MESSAGE)
        producer.send(Message("T", b"x", delay_level=3))
    (record, second), keys = traces(cluster, 2)
    assert record[0] == "Pub" and int(record[1]) > 0
    assert record[2:10] == [
        *("Here", "pg", "T", result.message_id, "new", "k"),
        *(cluster.a.address, "4"),
    ]
    assert int(record[10]) >= 0
    assert record[11:] == ["0", result.offset_message_id, "true"]
    assert second[6:8] == ["null", "null"] and second[11] == "3"
    assert keys[0][:2] == [result.message_id, "k"]


def test_keys_that_fit_no_message_lose_no_traces(cluster: Cluster) -> None:
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        results = [
            producer.send(MESSAGE),
            producer.send_batch([MESSAGE] * 1200),  # ids of 39,599 bytes
            producer.send(Message("T", b"x", keys=["\u4e2d" * 5000])),
            producer.send(Message("T", b"x", keys=["\u6587" * 8000])),
        ]
    records, keys = traces(cluster, len(results))
    assert sorted(record[5] for record in records) == sorted(each.message_id for each in results)
    assert all(len(" ".join(each).encode()) < 32_767 for each in keys)
    assert {results[0].message_id, "k", "\u4e2d" * 5000, "\u6587" * 8000} <= {
        key for each in keys for key in each
    }


def test_a_batch_is_one_trace_record(cluster: Cluster) -> None:
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        result = producer.send_batch([MESSAGE, MESSAGE])
    (record,), keys = traces(cluster, 1)
    assert (record[5], record[6], record[7]) == (result.message_id, "null", "null")
    assert keys == [[result.message_id]]


def test_a_transaction_is_traced_with_half_message_and_end(cluster: Cluster) -> None:
    with TransactionProducer(
        "pg", lambda view: None, cluster.namesrv.address, settings=TRACED
    ) as producer:
        result = producer.send_in_transaction(MESSAGE, lambda m, i: TransactionState.COMMIT)
    (half, end), _ = traces(cluster, 2)
    assert (half[0], half[11]) == ("Pub", "1")
    assert end[0] == "EndTransaction"
    assert end[2:] == [
        *("DefaultRegion", "pg", "T", result.transaction_id, "new", "k", cluster.a.address, "2"),
        *(result.transaction_id, "COMMIT_MESSAGE", "false"),
    ]


def test_traces_are_not_sent_to_a_broker_that_declines_them(cluster: Cluster) -> None:
    cluster.a.on(SEND, stored)
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        producer.send(MESSAGE)
    topics = set()
    while not cluster.a.received.empty():
        command = cluster.a.received.get()
        if command.code == SEND:
            topics.add(SendMessageHeader.of_command(command).topic)
    assert topics == {"T"}


def test_many_trace_records_are_several_messages(cluster: Cluster) -> None:
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        for number in range(4):
            producer.send(Message("T", b"x", keys=f"{number}" * 9000))
    _, keys = traces(cluster, 4)
    assert len(keys) >= 2
    assert max(sum(map(len, each)) for each in keys) < 20_000


@pytest.mark.parametrize("turn", range(6))  # a race: without its cure every third is lost
def test_sends_that_end_during_the_stop_are_traced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    stops = Event()
    wait_empty = InFlight.wait_empty

    def wait_noticed(self: InFlight, timeout_s: float) -> bool:
        stops.set()
        return wait_empty(self, timeout_s)

    def answer_late(command: RemotingCommand) -> RemotingCommand:
        assert stops.wait(5)
        return with_trace_on(command)

    monkeypatch.setattr(InFlight, "wait_empty", wait_noticed)
    cluster.a.on(SEND, answer_late)
    with Producer("pg", cluster.namesrv.address, settings=TRACED) as producer:
        producer.queues("T")
        producer.send_async(Message("T", b"x", keys="k" * 16_000))
    (record,), _ = traces(cluster, 1)
    assert record[7] == "k" * 16_000
