"""The pull consumer for event loops, against a broker in this process."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from socket import create_server
from typing import Any

import pytest

from tests.troupemq.client.aio.conftest import RunOnLoop
from tests.troupemq.client.aio.stalls import STALL_S_MAX, longest_stall_s
from troupemq import (
    ArgumentIllegal,
    BrokerError,
    ClientClosed,
    ClientError,
    ConsumeFrom,
    ConsumerSettings,
    Message,
    MessageIllegal,
    MessageQueue,
    Producer,
)
from troupemq.aio import PullConsumer
from troupemq.testing import LocalBroker, running_broker

QUEUES = 4
BROKER = "broker-a"
QUICK = ConsumerSettings(rebalance_interval_ms=50, commit_interval_ms=50, settle_ms=10)


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": QUEUES, "Bills": 1}) as made:
        yield made


def made(broker: LocalBroker, group: str = "reports", **options: Any) -> PullConsumer:
    given: dict[str, Any] = {"begin": ConsumeFrom.FIRST_OFFSET, "settings": QUICK} | options
    return PullConsumer(group, broker.namesrv, **given)


def send(broker: LocalBroker, count: int, topic: str = "Bills") -> list[str]:
    """Send messages to all queues of a topic in turn; return their bodies."""
    bodies = [f"{number:05}" for number in range(count)]
    with Producer("shop", broker.namesrv) as producer:
        queues = sorted(producer.queues(topic))
        for number, body in enumerate(bodies):
            producer.send(Message(topic, body.encode()), queue=queues[number % len(queues)])
    return bodies


async def stored(consumer: PullConsumer) -> int:
    queues = await consumer.fetch_queues("Orders")
    return sum([await consumer.committed(queue) or 0 for queue in queues])


def test_iteration_yields_all_messages_and_ends_with_the_stop(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    sent = send(broker, 200, "Orders")

    async def main() -> list[str]:
        found: list[str] = []
        async with made(broker) as consumer:
            await consumer.subscribe("Orders")
            async for message in consumer:
                found.append(message.body.decode())
                if len(found) == len(sent):
                    stopping = asyncio.create_task(consumer.stop())
            await stopping
        return found

    assert sorted(run(main())) == sent


def test_message_counts_as_consumed_when_the_next_one_is_requested(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, 10)

    async def main() -> None:
        queue = MessageQueue("Bills", BROKER, 0)
        with pytest.raises(ZeroDivisionError):
            async with made(broker) as consumer:
                await consumer.assign([queue])
                async for message in consumer:
                    _ = 1 // (4 - message.queue_offset)
        async with made(broker, auto_commit=False) as consumer:
            assert await consumer.committed(queue) == 4
            await consumer.assign([queue])
            (view,) = await consumer.poll(count_max=1)
            await consumer.commit()
            assert (view.queue_offset, await consumer.committed(queue)) == (4, 5)
            await consumer.poll(count_max=1)
        async with made(broker) as consumer:
            assert await consumer.committed(queue) == 5
            await consumer.commit({queue: 9})
            assert await consumer.committed(queue) == 9

    run(main())


def test_batches_are_filled_and_end_after_their_wait(run: RunOnLoop, broker: LocalBroker) -> None:
    sent = send(broker, 250, "Orders")

    async def main() -> None:
        found: list[str] = []
        lengths = []
        async with made(broker) as consumer:
            await consumer.subscribe("Orders")
            batches = consumer.batches(100, 300)
            while len(found) < len(sent):
                batch = await anext(batches)
                lengths.append(len(batch))
                found += [each.body.decode() for each in batch]
            assert await stored(consumer) <= len(sent) - lengths[-1]
        assert sorted(found) == sent and max(lengths) == 100
        async with made(broker) as consumer:
            assert await stored(consumer) == len(sent)
            with pytest.raises(ClientError, match="no queues"):
                consumer.batches()

    run(main())


def test_queues_are_paused_sought_and_resumed(run: RunOnLoop, broker: LocalBroker) -> None:
    sent = send(broker, 20)

    async def main() -> None:
        async with made(broker) as consumer:
            (queue,) = await consumer.fetch_queues("Bills")
            await consumer.assign([queue])
            assert consumer.assignment() == (queue,)
            with pytest.raises(ClientError, match="cannot subscribe"):
                await consumer.subscribe("Orders")
            assert (await consumer.poll(count_max=1))[0].body.decode() == sent[0]
            await consumer.pause([queue])
            assert await consumer.poll(timeout_ms=50) == ()
            polling = asyncio.create_task(consumer.poll(count_max=1))
            await asyncio.sleep(0)
            await consumer.resume([queue])
            assert (await polling)[0].body.decode() == sent[1]
            await consumer.seek(queue, 15)
            assert (await consumer.poll(count_max=1))[0].queue_offset == 15
            await consumer.seek_to_begin(queue)
            assert (await consumer.poll(count_max=1))[0].queue_offset == 0
            await consumer.seek_to_end(queue)
            assert await consumer.poll(timeout_ms=50) == ()
            assert await consumer.offset_for_timestamp(queue, 0) == 0
            with pytest.raises(MessageIllegal, match="offsets 0 to 20"):
                await consumer.seek(queue, 21)
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(MessageQueue("Orders", BROKER, 0), 0)
            with pytest.raises(ArgumentIllegal):
                await consumer.poll(count_max=0)

    run(main())


def test_members_of_a_group_share_the_queues_and_take_over(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    async def main() -> None:
        async with made(broker) as first:
            await first.subscribe("Orders")
            async with made(broker) as second:
                await second.subscribe("Orders")
                while {len(first.assignment()), len(second.assignment())} != {QUEUES // 2}:
                    await asyncio.sleep(0.01)
                assert not set(first.assignment()) & set(second.assignment())
            while len(first.assignment()) < QUEUES:
                await asyncio.sleep(0.01)

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_iterations_lose_no_message(
    run: RunOnLoop, broker: LocalBroker, seed: int
) -> None:
    """Each step is cancelled at a random moment, also at that of a message's arrival."""
    print(f"seed {seed}")
    rng, count = random.Random(seed), 150
    found: list[int] = []

    async def main() -> None:
        async with made(broker) as consumer:
            await consumer.assign(await consumer.fetch_queues("Bills"))
            sending = asyncio.create_task(asyncio.to_thread(send, broker, count))
            messages, batches = aiter(consumer), consumer.batches(3, 1)
            while len(found) < count:
                step = asyncio.create_task(_step(rng.choice([messages, batches])))
                for _ in range(rng.randrange(8)):
                    await asyncio.sleep(0)
                step.cancel()
                await asyncio.wait([step])
                if not step.cancelled():
                    found.extend(step.result())
                elif rng.random() < 0.1:
                    found.extend(await _step(messages))
            await sending

    async def _step(source: AsyncIterator[Any]) -> Sequence[int]:
        given = await anext(source)
        views = given if isinstance(given, Sequence) else [given]
        return [each.queue_offset for each in views]

    run(main())
    assert found == list(range(count))


