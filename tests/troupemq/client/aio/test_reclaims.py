"""Messages in progress whose connection breaks, in virtual time; the logic is that of threads."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.actors import new_seed
from troupemq import ConsumeFrom, Message, aio
from troupemq.testing import VirtualBroker, simulated

ENDS = ["cut", "restart", "kill"]


@pytest.fixture(params=[1, 2, None])
def broker(request: pytest.FixtureRequest) -> Iterator[VirtualBroker]:
    seed = request.param or new_seed()
    print(f"TROUPEMQ_SEED={seed}")
    with simulated(seed, topics={"Tasks": 2}) as made:
        made.run(send(made))
        yield made


async def send(broker: VirtualBroker) -> None:
    async with aio.Producer("shop", broker.namesrv) as producer:
        await producer.send(Message("Tasks", b"task"))


def member(broker: VirtualBroker) -> aio.SimpleConsumer:
    return aio.SimpleConsumer("workers", broker.namesrv, begin=ConsumeFrom.FIRST_OFFSET)


async def holding(consumer: aio.SimpleConsumer) -> aio.Delivery:
    await consumer.subscribe("Tasks")
    (delivery,) = await consumer.receive(1)
    await asyncio.sleep(20)  # what the broker keeps of the group is on its disk
    return delivery


def refuse(broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch, for_s: float) -> None:
    """Let the broker be unreachable for a time."""
    until_s, connected = broker.now_s() + for_s, broker.connected

    def refused(address: str, transport: Any) -> Any:
        if broker.now_s() < until_s and address != broker.namesrv:
            raise ConnectionRefusedError("out of reach")
        return connected(address, transport)

    monkeypatch.setattr(broker, "connected", refused)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("for_s", [0.0, 0.6])
def test_task_in_progress_is_not_repeated(
    broker: VirtualBroker, end: str, for_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with member(broker) as first, member(broker) as other:
            held = await holding(first)
            await other.subscribe("Tasks")
            receiving = asyncio.create_task(other.receive(wait_ms=60_000))
            await asyncio.sleep(1)
            refuse(broker, monkeypatch, for_s)
            getattr(broker, end)()
            assert await receiving == await first.receive(wait_ms=1_000) == []
            await held.ack()
            assert await other.receive(wait_ms=60_000) == []

    broker.run(main())


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("for_s", [3.0, 30.0])
def test_only_worker_goes_on_after_any_time(
    broker: VirtualBroker, end: str, for_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with member(broker) as only:
            held = await holding(only)
            refuse(broker, monkeypatch, for_s)
            getattr(broker, end)()
            assert await only.receive(wait_ms=60_000) == []
            assert only.held() == [held]
            await held.ack()
        async with member(broker) as later:
            await later.subscribe("Tasks")
            assert await later.receive(wait_ms=60_000) == []

    broker.run(main())


def test_another_worker_has_the_task_after_a_longer_break(
    broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with member(broker) as first:
            held = await holding(first)
            refuse(broker, monkeypatch, 3.0)
            broker.cut()
            await asyncio.sleep(4)
            async with member(broker) as other:
                await other.subscribe("Tasks")
                (again,) = await other.receive()
                assert again.message.reconsume_times == 1
                await held.ack()  # settled already, by the copy
                await again.ack()

    broker.run(main())


def test_task_of_a_killed_worker_is_delivered_elsewhere_within_a_second(
    broker: VirtualBroker,
) -> None:
    async def main() -> None:
        async with member(broker) as killed, member(broker) as other:
            await holding(killed)
            killed._client.remoting.on_lost = lambda address: None  # nothing of it lives
            await other.subscribe("Tasks")
            broker.cut()
            begun_s = broker.now_s()
            (again,) = await other.receive()
            assert 0.9 < broker.now_s() - begun_s < 1.3
            await again.ack()

    broker.run(main())
