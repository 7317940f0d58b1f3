"""Attempts of a hostile broker on a consumer: A49. It says so, goes on, and holds little.

Each attempt comes for a while, then the broker is an honest one again: whatever it has is consumed.
"""

import logging
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from struct import pack

import pytest

from protocol.codes import COMPRESSED
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, encode
from protocol.headers.client import PullMessageResponseHeader
from protocol.message import MessageRecord, RecordError, decode_records, encode_record
from tests.security.test_attempts_on_clients import ANSWERS, HELD_BYTES_MAX, bomb, flood
from tests.troupemq.client.consuming.test_consumer import QUICK, Seen, consumer, fill
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import FakeServer, Handler
from troupemq.client.message import MessageQueue, view_of

TIMES = 5
"""Number of repetitions, over all queues."""

SHORT = replace(QUICK, pull_timeout_ms=50)
MESSAGES = 6
FOUND = PullMessageResponseHeader(0, 1, 0, 1).encode()
RECORD = encode_record(MessageRecord(TOPIC, b"body", b"KEYS\x01k", 0, 0))


def found(body: bytes, fields: dict[str, str] = FOUND, code: int = 0) -> Handler:
    return lambda command: command.answer(code, dict(fields), body=body)


PULLED: dict[str, Handler] = {
    **ANSWERS,
    "silence": lambda _: None,
    "no record": found(b"\xff" * 1000),
    "half a record": found(RECORD[:-10]),
    "a record of 2 GiB": found(pack(">i", (1 << 31) - 1) + RECORD[4:]),
    "a record of no bytes": found(bytes(4) + RECORD[4:]),
    "a record of negative length": found(pack(">i", -1) + RECORD[4:]),
    "another kind of record": found(RECORD[:4] + b"\0\0\0\1" + RECORD[8:]),
    "fields that are none": found(RECORD, {"nextBeginOffset": "x"}),
    "no fields": found(RECORD, {}),
    "an offset beyond all": found(b"", {**FOUND, "nextBeginOffset": str(1 << 70)}),
    "a code that nobody knows": found(RECORD, FOUND, 7777),
    "moved to nowhere": found(b"", {**FOUND, "nextBeginOffset": "-9"}, 21),
}
"""Answers to a pull, by name."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield FakeBroker(namesrv, server)


def first(
    broker: FakeBroker, code: Code, attempt: Handler, times: int = TIMES
) -> Callable[[], int]:
    """Answers so many requests of this code with the attempt; how many it were."""
    honest, tries = broker.server.handlers[code], [0]

    def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
        if tries[0] < times:
            tries[0] += 1
            return attempt(command)
        return honest(command)

    broker.server.on(code, answer)
    return lambda: tries[0]


@pytest.mark.parametrize("attempt", PULLED.values(), ids=PULLED.keys())
def test_a49_a_consumer_continues_despite_wrong_pull_answers(
    attempt: Handler, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    bodies, seen = fill(broker, MESSAGES), Seen()
    tries = first(broker, Code.PULL_MESSAGE, attempt)
    with caplog.at_level(logging.WARNING), consumer(broker, seen, SHORT):
        assert set(seen.take(MESSAGES)) == set(bodies)
    assert tries() == TIMES
    said = [each.getMessage() for each in caplog.records]
    assert any(each.startswith(("pull failed", "offset moved")) for each in said), said
    assert not any("task failed" in each for each in said), said


@pytest.mark.parametrize(
    "code", [Code.GET_CONSUMER_LIST_BY_GROUP, Code.QUERY_CONSUMER_OFFSET, Code.HEART_BEAT]
)
@pytest.mark.parametrize("name", ["a length of 2 GiB", "a deep body", "no JSON"])
def test_a49_a_consumer_gets_its_queues_despite_wrong_answers(
    code: Code, name: str, broker: FakeBroker
) -> None:
    bodies, seen = fill(broker, MESSAGES), Seen()
    first(broker, code, ANSWERS[name], 2)
    with consumer(broker, seen, SHORT):
        assert set(seen.take(MESSAGES)) == set(bodies)


def test_a49_a_decompression_bomb_is_a_failed_message(broker: FakeBroker) -> None:
    fill(broker, 0)
    record = MessageRecord(TOPIC, bomb(), sys_flag=COMPRESSED)
    broker.queues[0].append(encode_record(record))
    broker.add(0, b"the next one")
    seen = Seen()
    with consumer(broker, seen):
        assert seen.take(1) == [b"the next one"]
        broker.wait_committed("g", 0, 2)
    assert [(each.fields or {})["group"] for each in broker.sent_back] == ["g"]


@pytest.mark.parametrize("body_bytes", [10, 1 << 16])
def test_a49_a_flood_of_foreign_answers_is_not_buffered(
    body_bytes: int, broker: FakeBroker
) -> None:
    bodies, seen = fill(broker, MESSAGES), Seen()
    others = flood(10_000 if body_bytes < 100 else 100, body_bytes)
    with consumer(broker, seen):
        assert seen.take(MESSAGES) == bodies
        tracemalloc.start()
        try:
            broker.server.push(others)
            broker.add(0, b"behind them")
            assert seen.take(1) == [b"behind them"]
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most_bytes < HELD_BYTES_MAX


def test_a49_invalid_requests_of_a_broker_end_nothing(broker: FakeBroker) -> None:
    """The requests arrive on the thread that reads all answers."""
    random = Random(1)
    bodies = [None, b"{", b"[" * 100_000, b"\xff" * 100, b'{"offsetTable":{"a":1}}', RECORD[:-3]]
    fields = [None, {}, {"group": "g"}, {"consumerGroup": "g", "topic": TOPIC, "group": "g"}]
    asked = [Code.RESET_CONSUMER_CLIENT_OFFSET, Code.GET_CONSUMER_STATUS_FROM_CLIENT]
    asked += [Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY]
    asked += [Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.CHECK_TRANSACTION_STATE, Code.SEND_MESSAGE]
    fill(broker, 0)
    seen = Seen()
    with consumer(broker, seen):
        broker.add(0, b"before")
        assert seen.take(1) == [b"before"]
        for code in asked * 5:
            for body in bodies:
                more = random.choice(fields)
                broker.server.push(encode(RemotingCommand(code, more and dict(more), body)))
        broker.add(0, b"behind them")
        assert seen.take(1) == [b"behind them"]


def test_a49_a_damaged_record_is_refused_or_decoded() -> None:
    """Whatever else it raised would end the pulls of its queue."""
    random, queue = Random(1), MessageQueue(TOPIC, "b", 0)
    for _ in range(2000):
        data = bytearray(RECORD * 2)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        with suppress(RecordError):
            for record in decode_records(bytes(data[: random.randrange(len(data)) + 1])):
                view_of(record, queue)
