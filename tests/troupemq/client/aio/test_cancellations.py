"""Cancellations at points that a seed chooses: of sends, of receives and of handlers.

No message may be lost, no answer may reach another caller, and no slot may leak.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.troupemq.client.aio.handled import Handled, consumer, in_order, numbered, send
from troupemq import (
    ConsumeFrom,
    ConsumerSettings,
    DeliverySettled,
    Message,
    MessageView,
    ProducerSettings,
)
from troupemq import Producer as SyncProducer
from troupemq.aio import Producer, PushConsumer, SimpleConsumer
from troupemq.client.aio.client import unfold
from troupemq.testing import LocalBroker, running_broker

SENDS = 600
MESSAGES = 300
LIMIT_S = 120.0
SEND_MS = 100_000
QUICK = ConsumerSettings(
    rebalance_interval_ms=50,
    commit_interval_ms=20,
    settle_ms=10,
    suspend_queue_ms=10,
    again_after_ms=20,
    consume_batch_size=2,
)


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 4}) as made:
        yield made


def run(main: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT_S):
            result = await main
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(limited())


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.trial(short=1, long=70)
def test_cancelled_sends_mix_up_no_answers(
    seed: int, broker: LocalBroker, tally: Counter[str]
) -> None:
    chance = random.Random(seed)
    placed: dict[tuple[int, int], bytes] = {}

    async def one(producer: Producer, number: int) -> None:
        body = b"%d" % number
        sending = asyncio.create_task(producer.send(Message("Orders", body), SEND_MS))
        if chance.random() < 0.8:
            if chance.random() < 0.5:
                await steps(chance.randrange(30))
            else:
                await asyncio.sleep(chance.random() * 0.02)
            tally["cancelled"] += sending.cancel()
        try:
            result = await sending
        except asyncio.CancelledError:
            return
        placed[result.queue.queue_id, result.queue_offset] = body

    async def main() -> None:
        settings = ProducerSettings(in_flight_max=chance.choice((1, 7, 100)))
        async with Producer("shop", broker.namesrv, settings=settings) as producer:
            await asyncio.gather(*(one(producer, number) for number in range(SENDS)))
            await producer.send(Message("Orders", b"last"))
            assert (producer._slots.count, producer._slots.bytes) == (0, 0)
            assert not producer._lanes

    run(main())
    stored = {(view.queue.queue_id, view.queue_offset): view for view in broker.messages("Orders")}
    wrong = {place for place, body in placed.items() if stored[place].body != body}
    assert not wrong, f"seed {seed}"
    bodies = [view.body for view in stored.values()]
    assert len(bodies) == len({*bodies}), f"seed {seed}: stored twice"


@pytest.mark.trial(short=1, long=70)
def test_cancelled_receives_and_settlements_lose_no_message(
    seed: int, broker: LocalBroker, tally: Counter[str]
) -> None:
    chance = random.Random(seed)
    sent = numbered(MESSAGES)
    acked: list[str] = []

    async def cancelled(work: Any) -> Any:
        """Await work that may be cancelled; None then."""
        task = asyncio.create_task(work)
        if chance.random() < 0.8:
            await (
                steps(chance.randrange(8))
                if chance.random() < 0.8
                else asyncio.sleep(chance.random() * 0.005)
            )
            tally["cancelled"] += task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, DeliverySettled):
            return None

    async def main() -> None:
        sending = asyncio.create_task(asyncio.to_thread(send, broker, *sent))
        begin = ConsumeFrom.FIRST_OFFSET
        async with SimpleConsumer("workers", broker.namesrv, begin=begin) as consumer:
            await consumer.subscribe("Orders")
            while len(acked) < MESSAGES:
                for delivery in await cancelled(consumer.receive(4, 1000)) or ():
                    acked.append(delivery.message.body.decode())
                    while not delivery.is_settled:  # an ack that did not begin has no effect
                        await cancelled(delivery.ack())
            assert not consumer.held()
        await sending

    run(main())
    assert sorted(acked) == sorted(sent), f"seed {seed}"
    assert broker.lag("workers") == 0, f"seed {seed}"


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.trial(short=1, long=70)
def test_cancelled_handlers_lose_no_message(
    orderly: bool, seed: int, broker: LocalBroker, tally: Counter[str]
) -> None:
    chance = random.Random(seed)
    sent = numbered(MESSAGES)
    send(broker, *sent)

    async def act(view: MessageView) -> None:
        task = asyncio.current_task()
        assert task is not None
        if chance.random() < 0.6 / (1 + view.reconsume_times):
            tally["cancelled"] += 1
            if chance.random() < 0.3:
                task.cancel()
            else:
                asyncio.get_running_loop().call_later(chance.random() * 0.002, task.cancel)
            await asyncio.sleep(5)
        await steps(chance.randrange(3))

    async def lag() -> int:
        return await asyncio.to_thread(broker.lag, "billing")

    async def main() -> Handled:
        handled = Handled(act)
        consumer = PushConsumer(
            "billing",
            handled,
            broker.namesrv,
            begin=ConsumeFrom.FIRST_OFFSET,
            settings=QUICK,
            orderly=orderly,
            concurrency=chance.choice((1, 3, 50)),
        )
        await consumer.subscribe("Orders")
        async with consumer:
            # A batch whose second message is cancelled is retried as a whole.
            while len({*handled.bodies}) < MESSAGES or await lag() > 0:
                await asyncio.sleep(0.02)
                if not orderly:
                    await asyncio.to_thread(broker.advance, "10s")
        assert handled.running == 0 and not consumer._calls._tasks
        return handled

    handled = run(main())
    assert sorted({*handled.bodies}) == sorted(sent), f"seed {seed}"
    if orderly:
        assert in_order([*dict.fromkeys(handled.bodies)]), f"seed {seed}"
    assert broker.lag("billing") == 0, f"seed {seed}"


@pytest.mark.parametrize("orderly", [False, True])
def test_queue_goes_on_after_threads_failed(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """A long answer without a thread to read it, or a body without one, stopped its queue."""
    body = random.Random(1).randbytes(300_000).hex()
    plain = asyncio.to_thread
    errors = iter([RuntimeError("can't start new thread"), asyncio.CancelledError()])

    async def failing(work: Any, *arguments: Any) -> Any:
        error = RuntimeError("no thread") if work is unfold else next(errors, None)
        if error is not None:
            raise error
        return await plain(work, *arguments)

    async def main() -> None:
        handled = Handled()
        made = consumer(broker, handled, orderly=orderly)
        await made.subscribe("Orders")
        async with made:
            monkeypatch.setattr(asyncio, "to_thread", failing)
            with SyncProducer("shop", broker.namesrv) as producer:
                producer.send(Message("Orders", body.encode()))
            await handled.wait(1)
        assert handled.bodies == [body]

    run(main())
