"""Attempts of a hostile server to keep a client's event loop or I/O thread busy: A58.

Each step must end within STEP_MS_MAX of processor time, so that the answers of others arrive.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, encode
from tests.support.steps import STEP_MS_MAX, steps_of_io_threads, steps_of_loops
from tests.troupemq.fake_server import WAIT_S, FakeServer
from troupemq.client.aio.client import AioClient
from troupemq.client.connection.client import Client

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
