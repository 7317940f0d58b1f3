"""Attempts of a hostile server to keep a client's event loop or I/O thread busy: A58.

Each step must end within STEP_MS_MAX of processor time, so that the answers of others arrive.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from unittest.mock import AsyncMock

import pytest

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, encode
from tests.support.steps import STEP_MS_MAX, steps_of_io_threads, steps_of_loops
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq import BadAnswer, aio
from troupemq.client.aio.client import AioClient
from troupemq.client.connection.client import HEARTBEATS_MAX, Client

LONG_MS = WAIT_S * 1000
CODE = Code.GET_MAX_OFFSET
REFUSED = 9999
"""Code of a request that no client serves."""
FLOOD = 15_000
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
    members = b'{"consumerIdList":[' + b",".join(b'"%d"' % n for n in range(300_000)) + b"]}"
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