def test_backlog_stalls_no_other_coroutine(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, 60)

    async def main() -> None:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with made(broker) as consumer:
            await consumer.assign(await consumer.fetch_queues("Bills"))
            counting = asyncio.create_task(count_turns())
            before = 0
            async for message in consumer:
                end_s = asyncio.get_running_loop().time() + 0.006
                while asyncio.get_running_loop().time() < end_s:
                    pass  # work that does not await
                if message.queue_offset > 1:
                    assert turns > before
                before = turns
                if message.queue_offset == 59:
                    break
            counting.cancel()

    run(main())


def test_silent_name_server_stalls_no_other_coroutine(run: RunOnLoop) -> None:
    async def main(port: int) -> None:
        async with PullConsumer("reports", f"127.0.0.1:{port}", settings=QUICK) as consumer:
            await consumer.subscribe("Orders")
            for ask in (consumer.poll(), consumer.fetch_queues("Orders"), anext(aiter(consumer))):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await ask

    with create_server(("127.0.0.1", 0)) as silent:
        assert run(longest_stall_s(main(silent.getsockname()[1]))) < STALL_S_MAX


def test_failed_start_with_assigned_queues_may_be_repeated(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    sent = send(broker, 1)

    async def main() -> None:
        consumer = made(broker)
        await consumer.assign([MessageQueue("Bills", BROKER, 0)])
        broker.fail("QUERY_CONSUMER_OFFSET", times=1)
        with pytest.raises(BrokerError):
            await consumer.start()
        assert not consumer.is_running
        async with consumer:
            assert (await anext(aiter(consumer))).body.decode() == sent[0]

    run(main())


def test_consumer_is_refused_before_the_start_and_on_another_loop(broker: LocalBroker) -> None:
    consumer = made(broker)

    async def first() -> None:
        with pytest.raises(ClientClosed, match="not started"):
            await anext(aiter(consumer))
        await consumer.assign([MessageQueue("Bills", BROKER, 0)])
        await consumer.start()

    with asyncio.Runner() as own, asyncio.Runner() as other:
        own.run(first())
        calls: list[Callable[[], Any]] = [consumer.poll, consumer.commit]
        for call in [*calls, aiter(consumer).__anext__]:
            with pytest.raises(ClientClosed, match="another event loop"):
                other.run(call())
        with pytest.raises(ClientClosed, match="another event loop"):
            other.run(consumer.pause([]))
        own.run(consumer.stop())


def test_cancelled_stop_ends_an_iteration(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> None:
        consumer = made(broker)
        await consumer.start()
        await consumer.subscribe("Orders")
        waiting = asyncio.create_task(anext(aiter(consumer), None))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert await waiting is None
        with pytest.raises(ClientClosed, match="stopped"):
            await consumer.poll()

    run(main())


def test_stop_logs_the_number_of_committed_offsets(
    run: RunOnLoop, broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, 8, "Orders")
    caplog.set_level(logging.INFO, "troupemq.client")

    async def main() -> None:
        async with made(broker) as consumer:
            await consumer.assign(await consumer.fetch_queues("Orders"))
            assert await anext(consumer.batches(8)) is not None

    run(main())
    records = [vars(each) for each in caplog.records]
    (fields,) = [each["fields"] for each in records if each.get("event") == "client stopped"]
    assert fields["group"] == "reports" and fields["handlers_left"] == 0
    assert fields["offsets"] == QUEUES


def test_batches_without_a_wait_do_not_spin(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> int:
        looks = 0
        async with made(broker) as consumer:
            await consumer.subscribe("Bills")
            take = consumer._take_batch

            def counted(count_max: int) -> Sequence[Any]:
                nonlocal looks
                looks += 1
                return take(count_max)

            consumer._take_batch = counted  # type: ignore[method-assign]
            batches = consumer.batches(wait_ms=0)

            async def first() -> Sequence[Any]:
                return await anext(batches)

            batch = asyncio.create_task(first())
            await asyncio.sleep(0.1)
            assert not batch.done()
            await asyncio.to_thread(send, broker, 1)
            async with asyncio.timeout(10):
                assert len(await batch) == 1
        return looks

    assert run(main()) < 10
