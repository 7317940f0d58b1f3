"""Coroutines against a simulated broker: a seed fixes the order, and time costs nothing."""

import asyncio
import gc
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time_ns
from typing import Any

import pytest

from tests.support.actors import new_seed
from troupemq import (
    ClientError,
    ConsumeFrom,
    Message,
    MessageIllegal,
    MessageView,
    RequestTimeout,
    aio,
)
from troupemq.client.connection import client, pending
from troupemq.client.producing.transaction import TransactionState
from troupemq.client.settings import ProducerSettings
from troupemq.testing import VirtualBroker, simulated

FIRST = ConsumeFrom.FIRST_OFFSET
Event = tuple[str, bytes, float]


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    seed = new_seed()
    print(f"TROUPEMQ_SEED={seed}")
    with simulated(seed, topics={"Orders": 4}) as made:
        yield made


def trace_of(seed: int) -> list[Event]:
    """Send from several coroutines, receive in others; return the events in their order."""
    events: list[Event] = []
    with simulated(seed, topics={"Orders": 4}) as broker:

        async def main() -> None:
            loop = asyncio.get_running_loop()

            async def send(producer: aio.Producer, body: bytes) -> None:
                await producer.send(Message("Orders", body))
                events.append(("sent", body, loop.time()))

            async def receive(consumer: aio.SimpleConsumer) -> None:
                async for delivery in consumer:
                    async with delivery:
                        events.append(("received", delivery.message.body, loop.time()))
                    if sum(kind == "received" for kind, *_ in events) >= 30:
                        return

            async with (
                aio.Producer("a", broker.namesrv) as one,
                aio.Producer("b", broker.namesrv) as other,
                aio.SimpleConsumer("g", broker.namesrv, begin=FIRST) as consumer,
            ):
                await consumer.subscribe("Orders")
                bodies = [b"%d" % number for number in range(15)]
                await asyncio.gather(
                    receive(consumer),
                    *(send(one, b"a" + body) for body in bodies),
                    *(send(other, b"b" + body) for body in bodies),
                )

        broker.run(main())
    return events


@pytest.mark.heavy
def test_a_seed_fixes_the_order_of_all_events() -> None:
    traces = [trace_of(seed) for seed in (1, 1, 2, 3)]
    assert traces[0] == traces[1]
    assert len({repr(trace) for trace in traces}) == 3
    assert len({tuple(sorted(body for kind, body, _ in each)) for each in traces}) == 1


def consumed_of(seed: int) -> list[tuple[str, bytes, int]]:
    """Return what two members of a group consume, with a message that fails once."""
    consumed: list[tuple[str, bytes, int]] = []
    with simulated(seed, topics={"Orders": 4}) as broker:

        def member(name: str) -> aio.PushConsumer:
            async def handle(messages: Sequence[MessageView]) -> None:
                for message in messages:
                    consumed.append((name, message.body, message.reconsume_times))
                    if message.body == b"7" and message.reconsume_times == 0:
                        raise LookupError("no such order")

            return aio.PushConsumer("billing", handle, broker.namesrv, begin=FIRST)

        async def main() -> None:
            async with (
                aio.Producer("shop", broker.namesrv) as producer,
                member("a") as one,
                member("b") as other,
            ):
                await one.subscribe("Orders")
                await other.subscribe("Orders")
                await asyncio.sleep(25)  # until both have queues
                sends = [producer.send(Message("Orders", b"%d" % each)) for each in range(20)]
                await asyncio.gather(*sends)
                await asyncio.sleep(30)

        broker.run(main())
        assert broker.lag("billing") == 0
    return consumed


def test_members_of_a_group_share_queues_and_retry_in_the_order_of_the_seed() -> None:
    consumed = consumed_of(1)
    assert consumed == consumed_of(1)
    assert [body for _, body, times in consumed if times == 1] == [b"7"]
    assert {body for _, body, _ in consumed} == {b"%d" % each for each in range(20)}
    assert {name for name, *_ in consumed} == {"a", "b"}


def test_virtual_time_makes_a_delayed_message_due(broker: VirtualBroker) -> None:
    async def main() -> None:
        async with aio.Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("Orders", b"reminder", delay_level=5))  # 1 min
        await asyncio.sleep(59)
        assert broker.messages("Orders") == []
        await asyncio.sleep(2)
        broker.expect("Orders", body=b"reminder")

    broker.run(main())
    assert broker.now_s() >= 61


def test_unsettled_message_comes_again_after_its_lease(broker: VirtualBroker) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with (
            aio.Producer("shop", broker.namesrv) as producer,
            aio.SimpleConsumer(
                "g", broker.namesrv, begin=FIRST, invisible_s=10, auto_extend=False, hold="time"
            ) as consumer,
        ):
            await consumer.subscribe("Orders")
            await producer.send(Message("Orders", b"new"))
            (first,) = await consumer.receive()
            since_s = loop.time()
            (again,) = await consumer.receive(wait_ms=20_000)
            assert again.message.message_id == first.message.message_id
            await again.ack()
            return loop.time() - since_s

    assert broker.run(main()) == pytest.approx(10, abs=0.5)
    assert broker.lag("g") == 0


