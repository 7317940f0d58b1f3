"""The flows on an event loop: a coroutine carries out what they yield, and no thread is needed."""

import asyncio
from time import monotonic
from typing import Any

from tests.troupemq.client.receiving.pop_broker import PopBroker
from tests.troupemq.fake_server import FakeServer
from troupemq.client.aio.client import AioClient
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import ClientError
from troupemq.client.receiving.flows import (
    Ask,
    FindRoute,
    Flow,
    Flows,
    Pause,
    ReceiveTerms,
    Several,
    Wanted,
)

SLACK_MS = 10_000


async def awaited(client: AioClient, flow: Flow[Any]) -> Any:
    try:
        wanted = next(flow)
        while True:
            try:
                found = await carried_out(client, wanted)
            except ClientError as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(found)
    except StopIteration as done:
        return done.value


async def carried_out(client: AioClient, wanted: Wanted) -> Any:
    def call(ask: Ask) -> Any:
        address = client.routes.master(ask.broker_name)
        return client.remoting.call(address, ask.command, ask.timeout_ms + SLACK_MS)

    match wanted:
        case Ask():
            return await call(wanted)
        case Several():
            calls = [call(ask) for ask in wanted.asks]
            enough = asyncio.ALL_COMPLETED if wanted.wait_all else asyncio.FIRST_COMPLETED
            await asyncio.wait(calls, timeout=wanted.timeout_ms / 1000, return_when=enough)
            return [each.result() if each.done() else None for each in calls]
        case FindRoute():
            return await client.routes.get(wanted.topic)
        case Pause():
            await asyncio.sleep(wanted.ms / 1000)


def test_a_coroutine_receives_and_settles() -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        broker = PopBroker(namesrv, server, {"T": 1, "U": 1})
        topics = {name: TopicSubscription.of(name, "*", None, 1) for name in ("T", "U")}
        flows = Flows(ReceiveTerms("g", 60_000, True, False, 0, 16), monotonic)

        async def main() -> None:
            client = AioClient(namesrv.address)
            await client.start()
            try:
                waiting = asyncio.create_task(awaited(client, flows.receive(topics, 32, 10_000)))
                while not broker.waits():
                    await asyncio.sleep(0)
                broker.add(b"a", b"b", b"c")
                first, second, third = await waiting
                await awaited(client, flows.ack([first]))
                await awaited(client, flows.retry(second, delay_level=5))
                await awaited(client, flows.change_all([third], 0, 5000))
            finally:
                await client.stop(1)

        asyncio.run(main(), debug=True)
        assert broker.acked == [b"a"]
        assert [each.retry_delay_level for each in broker.changes] == [5, None]
