"""The producer for event loops, against a broker in this process."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from socket import create_server
from threading import Event
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from tests.troupemq.client.aio.stalls import STALL_S_MAX, longest_stall_s
from tests.troupemq.fake_server import FakeServer
from troupemq import (
    BrokerError,
    ClientBusy,
    ClientClosed,
    Message,
    MessageIllegal,
    ProducerSettings,
    PushConsumer,
    RequestTimeout,
    RouteNotFound,
    create_reply_message,
)
from troupemq import Producer as ThreadedProducer
from troupemq.aio import Producer
from troupemq.client.aio.client import AioClient
from troupemq.client.aio.producer import Slots
from troupemq.client.producing.sending import EncodedMessage
from troupemq.testing import LocalBroker, running_broker

pytestmark = pytest.mark.usefixtures("either_loop")

TRIES_ONCE = ProducerSettings(retries=0)

Use = Callable[[Producer], Awaitable[Any]]


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 4}) as made:
        yield made


def run(broker: LocalBroker, use: Use, **options: Any) -> Any:
    """Run `use` with a producer, and return its result."""

    async def main() -> Any:
        async with Producer("shop", broker.namesrv, **options) as producer:
            return await use(producer)

    return asyncio.run(main(), debug=True)


def test_awaited_send_is_stored(broker: LocalBroker) -> None:
    result = run(broker, lambda producer: producer.send(Message("Orders", b"new", tags="a")))
    (found,) = broker.expect("Orders", body=b"new", tags="a")
    assert (result.message_id, result.queue) == (found.message_id, found.queue)


def test_failed_heartbeat_does_not_end_the_next_ones(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    again = asyncio.Event()

    async def failing(client: AioClient) -> None:
        nonlocal begun
        begun += 1
        if begun > 1:
            again.set()
        raise ValueError("a fault of ours")

    monkeypatch.setattr("troupemq.client.aio.client.HEARTBEAT_INTERVAL_MS", 1)
    monkeypatch.setattr(AioClient, "heartbeat", failing)

    async def use(_: Producer) -> None:
        async with asyncio.timeout(10):
            await again.wait()

    run(broker, use)


def test_concurrent_sends_are_all_stored_in_the_order_of_their_calls(broker: LocalBroker) -> None:
    async def use(producer: Producer) -> None:
        queue = (await producer.queues("Orders"))[0]
        sends = (producer.send(Message("Orders", b"%d" % n), queue=queue) for n in range(500))
        await asyncio.gather(*sends)

    run(broker, use)
    assert [int(each.body) for each in broker.messages("Orders")] == [*range(500)]


def test_sends_before_the_route_is_known_keep_their_order(broker: LocalBroker) -> None:
    async def use(producer: Producer) -> None:
        sends = [
            producer.send(Message("Orders", b"x" * (70_000 if n % 7 == 0 else 1), keys=str(n)),
                          choose=lambda queues, _: queues[0])
            for n in range(30)
        ]  # fmt: skip
        await asyncio.gather(*sends)

    run(broker, use)
    assert [int(*each.keys) for each in broker.messages("Orders")] == [*range(30)]


def test_batch_and_batches_are_stored_as_wholes(broker: LocalBroker) -> None:
    async def use(producer: Producer) -> int:
        await producer.send_batch([Message("Orders", b"a"), Message("Orders", b"b")])
        many = [Message("Orders", bytes(1000)) for _ in range(9)]
        return len(await producer.send_batches(many))

    assert run(broker, use, settings=ProducerSettings(max_message_bytes=4000)) == 3
    assert len(broker.messages("Orders")) == 11


def test_one_way_send_is_stored(broker: LocalBroker) -> None:
    message_id = run(broker, lambda producer: producer.send_oneway(Message("Orders", b"new")))
    (found,) = broker.expect("Orders")
    assert found.message_id == message_id


def test_request_gets_the_reply_of_its_consumer(broker: LocalBroker) -> None:
    with ThreadedProducer("prices", broker.namesrv) as replies:

        def reply(messages: Any) -> None:
            for each in messages:
                replies.send(create_reply_message(each, each.body * 2))

        broker.consume("Prices", reply)
        answer = run(broker, lambda producer: producer.request(Message("Prices", b"17"), 5000))
        assert answer.body == b"1717"
        with pytest.raises(RequestTimeout, match="no reply in 30 ms"):
            run(broker, lambda producer: producer.request(Message("Orders", b"17"), 30))


def test_refusals_and_invalid_messages_raise_the_errors_of_the_threaded_client(
    broker: LocalBroker,
) -> None:
    broker.fail("send", "SYSTEM_BUSY", times=1)
    with pytest.raises(BrokerError, match="refused by a test"):
        run(broker, lambda producer: producer.send(Message("Orders", b"new")))
    with pytest.raises(MessageIllegal):
        run(broker, lambda producer: producer.send(Message("Orders", bytes(5 << 20))))
    with (
        pytest.raises(RouteNotFound),
        running_broker(settings={"autoCreateTopicEnable": "false"}) as strict,
    ):
        run(strict, lambda producer: producer.send(Message("Unknown", b"new")))


def test_producer_tries_again_after_a_failure(broker: LocalBroker) -> None:
    fault = broker.fail("send", times=2)
    run(broker, lambda producer: producer.send(Message("Orders", b"new")))
    assert fault.hits == 2


def test_timeout_covers_all_tries_and_asyncio_timeout_works(broker: LocalBroker) -> None:
    broker.lose("send")

    async def use(producer: Producer) -> None:
        await producer.queues("Orders")
        with pytest.raises(RequestTimeout):
            await producer.send(Message("Orders", b"lost"), 40)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.04):
                await producer.send(Message("Orders", b"lost"))

    run(broker, use)


def test_cancelled_send_frees_its_slot_and_drops_its_answer(broker: LocalBroker) -> None:
    slow = broker.slow(50, "send")

    async def use(producer: Producer) -> None:
        await producer.queues("Orders")
        first = asyncio.create_task(producer.send(Message("Orders", b"cancelled")))
        second = asyncio.create_task(producer.send(Message("Orders", b"waits for a slot")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        slow.is_ended = True
        await second
        await producer.send(Message("Orders", b"after"))
        assert first.cancelled()

    run(broker, use, settings=ProducerSettings(in_flight_max=1))
    broker.expect("Orders", times=3)


def test_long_send_that_stops_waiting_lets_shorter_ones_go() -> None:
    async def main() -> None:
        slots = Slots(10, 1000)
        await slots.enter(900)
        long, short = asyncio.create_task(slots.enter(500)), asyncio.create_task(slots.enter(50))
        await asyncio.sleep(0)
        long.cancel()
        async with asyncio.timeout(1):
            await short
        assert (slots.count, slots.bytes, slots.try_enter(50)) == (2, 950, True)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_sends_lose_no_other_answer(broker: LocalBroker, seed: int) -> None:
    chance = random.Random(seed)

    async def send(producer: Producer, number: int) -> int | None:
        task = asyncio.create_task(producer.send(Message("Orders", b"%d" % number)))
        if chance.random() < 0.5:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            return None
        return number if result.message_id else -1

    async def use(producer: Producer) -> list[int | None]:
        found = await asyncio.gather(*(send(producer, n) for n in range(300)))
        await producer.send(Message("Orders", b"last"))
        assert (producer._slots.count, producer._slots.bytes) == (0, 0)
        return found

    settings = ProducerSettings(in_flight_max=40, send_timeout_ms=30_000)
    answered = {n for n in run(broker, use, settings=settings) if n}
    stored = [int(each.body) for each in broker.messages("Orders") if each.body != b"last"]
    assert answered <= {*stored}, f"seed {seed}"
    assert len(stored) == len({*stored}), f"seed {seed}"


def test_limit_of_sends_in_flight_fails_a_send_only_at_its_timeout(broker: LocalBroker) -> None:
    broker.lose("send", times=1)

    async def use(producer: Producer) -> None:
        await producer.queues("Orders")
        holder = asyncio.create_task(producer.send(Message("Orders", b"lost"), 300))
        await asyncio.sleep(0)
        with pytest.raises(ClientBusy, match="in flight already"):
            await producer.send(Message("Orders", b"late"), 50)
        with pytest.raises(RequestTimeout):
            await holder

    run(broker, use, settings=ProducerSettings(in_flight_max=1, retries=0))


def test_silent_name_server_stalls_no_other_coroutine() -> None:
    async def main(port: int) -> None:
        async with Producer("shop", f"127.0.0.1:{port}") as producer:
            with pytest.raises(RequestTimeout, match="no route of the topic Orders"):
                await producer.send(Message("Orders", b"new"), 100)

    with create_server(("127.0.0.1", 0)) as silent:
        work = main(silent.getsockname()[1])
        assert asyncio.run(longest_stall_s(work)) < STALL_S_MAX


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
def test_send_waited_for_ever_when_the_name_server_refused_the_route(code: ResponseCode) -> None:
    async def main(address: str) -> None:
        async with Producer("shop", address) as producer, asyncio.timeout(5):
            with pytest.raises(BrokerError, match=f"answered {code.name}: not for you"):
                await producer.send(Message("Orders", b"new"))

    with FakeServer() as names:
        names.on(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            lambda command: command.answer(code, remark="not for you"),
        )
        asyncio.run(main(names.address))


def test_send_waited_for_ever_when_its_start_failed(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(_: EncodedMessage) -> None:
        raise MemoryError

    async def use(producer: Producer) -> None:
        async with asyncio.timeout(5):
            with pytest.raises(MemoryError):
                await producer.send(Message("Orders", bytes(100_000)))

    monkeypatch.setattr(EncodedMessage, "compressed", out_of_memory)
    run(broker, use)


def test_stop_waits_for_sends_in_flight_and_fails_the_rest(broker: LocalBroker) -> None:
    async def main() -> list[Any]:
        producer = Producer("shop", broker.namesrv, settings=TRIES_ONCE)
        await producer.start()
        await producer.queues("Orders")
        slow = broker.slow(30, "send", times=1)
        kept = asyncio.create_task(producer.send(Message("Orders", b"kept")))
        await asyncio.sleep(0)
        await producer.stop()
        assert slow.hits == 1
        with pytest.raises(ClientClosed, match="was stopped"):
            await producer.send(Message("Orders", b"late"))
        return [await kept, len(asyncio.all_tasks())]

    result, tasks = asyncio.run(main())
    assert result.message_id
    assert tasks == 1
    broker.expect("Orders", body=b"kept")


def test_stop_waits_for_sends_that_look_for_their_route(broker: LocalBroker) -> None:
    async def main() -> Any:
        producer = Producer("shop", broker.namesrv, settings=TRIES_ONCE)
        await producer.start()
        broker.slow(30, "send", times=1)
        sends = [
            asyncio.create_task(producer.send(Message("Orders", b"%d" % number)))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        await producer.stop()
        assert all(send.done() for send in sends)
        return await asyncio.gather(*sends)

    assert len(asyncio.run(main())) == len(broker.messages("Orders")) == 3


def test_stop_ends_a_start(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client ran on after its stop."""
    looks_up, goes_on = Event(), Event()

    def slow_ip(_: str) -> str:
        looks_up.set()
        goes_on.wait(10)
        return "127.0.0.1"

    monkeypatch.setattr("troupemq.client.aio.client.local_ip", slow_ip)

    async def main() -> None:
        producer = Producer("shop", broker.namesrv)
        start = asyncio.create_task(producer.start())
        await asyncio.to_thread(looks_up.wait, 10)
        await producer.stop()
        goes_on.set()
        with pytest.raises(ClientClosed, match="stopped"):
            await start
        assert not producer.is_running
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_concurrent_starts_start_once(broker: LocalBroker) -> None:
    async def main() -> None:
        producer = Producer("shop", broker.namesrv)
        await asyncio.gather(*(producer.start() for _ in range(3)))
        alone = len(asyncio.all_tasks())
        async with Producer("shop", broker.namesrv):
            assert len(asyncio.all_tasks()) == 2 * alone - 1
        await producer.send(Message("Orders", b"new"))
        await producer.stop()

    asyncio.run(main())


