"""Attempts of a hostile server to keep a client's event loop or I/O thread busy: A58.

Each step must end within STEP_MS_MAX of processor time, so that the answers of others arrive.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import thread_time
from unittest.mock import AsyncMock
from zlib import compress

import pytest

from protocol.codes import COMPRESSED
from protocol.codes import RequestCode as Code
from protocol.compression import DECOMPRESSED_BYTES_MAX
from protocol.frame import RemotingCommand, encode
from protocol.headers.client import PullMessageResponseHeader
from protocol.message import MessageRecord, encode_record
from tests.support.steps import STEP_MS_MAX, steps_of_io_threads, steps_of_loops
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq import BadAnswer, ConsumerSettings, MessageView, aio
from troupemq.client.admin.answers import GATHERED_PER_ROUND, Answers, Failures
from troupemq.client.aio.client import AioClient
from troupemq.client.connection import client as client_module
from troupemq.client.connection.client import HEARTBEATS_MAX, Client
from troupemq.client.message import RECORDS_MAX

pytestmark = pytest.mark.heavy

LONG_MS = WAIT_S * 1000
CODE = Code.GET_MAX_OFFSET
REFUSED = 9999
"""Code of a request that no client serves."""
FLOOD = 12_000
"""Requests that come in one or two reads of 256 KiB."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as made:
        yield made


def flooded(server: FakeServer) -> Callable[[RemotingCommand], bytes]:
    """Return a handler whose answer comes behind refused requests."""
    requests = b'\0\0\0\x11\0\0\0\x0d{"code":%d}' % REFUSED
    assert len(requests) == 21
    return lambda command: requests * FLOOD + encode(command.answer())


def question() -> RemotingCommand:
    return RemotingCommand(CODE, {"topic": "T"})


