"""Tasks of a sink at a broker of ours: what is sent, what a repeat finds, what is refused."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from protocol.bodies import BrokerData, ClusterInfo
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.properties import find_pairs
from spark.sink.writer import TaskDone, TaskName, send_task
from storage.errors import StoreError
from tests.spark.sink.served import Served, batches, sequences, serving, tell_routes
from tests.troupemq.fake_server import FakeServer

ROWS = [{"body": f"body {number}".encode(), "tags": "ab"[number % 2]} for number in range(10)]
_queries = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("sink")) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Served:
    tell_routes(server.name_server, {"broker-a": server.broker})
    return server


@pytest.fixture
def name() -> TaskName:
    return TaskName(f"query-{next(_queries)}", 3, 1)


def stored(served: Served, name: TaskName, topic: str = "orders") -> list[Any]:
    own = f"TROUPE_SINK\x01{name.query}:".encode()
    return [record for record in served.records(topic) if own in record.properties]


def test_rows_become_messages_in_order(served: Served, name: TaskName) -> None:
    rows = [
        {
            "topic": "paid" if number == 7 else "orders",
            "body": f"body {number}",
            "tags": "red" if number % 2 else None,
            "keys": ["k1", "k2"],
            "properties": [("color", "blue"), ("UNIQ_KEY", "of a read"), ("empty", "")],
            "flag": number,
            "queueKey": f"customer {number % 3}",
        }
        for number in range(9)
    ]
    done = send_task(name, batches(rows), served.options())
    assert done == TaskDone(9, 0)
    records = stored(served, name)
    assert [record.body.decode() for record in records] == [f"body {n}" for n in range(9) if n != 7]
    assert [record.flag for record in records] == [0, 1, 2, 3, 4, 5, 6, 8]
    queues = {(record.flag % 3, record.queue_id) for record in records}
    assert len(queues) == 3, "a key has one queue"
    found = dict(find_pairs(records[1].properties))
    assert (found[b"TAGS"], found[b"KEYS"], found[b"color"]) == (b"red", b"k1 k2", b"blue")
    assert found[b"UNIQ_KEY"] != b"of a read"
    assert [record.body for record in stored(served, name, "paid")] == [b"body 7"]


def test_the_option_overrides_the_column(served: Served, name: TaskName) -> None:
    rows = [{"topic": "nowhere", "body": b"x"}]
    send_task(name, batches(rows), served.options(topic="paid"))
    assert len(stored(served, name, "paid")) == 1


def test_a_repeated_batch_is_recognized(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders", messagesPerRequest="2")
    assert send_task(name, batches(ROWS[:5]), options) == TaskDone(5, 0)
    assert send_task(name, batches(ROWS), options) == TaskDone(5, 5)
    assert send_task(name, batches(ROWS), options) == TaskDone(0, 10)
    assert set(sequences(stored(served, name)).values()) == {1}
    assert len(stored(served, name)) == 10


def test_an_earlier_batch_counts_as_done(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders")
    send_task(name, batches(ROWS), options)
    older = TaskName(name.query, name.batch - 1, name.partition)
    assert send_task(older, batches(ROWS[:4]), options) == TaskDone(0, 4)
    assert len(stored(served, name)) == 10


def test_a_repeat_with_different_rows_is_refused(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders")
    send_task(name, batches(ROWS[:5]), options)
    swapped = [ROWS[1], ROWS[0], *ROWS[2:]]
    with pytest.raises(StoreError, match=r"batch 3 was planned differently before.*sortRows"):
        send_task(name, batches(swapped), options)
    with pytest.raises(StoreError, match="planned differently"):
        send_task(name, batches(ROWS[:3]), options)
    assert len(stored(served, name)) == 5


def test_sorted_rows_may_arrive_in_any_order(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders", sortRows="true", messagesPerRequest="3")
    send_task(name, batches(ROWS), options)
    assert send_task(name, batches(ROWS[::-1]), options) == TaskDone(0, 10)
    assert len(stored(served, name)) == 10


def test_equal_rows_become_separate_messages(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders", sortRows="true")
    send_task(name, batches(ROWS[:1] * 7), options)
    assert len(stored(served, name)) == 7


WRONG_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no body": ({"body": None}, "row 1 of this partition: body is null"),
    "separator": ({"body": b"", "tags": "a\x02b"}, "property 'TAGS' has a separator"),
    "too much": ({"body": b"", "tags": "a" * 33_000}, "take 33005 bytes: at most 32367"),
}


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_an_invalid_row_is_refused_with_its_number(
    served: Served, name: TaskName, kind: str
) -> None:
    row, words = WRONG_ROWS[kind]
    with pytest.raises(StoreError, match=words):
        send_task(name, batches([ROWS[0], row]), served.options(topic="orders"))


def test_a_message_that_the_broker_refuses_ends_the_task(served: Served, name: TaskName) -> None:
    rows = [{"body": bytes(5 << 20)}]
    with pytest.raises(StoreError, match="answered MESSAGE_ILLEGAL"):
        send_task(name, batches(rows), served.options(topic="orders"))


def test_an_unknown_topic_is_an_error_after_the_timeout(served: Served, name: TaskName) -> None:
    """A name server without brokers may have just started."""
    served.name_server.on(
        RequestCode.GET_BROKER_CLUSTER_INFO,
        lambda asked: asked.answer(body=ClusterInfo({}, {}).encode()),
    )
    rows = [{"topic": "nowhere", "body": b"x"}]
    with pytest.raises(StoreError, match=r"given up after 0 ms.*knows no topic nowhere: make it"):
        send_task(name, batches(rows), served.options(sendTimeoutMs="0"))


def test_a_topic_that_no_name_server_has_fails_at_once(served: Served, name: TaskName) -> None:
    """The task asked again for a minute, as if the broker were still starting."""
    known = ClusterInfo({"broker-a": BrokerData("cluster", "broker-a", {0: served.broker})}, {})
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    served.name_server.on(code, lambda asked: asked.answer(body=known.encode()))
    rows = [{"topic": "nowhere", "body": b"x"}]
    try:
        with pytest.raises(StoreError, match=r"^topic nowhere not found: create it with troupemq"):
            send_task(name, batches(rows), served.options(sendTimeoutMs="60000"))
    finally:
        served.name_server.on(code, lambda asked: asked.answer(body=ClusterInfo({}, {}).encode()))


def test_a_broker_that_does_not_answer_is_waited_for(served: Served, name: TaskName) -> None:
    """The broker may have a part of the batch, so nothing is sent to the other one."""
    for brokers, words in (
        ({"broker-a": served.broker, "broker-b": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"broker-a": served.broker, "broker-b": None}, "broker broker-b of topic orders has no"),
    ):
        tell_routes(served.name_server, brokers)
        with pytest.raises(StoreError, match=words):
            send_task(name, batches(ROWS), served.options(topic="orders", sendTimeoutMs="0"))
    assert stored(served, name) == []


def test_only_named_brokers_are_used_and_waited_for(served: Served, name: TaskName) -> None:
    options = served.options(topic="orders", brokers="broker-a,broker-b", sendTimeoutMs="0")
    with pytest.raises(StoreError, match="cannot be written to on broker-b"):
        send_task(name, batches(ROWS), options)
    tell_routes(served.name_server, {"broker-a": served.broker, "broker-b": "127.0.0.1:1"})
    options = served.options(topic="orders", brokers="broker-a", sendTimeoutMs="0")
    assert send_task(name, batches(ROWS), options) == TaskDone(10, 0)


def test_a_repeat_continues_at_the_broker_with_the_first_part(
    served: Served, name: TaskName
) -> None:
    """However many brokers the topic has got since."""
    options = served.options(topic="orders")
    send_task(name, batches(ROWS[:5]), options)
    with FakeServer() as other:
        other.succeed(RequestCode.GET_SINK_PROGRESS)
        others = {f"broker-{letter}": other.address for letter in "bcdefgh"}
        tell_routes(served.name_server, {"broker-a": served.broker, **others})
        assert send_task(name, batches(ROWS), options) == TaskDone(5, 5)


def test_a_broker_that_lost_the_first_part_ends_the_task(name: TaskName) -> None:
    """Under ASYNC_FLUSH a power cut takes what was answered: the rows are not here any more."""
    with FakeServer() as name_server, FakeServer() as broker:
        tell_routes(name_server, {"broker-a": broker.address})
        broker.succeed(RequestCode.GET_SINK_PROGRESS)
        broker.on(
            RequestCode.SEND_SINK_BATCH,
            lambda command: command.answer(ResponseCode.SINK_BATCH_HAS_GAP, remark="gap"),
        )
        served = Served(name_server, broker.address, None)
        with pytest.raises(StoreError, match="the task has to run again"):
            send_task(name, batches(ROWS), served.options(topic="orders"))


def test_temporary_refusals_are_retried(name: TaskName) -> None:
    answers = iter(
        [ResponseCode.SYSTEM_BUSY, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SYSTEM_ERROR]
    )

    def answer(command: RemotingCommand) -> RemotingCommand:
        code = next(answers, ResponseCode.SUCCESS)
        fields = {"batch": "3", "sequence": "10", "chain": "00" * 8}
        return command.answer(code, fields)

    with FakeServer() as name_server, FakeServer() as broker:
        tell_routes(name_server, {"broker-a": broker.address})
        broker.succeed(RequestCode.GET_SINK_PROGRESS)
        broker.on(RequestCode.SEND_SINK_BATCH, answer)
        served = Served(name_server, broker.address, None)
        done = send_task(name, batches(ROWS), served.options(topic="orders"))
    assert done == TaskDone(10, 0)


def test_a_broker_without_sink_requests_gets_plain_sends(name: TaskName) -> None:
    """At least once, with keys and marks that never change."""
    received: list[RemotingCommand] = []

    def take(command: RemotingCommand) -> RemotingCommand:
        received.append(command)
        return command.answer(ResponseCode.SUCCESS)

    rows: list[dict[str, Any]] = [*ROWS, {"body": b"later", "delayLevel": 3}]
    with FakeServer() as name_server, FakeServer() as broker:
        tell_routes(name_server, {"broker-a": broker.address})
        broker.on(
            RequestCode.GET_SINK_PROGRESS,
            lambda command: command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        broker.on(RequestCode.SEND_BATCH_MESSAGE, take)
        broker.on(RequestCode.SEND_MESSAGE_V2, take)
        served = Served(name_server, broker.address, None)
        for _ in range(2):
            done = send_task(name, batches(rows), served.options(topic="orders"))
            assert done == TaskDone(11, 0)
    assert [command.code for command in received[:5]] == [RequestCode.SEND_BATCH_MESSAGE] * 4 + [
        RequestCode.SEND_MESSAGE_V2
    ]
    assert [command.body for command in received[:5]] == [command.body for command in received[5:]]
    last = dict(find_pairs((received[4].fields or {})["i"].encode()))
    assert last[b"DELAY"] == b"3"
    assert last[b"TROUPE_SINK"].startswith(f"{name.query}:1:3:10:".encode())