def test_unknown_transaction_is_checked_back(broker: VirtualBroker) -> None:
    async def check(_: MessageView) -> TransactionState:
        return TransactionState.COMMIT

    async def execute(*_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async def main() -> None:
        async with aio.TransactionProducer("shop", check, broker.namesrv) as producer:
            await producer.send_in_transaction(Message("Orders", b"new"), execute)
            assert broker.messages("Orders") == []
            await asyncio.sleep(120)

    broker.run(main())
    broker.expect("Orders", body=b"new")


def sending(broker: VirtualBroker, *bodies: bytes, retries: int = 2) -> Coroutine[Any, Any, None]:
    """Return a coroutine that sends one message after the other."""

    async def send() -> None:
        chosen = ProducerSettings(retries=retries)
        async with aio.Producer("shop", broker.namesrv, settings=chosen) as producer:
            for body in bodies:
                await producer.send(Message("Orders", body), timeout_ms=3000)

    return send()


def test_refused_send_is_tried_again(broker: VirtualBroker) -> None:
    fault = broker.fail("send", times=1)
    broker.run(sending(broker, b"new"))
    assert fault.hits == 1
    broker.expect_in_order("Orders", [b"new"])


def test_lost_answer_times_out_in_virtual_time(broker: VirtualBroker) -> None:
    broker.lose("send", times=1, answer=True)
    with pytest.raises(RequestTimeout):
        broker.run(sending(broker, b"new", retries=0))
    assert broker.now_s() == pytest.approx(3, abs=0.1)
    broker.expect("Orders", body=b"new")


@pytest.mark.parametrize("end", ["restart", "kill", "cut_power"])
def test_producer_goes_on_after_an_end_of_the_broker(broker: VirtualBroker, end: str) -> None:
    async def main() -> None:
        async with aio.Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("Orders", b"before"))
            await asyncio.sleep(11)  # flushed, at the latest after 10 s
            getattr(broker, end)()
            await producer.send(Message("Orders", b"after"))

    broker.run(main())
    assert [each.body for each in broker.messages("Orders")] == [b"before", b"after"]


def test_clients_connect_again_after_a_cut(broker: VirtualBroker) -> None:
    async def main() -> None:
        async with aio.Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("Orders", b"before"))
            assert broker.cut() == 1
            await producer.send(Message("Orders", b"after"))

    broker.run(main())
    broker.expect_in_order("Orders", [b"before", b"after"])


def test_full_disk_refuses_sends(broker: VirtualBroker) -> None:
    broker.fill_disk()
    with pytest.raises(ClientError, match="disk"):
        broker.run(sending(broker, b"new", retries=0))
    broker.free_disk()
    broker.run(sending(broker, b"new"))


def test_unfinished_coroutine_ends_with_the_seed_after_its_limit(broker: VirtualBroker) -> None:
    with pytest.raises(TimeoutError) as caught:
        broker.run(asyncio.Event().wait(), within="1m")
    assert f"seed={broker.seed}" in caught.value.__notes__[0]


def test_check_inside_of_a_coroutine_does_not_wait(broker: VirtualBroker) -> None:
    async def main() -> None:
        with pytest.raises(AssertionError, match="waited 0 s for 1 message"):
            broker.expect("Orders", within_s=60)

    broker.run(main())
    with pytest.raises(AssertionError, match="waited 2 s for 1 message"):
        broker.expect("Orders", within_s=2)


def test_other_address_refuses_connections(broker: VirtualBroker) -> None:
    async def main() -> None:
        async with aio.Producer("shop", "127.0.0.1:1") as producer:
            await producer.send(Message("Orders", b"new"))

    with pytest.raises(ClientError, match="no simulated server"):
        broker.run(main())


def test_forgotten_task_fails_the_end() -> None:
    kept: list[asyncio.Task[None]] = []

    async def forget() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(1000)))

    with pytest.raises(AssertionError, match="tasks left behind"), simulated(1) as broker:
        broker.run(forget())


def test_the_client_has_the_clock_of_the_machine_again_afterwards() -> None:
    with simulated(1) as broker:
        assert vars(pending)["monotonic"]() == broker.now_s()
        assert client.now_ms() == broker.now_ms
        with pytest.raises(RuntimeError, match="one simulated broker at a time"), simulated(2):
            pass
    assert vars(pending)["monotonic"] is monotonic
    assert abs(client.now_ms() - time_ns() // 1_000_000) < 60_000


def test_threads_of_other_clients_waited_for_days_after_a_simulation() -> None:
    with simulated(1) as broker, ThreadPoolExecutor(1) as others:
        broker.advance("1h")
        assert vars(pending)["monotonic"]() == broker.now_s() >= 3600
        before_s = monotonic()
        assert others.submit(vars(pending)["monotonic"]).result() >= before_s
        assert abs(others.submit(client.now_ms).result() - time_ns() // 1_000_000) < 60_000


def test_refused_topic_left_an_event_loop_open(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(MessageIllegal, match="illegal characters"), simulated(1, {"no topic": 1}):
        pass
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