def test_cancelled_stop_closes_at_once(broker: LocalBroker) -> None:
    broker.lose("send")

    async def main() -> None:
        producer = Producer("shop", broker.namesrv, settings=TRIES_ONCE)
        await producer.start()
        await producer.queues("Orders")
        send = asyncio.create_task(producer.send(Message("Orders", b"lost")))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.stop()
        with pytest.raises(ClientClosed):
            await send
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_client_of_another_loop_is_refused(broker: LocalBroker) -> None:
    producer = Producer("shop", broker.namesrv)
    asyncio.run(producer.start())
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(producer.send(Message("Orders", b"new")))
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(producer.start())


def test_stop_on_another_loop_is_refused(broker: LocalBroker) -> None:
    """Such a stop raised RuntimeError, "Event loop is closed"."""
    producer = Producer("shop", broker.namesrv)

    async def use() -> None:
        await producer.start()
        await producer.send(Message("Orders", b"new"))

    with asyncio.Runner() as own, asyncio.Runner() as other:
        own.run(use())
        with pytest.raises(ClientClosed, match="another event loop"):
            other.run(producer.stop())
        own.run(producer.send(Message("Orders", b"later")))
        own.run(producer.stop())


def test_connections_come_back_after_a_cut_and_a_restart(broker: LocalBroker) -> None:
    async def use(producer: Producer) -> None:
        await producer.send(Message("Orders", b"1"))
        await asyncio.to_thread(broker.cut)
        await producer.send(Message("Orders", b"2"))
        await asyncio.to_thread(broker.restart)
        await producer.send(Message("Orders", b"3"))

    run(broker, use)
    assert [each.body for each in broker.messages("Orders")] == [b"1", b"2", b"3"]


def test_threaded_consumer_receives_what_a_coroutine_sends(broker: LocalBroker) -> None:
    consumer = broker.consume("Orders", group="billing")
    run(broker, lambda producer: producer.send(Message("Orders", b"new")))
    broker.join("billing")
    assert [each.body for each in consumer.received] == [b"new"]
    assert isinstance(consumer, PushConsumer)


def test_request_timeout_is_a_timeout_error(broker: LocalBroker) -> None:
    async def use(producer: Producer) -> None:
        await producer.queues("Orders")
        broker.slow(10_000, "send", times=1)
        with pytest.raises(TimeoutError) as failed:
            await producer.send(Message("Orders", b"new"), 50)
        assert isinstance(failed.value, RequestTimeout) and "\n" not in str(failed.value)

    run(broker, use, settings=TRIES_ONCE)
