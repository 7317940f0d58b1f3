"""Coroutines that receive messages and settle each by itself, against a broker in this process."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from troupemq import (
    ClientClosed,
    ConsumeFrom,
    DeliverySettled,
    Message,
    NotSupported,
    Producer,
    RetryLater,
)
from troupemq.aio import Delivery, SimpleConsumer
from troupemq.testing import LocalBroker, running_broker

Use = Callable[[SimpleConsumer], Awaitable[Any]]


pytestmark = pytest.mark.usefixtures("either_loop")


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Tasks": 2}) as made:
        yield made


def send(broker: LocalBroker, count: int) -> None:
    with Producer("shop", broker.namesrv) as producer:
        for number in range(count):
            producer.send(Message("Tasks", b"%d" % number))


def run(broker: LocalBroker, use: Use, **options: Any) -> Any:
    """Run `use` with a consumer of the group, and return its result."""

    async def main() -> Any:
        begin = ConsumeFrom.FIRST_OFFSET
        consumer = SimpleConsumer("workers", broker.namesrv, begin=begin, **options)
        async with consumer:
            await consumer.subscribe("Tasks")
            return await use(consumer)

    return asyncio.run(main(), debug=True)


async def received(consumer: SimpleConsumer, count: int) -> list[Delivery]:
    """Return so many messages."""
    found: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await consumer.receive(wait_ms=2000)
    return found


def test_received_messages_are_settled_one_by_one(broker: LocalBroker) -> None:
    send(broker, 50)

    async def use(consumer: SimpleConsumer) -> list[int]:
        found = await received(consumer, 50)
        await asyncio.gather(*(each.ack() for each in reversed(found)))
        assert await consumer.receive(wait_ms=0) == []
        assert consumer.held() == []
        return [int(each.message.body) for each in found]

    assert sorted(run(broker, use)) == [*range(50)]
    assert broker.lag("workers") == 0


def test_messages_that_arrive_wake_a_receive(broker: LocalBroker) -> None:
    async def use(consumer: SimpleConsumer) -> bytes:
        receiving = asyncio.create_task(consumer.receive(wait_ms=10_000))
        await asyncio.to_thread(send, broker, 1)
        (delivery,) = await receiving
        await delivery.ack()
        return delivery.message.body

    assert run(broker, use) == b"0"


def test_iteration_yields_messages_until_the_stop(broker: LocalBroker) -> None:
    send(broker, 5)

    async def use(consumer: SimpleConsumer) -> int:
        count = 0
        async for delivery in consumer:
            async with delivery:
                count += 1
            if count == 5:
                await consumer.stop()
        return count

    assert run(broker, use) == 5


def test_block_that_fails_gives_its_message_back(broker: LocalBroker) -> None:
    send(broker, 1)

    async def use(consumer: SimpleConsumer) -> int:
        (delivery,) = await received(consumer, 1)
        with pytest.raises(LookupError):
            async with delivery:
                raise LookupError("no such task")
        with pytest.raises(DeliverySettled, match="given back"):
            await delivery.ack()
        await asyncio.to_thread(broker.advance, "10s")
        (again,) = await received(consumer, 1)
        assert again.message.failure == "LookupError: no such task"
        async with again:
            raise RetryLater(delay_level=1, reason="no stock")
        await asyncio.to_thread(broker.advance, "10s")
        (last,) = await received(consumer, 1)
        assert last.message.failure == "no stock"
        await last.ack()
        return last.message.reconsume_times

    assert run(broker, use) == 2


def test_cancelled_block_gives_its_message_back(broker: LocalBroker) -> None:
    send(broker, 1)

    async def use(consumer: SimpleConsumer) -> None:
        (delivery,) = await received(consumer, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), delivery:
                await asyncio.sleep(10)
        while not delivery.is_settled:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(broker.advance, "10s")
        await asyncio.gather(*(each.ack() for each in await received(consumer, 1)))

    run(broker, use)


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_receives_lose_no_message(broker: LocalBroker, seed: int) -> None:
    chance = random.Random(seed)

    async def use(consumer: SimpleConsumer) -> list[int]:
        sending = asyncio.create_task(asyncio.to_thread(send, broker, 60))
        found: list[Delivery] = []
        async with asyncio.timeout(20):
            while len(found) < 60:
                try:
                    async with asyncio.timeout(chance.random() * 0.01):
                        found += await consumer.receive(count_max=8, wait_ms=1000)
                except TimeoutError:
                    continue
        await sending
        await consumer.ack(found)
        return [int(each.message.body) for each in found]

    assert sorted(run(broker, use)) == [*range(60)], f"seed {seed}"


def test_stop_gives_back_what_is_held(broker: LocalBroker) -> None:
    send(broker, 3)

    async def hold(consumer: SimpleConsumer) -> None:
        assert len(await received(consumer, 3)) == 3

    async def take(consumer: SimpleConsumer) -> int:
        found = await received(consumer, 3)
        await consumer.ack(found)
        return len(found)

    run(broker, hold)
    assert run(broker, take) == 3


def test_stop_ends_a_receive_that_waits(broker: LocalBroker) -> None:
    async def use(consumer: SimpleConsumer) -> None:
        receiving = asyncio.create_task(consumer.receive(wait_ms=30_000))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            await consumer.stop()
            assert await receiving == []
        with pytest.raises(ClientClosed):
            await consumer.receive()

    run(broker, use)


def test_broker_without_receipts_is_named_as_such(broker: LocalBroker) -> None:
    broker.fail("POP_MESSAGE", "REQUEST_CODE_NOT_SUPPORTED")

    async def use(consumer: SimpleConsumer) -> None:
        with pytest.raises(NotSupported, match="needs TroupeMQ or RocketMQ 5"):
            await consumer.receive(wait_ms=500)

    run(broker, use)


def test_iteration_leaves_what_it_has_not_yielded_to_the_next(broker: LocalBroker) -> None:
    """The rest of an answer stayed with the consumer until its stop."""
    send(broker, 6)

    async def use(consumer: SimpleConsumer) -> list[int]:
        found: list[Delivery] = []
        async with asyncio.timeout(10):
            for _ in range(3):
                async for delivery in consumer:
                    found.append(delivery)
                    break
                gc.collect()  # PyPy ends an iterator that is left then
            with pytest.raises(LookupError):
                async for delivery in consumer:
                    found.append(delivery)
                    raise LookupError
            gc.collect()
            found += await received(consumer, 2)
        await consumer.ack(found)
        return [int(each.message.body) for each in found]

    assert sorted(run(broker, use)) == [*range(6)]


def test_cancelled_step_does_not_end_an_iteration(broker: LocalBroker) -> None:
    async def use(consumer: SimpleConsumer) -> bytes:
        iteration = aiter(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(iteration)
        await asyncio.to_thread(send, broker, 1)
        async with asyncio.timeout(10):
            delivery = await anext(iteration)
        await delivery.ack()
        return delivery.message.body

    assert run(broker, use) == b"0"


def test_nothing_is_yielded_that_a_stop_has_given_back(broker: LocalBroker) -> None:
    send(broker, 5)

    async def use(consumer: SimpleConsumer) -> None:
        count = 0
        async for _ in consumer:
            count += 1
            await consumer.stop()
        assert count == 1

    async def spare(consumer: SimpleConsumer) -> None:
        receiving = asyncio.create_task(consumer.receive(wait_ms=5000))
        await asyncio.sleep(0)
        receiving.cancel()
        async with asyncio.timeout(10):
            while not consumer.held():
                await asyncio.sleep(0.001)
        await consumer.stop()
        assert consumer._taken(32) == []

    run(broker, use)
    run(broker, spare)


def test_iteration_before_the_start_is_refused(broker: LocalBroker) -> None:
    """The iteration ended at once, as if the consumer had been stopped."""

    async def main() -> None:
        with pytest.raises(ClientClosed, match="not started"):
            await anext(aiter(SimpleConsumer("workers", broker.namesrv)))

    asyncio.run(main())


def test_refused_acknowledgement_said_that_the_client_is_stopped(broker: LocalBroker) -> None:
    async def use(consumer: SimpleConsumer) -> None:
        both = await received(consumer, 2)
        fault = broker.fail("ack", "NO_PERMISSION")
        acks = await asyncio.gather(*(each.ack() for each in both), return_exceptions=True)
        texts = {f"{type(each).__name__}: {each}" for each in acks}
        assert texts == {"BrokerError: broker-a answered NO_PERMISSION: refused by a test"}
        assert acks[0] is not acks[1]
        fault.is_ended = True
        for each in both:
            await each.ack()

    send(broker, 2)
    run(broker, use)