def test_a58_refused_requests_of_a_server_take_turns_on_the_io_thread(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13,000 of one read took 0.4 s, in which no other answer arrived."""
    server.on(CODE, flooded(server))
    with steps_of_io_threads(monkeypatch) as longest:
        client = Client(server.address, ip="127.0.0.1")
        try:
            client.remoting.call(server.address, question(), LONG_MS)
        finally:
            client.remoting.close()
    assert longest.ms < STEP_MS_MAX


def test_a58_refused_requests_of_a_server_take_turns_on_the_event_loop(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on(CODE, flooded(server))

    async def ask() -> None:
        client = AioClient(server.address, ip="127.0.0.1")
        client.remoting.open()
        try:
            await client.remoting.call(server.address, question(), LONG_MS)
        finally:
            await client.remoting.close()

    with steps_of_loops(monkeypatch) as longest:
        asyncio.run(ask())
    assert longest.ms < STEP_MS_MAX


def test_a58_refused_requests_have_few_lines_in_the_log(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "monotonic", lambda: 7.5)
    request = encode(RemotingCommand(REFUSED))
    server.on(CODE, lambda command: request * 100 + encode(command.answer()))
    with caplog.at_level(logging.INFO, "troupemq"):
        client = Client(server.address, ip="127.0.0.1")
        try:
            client.remoting.call(server.address, question(), LONG_MS)
        finally:
            client.remoting.close()
    lines = [each for each in caplog.records if "unsupported" in each.getMessage()]
    assert len(lines) == client_module.REFUSALS_OF_SECOND_MAX


def test_a58_requests_that_take_long_end_a_turn(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of a consumer of 1,000 queues takes 15 ms, and 30 of them came in one turn."""

    def work(_: RemotingCommand) -> None:
        end_s = thread_time() + 0.008
        while thread_time() < end_s:
            pass

    request = encode(RemotingCommand(REFUSED))
    server.on(CODE, lambda command: request * 30 + encode(command.answer()))
    with steps_of_io_threads(monkeypatch) as longest:
        client = Client(server.address, ip="127.0.0.1")
        client.serves[REFUSED] = work
        try:
            client.remoting.call(server.address, question(), LONG_MS)
        finally:
            client.remoting.close()
    assert longest.ms < STEP_MS_MAX


def route_of(brokers: int) -> bytes:
    data = ",".join(
        f'{{"brokerAddrs":{{"0":"127.0.0.1:1"}},"brokerName":"{number}","cluster":"c"}}'
        for number in range(brokers)
    )
    return f'{{"brokerDatas":[{data}],"queueDatas":[]}}'.encode()


def empty_brokers() -> bytes:
    return b'{"brokerDatas":[' + b",".join([b"{}"] * 90_000) + b"]}"


@pytest.mark.parametrize("body", [route_of(60_000), empty_brokers()])
def test_a58_a_long_route_leaves_the_event_loop_free(
    body: bytes, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 brokers took 2 s."""
    server.on(Code.GET_ROUTEINFO_BY_TOPIC, lambda command: command.answer(body=body))

    async def ask() -> None:
        client = AioClient(server.address, ip="127.0.0.1")
        client.remoting.open()
        try:
            with suppress(BadAnswer):
                await client.routes.look_up("Topic")
            await client.routes.refresh(())
        finally:
            await client.remoting.close()

    with steps_of_loops(monkeypatch) as longest:
        asyncio.run(ask())
    assert longest.ms < STEP_MS_MAX


def test_a58_a_heartbeat_to_thousands_of_brokers_takes_turns(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 requests were made, signed and sent in one step."""
    monkeypatch.setattr(AioClient, "carry_out", carried := AsyncMock(return_value=[]))
    carried.side_effect = lambda wanted: [None] * len(wanted.calls)

    async def beat() -> None:
        client = AioClient(server.address, ip="127.0.0.1")
        client.remoting.open()
        await client.run(client.heartbeating([f"127.0.0.1:{port}" for port in range(5000)]))
        await client.remoting.close()

    asyncio.run(beat())
    assert max(len(call.args[0].calls) for call in carried.await_args_list) == HEARTBEATS_MAX
    assert sum(len(call.args[0].calls) for call in carried.await_args_list) == 5000


def test_a58_a_list_of_many_members_leaves_the_event_loop_free(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = b'{"consumerIdList":[' + b",".join(b'"%d"' % n for n in range(200_000)) + b"]}"
    serve_routes(server, {"b": server}, {"Topic": 1})
    server.succeed(Code.HEART_BEAT)
    server.succeed(Code.UNREGISTER_CLIENT)
    server.on(Code.GET_CONSUMER_LIST_BY_GROUP, lambda command: command.answer(body=members))

    async def consume() -> None:
        consumer = aio.PullConsumer("g", server.address, client_ip="127.0.0.1")
        await consumer.subscribe("Topic")
        async with consumer:
            await asyncio.to_thread(server.next, Code.GET_CONSUMER_LIST_BY_GROUP)
            await consumer._client.run(consumer._rebalancing.run(["Topic"]))

    with steps_of_loops(monkeypatch) as longest:
        asyncio.run(consume())
    assert longest.ms < STEP_MS_MAX


def push(server: FakeServer, body: bytes, wanted: int) -> None:
    """Consume a pulled body until so many messages, or the second pull, on an event loop."""
    serve_routes(server, {"b": server}, {"Topic": 1})
    for code in (Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.UPDATE_CONSUMER_OFFSET):
        server.succeed(code)
    server.succeed(Code.QUERY_CONSUMER_OFFSET, offset="0")
    members = b'{"consumerIdList":["127.0.0.1@c"]}'
    server.on(Code.GET_CONSUMER_LIST_BY_GROUP, lambda command: command.answer(body=members))
    header = PullMessageResponseHeader(0, wanted, 0, wanted).encode()
    pulls: list[RemotingCommand] = []

    def pulled(command: RemotingCommand) -> RemotingCommand | None:
        pulls.append(command)
        return command.answer(0, dict(header), body=body) if len(pulls) == 1 else None

    server.on(Code.PULL_MESSAGE, pulled)
    settings = ConsumerSettings(pull_error_delay_ms=10)
    seen: list[int] = []

    async def consume() -> None:
        over = asyncio.Event()

        async def handle(messages: Sequence[MessageView]) -> None:
            seen.append(len(messages[0].body))
            if len(seen) == wanted:
                over.set()

        consumer = aio.PushConsumer(
            "g", handle, server.address, instance_name="c", client_ip="127.0.0.1", settings=settings
        )
        await consumer.subscribe("Topic")
        async with consumer, asyncio.timeout(WAIT_S):
            while not over.is_set() and len(pulls) < 2:
                await asyncio.sleep(0.01)
            if len(pulls) == 1 or wanted <= RECORDS_MAX:
                await over.wait()

    asyncio.run(consume())


LONG_PROPERTIES = b"\x02".join(b"%d\x01v" % number for number in range(3000))


@pytest.mark.parametrize(
    ("record", "count"),
    [
        (MessageRecord("Topic", b"b" * 50, b"", 0, 0), 100_000),
        (MessageRecord("Topic", b"body", LONG_PROPERTIES, 0, 0), 400),
    ],
)
def test_a58_a_long_pull_leaves_the_event_loop_free(
    record: MessageRecord, count: int, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of 100,000 messages took 2 s."""
    records = [encode_record(replace(record, queue_offset=number)) for number in range(count)]
    with steps_of_loops(monkeypatch) as longest:
        push(server, b"".join(records), count)
    assert longest.ms < STEP_MS_MAX


def test_a58_a_compressed_body_is_unfolded_off_the_event_loop(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = compress(bytes(DECOMPRESSED_BYTES_MAX), 1)
    record = encode_record(MessageRecord("Topic", body, sys_flag=COMPRESSED))
    with steps_of_loops(monkeypatch) as longest:
        push(server, record, 1)
    assert longest.ms < STEP_MS_MAX


def test_a58_a_long_list_of_topics_leaves_the_event_loop_of_an_admin_free(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = b'{"topicList":[' + b",".join(b'"%d"' % n for n in range(200_000)) + b"]}"
    code = Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    server.on(code, lambda command: command.answer(body=names))

    async def ask() -> int:
        async with aio.Admin(server.address) as admin:
            return len(await admin.topics())

    with steps_of_loops(monkeypatch) as longest:
        assert asyncio.run(ask()) == 200_000
    assert longest.ms < STEP_MS_MAX


def test_a58_results_are_gathered_in_turns_with_other_coroutines() -> None:
    """Results about 60,000 queues took 0.2 s in one step."""
    count, turns = 4 * GATHERED_PER_ROUND, 0

    async def found(_: Failures) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    async def gather() -> int:
        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        answers = await Answers.gathered(found, is_change=False)
        ticking.cancel()
        return len(answers)

    assert asyncio.run(gather()) == count
    assert turns >= 4
