"""Ends of clients on an event loop: nothing waits for ever, and nothing is said that is not so."""

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from socket import AF_INET, IPPROTO_TCP, SOCK_STREAM, TCP_USER_TIMEOUT
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.troupemq.client.aio.conftest import RunOnLoop
from tests.troupemq.client.aio.handled import QUICK, Handled, consumer, send
from tests.troupemq.fake_server import dead_machine
from troupemq import (
    ClientClosed,
    ConnectionFailed,
    ConsumeFrom,
    Message,
    MessageView,
    ProducerSettings,
    RequestTimeout,
)
from troupemq.aio import Producer, SimpleConsumer
from troupemq.client.aio.client import CALLS_OF_A_TURN, AioClient, LoopFlows
from troupemq.client.aio.remoting import AioRemoting
from troupemq.client.connection.calls import Call, Calls, Flow
from troupemq.client.connection.connection import expect_signs_of_life
from troupemq.testing import LocalBroker, running_broker

LONG_MS = 60_000
LONG_S = 60.0


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 4}) as made:
        yield made


async def until(is_true: Any) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.001)


def test_a_peer_without_a_sign_of_life_is_lost_after_two_minutes(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def expect(sock: Any) -> None:
        expect_signs_of_life(sock)
        found.append(sock.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT))

    monkeypatch.setattr("troupemq.client.aio.connection.expect_signs_of_life", expect)

    async def main() -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.send(Message("Orders", b"new"))

    run(main())
    assert set(found) == {120_000} and len(found) == 2, "name server and broker"


def test_the_address_of_a_dead_machine_does_not_hide_the_next(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.client.aio.remoting.CONNECT_TIMEOUT_MS", 200)
    port = int(broker.namesrv.rpartition(":")[2])

    async def main() -> None:
        async def found(_: str, port: int, **__: object) -> list[Any]:
            return [(AF_INET, SOCK_STREAM, 0, "", (f"127.0.0.{n}", port)) for n in (9, 1)]

        remoting = AioRemoting(lambda *_: None)
        remoting.open()
        monkeypatch.setattr(remoting.loop, "getaddrinfo", found, raising=False)
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await remoting.ask(f"names.example:{port}", command, LONG_MS)
        assert answer.body
        await remoting.close()

    with dead_machine("127.0.0.9", port):
        run(main())


def test_close_ends_a_send_that_pauses_before_its_next_try(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.client.producing.sending.SAME_BROKER_PAUSE_MS", LONG_MS)
    fault = broker.fail("send")

    async def main() -> None:
        async with Producer("shop", broker.namesrv) as producer:
            sending = asyncio.create_task(producer.send(Message("Orders", b"new"), LONG_MS))
            await until(lambda: fault.hits and not any(producer._lanes.values()))
            await asyncio.sleep(0.05)
            await producer.stop(0)
            async with asyncio.timeout(5):
                with pytest.raises(ClientClosed):
                    await sending

    run(main())


def test_cancelled_stop_ends_requests(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> None:
        producer = Producer("shop", broker.namesrv)
        await producer.start()
        request = asyncio.create_task(producer.request(Message("Orders", b"?"), LONG_MS))
        await asyncio.to_thread(broker.expect, "Orders", body=b"?")
        broker.lose("send")
        sending = asyncio.create_task(producer.send(Message("Orders", b"lost"), LONG_MS))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.stop()
        async with asyncio.timeout(5):
            for each in (request, sending):
                with pytest.raises(ClientClosed):
                    await each

    run(main())


def test_timeout_of_a_request_covers_the_look_ups_before_it(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    broker.lose("heartbeat")

    async def main() -> None:
        async with Producer("shop", broker.namesrv) as producer:
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimeout, match="no reply in 100 ms"):
                await producer.request(Message("Orders", b"?"), 100)
            assert asyncio.get_running_loop().time() - begun_s < 2

    run(main())


def test_second_stop_waits_for_the_first(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, "a")

    async def main() -> None:
        goes_on = asyncio.Event()

        async def act(_: MessageView) -> None:
            await goes_on.wait()

        handled = Handled(act)
        async with consumer(broker, handled) as made:
            await made.subscribe("Orders")
            await until(lambda: handled.running)
            first = asyncio.create_task(made.stop())
            await asyncio.sleep(0)
            second = asyncio.create_task(made.stop())
            await made.stop(0.0)  # which waits a second, and no longer
            assert not (first.done() or second.done())
            goes_on.set()
            await second
            assert first.done()

    run(main())
    assert broker.lag("billing") == 0


def test_rebalance_during_a_stop_leaves_the_queues_to_the_stop(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    """Offsets from before the ends of handlers were committed, and messages came again."""
    send(broker, "a")

    async def main() -> None:
        goes_on = asyncio.Event()

        async def act(_: MessageView) -> None:
            await goes_on.wait()

        handled = Handled(act)
        settings = replace(QUICK, drop_wait_ms=1)
        async with consumer(broker, handled, settings=settings) as made:
            await made.subscribe("Orders")
            await until(lambda: handled.running)
            slow = broker.slow(30, "GET_CONSUMER_LIST_BY_GROUP")
            await until(lambda: slow.hits)
            stopping = asyncio.create_task(made.stop())
            await asyncio.sleep(0.1)
            goes_on.set()
            await stopping

    run(main())
    assert broker.lag("billing") == 0


def test_handler_may_stop_its_consumer_while_another_task_stops_it(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, "a")

    async def main() -> None:
        handles, stops = asyncio.Event(), asyncio.Event()

        async def handle(messages: Sequence[MessageView]) -> None:
            handles.set()
            await stops.wait()
            await made.stop()

        made = consumer(broker, handle)
        await made.subscribe("Orders")
        async with made:
            await handles.wait()
            stopping = asyncio.create_task(made.stop())
            await asyncio.sleep(0)
            stops.set()
            async with asyncio.timeout(10):
                await stopping

    run(main())
    assert broker.lag("billing") == 0


def test_stop_with_a_receive_that_waits_logs_no_error(
    run: RunOnLoop, broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said "Future exception was never retrieved"."""

    async def main() -> None:
        async with SimpleConsumer("workers", broker.namesrv) as made:
            await made.subscribe("Orders")
            receiving = asyncio.create_task(made.receive(wait_ms=LONG_MS))
            await asyncio.sleep(0.05)
            await made.stop()
            assert await receiving == []

    run(main())
    gc.collect()
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_settlement_that_a_stop_cuts_off_is_not_cancelled(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    """A worker that only saw a CancelledError would end without a word."""
    send(broker, "a")
    fault = broker.lose("ack")

    async def main() -> None:
        begin = ConsumeFrom.FIRST_OFFSET
        async with SimpleConsumer("workers", broker.namesrv, begin=begin) as made:
            await made.subscribe("Orders")
            (delivery,) = await made.receive()
            ack = asyncio.create_task(delivery.ack())
            await until(lambda: fault.hits)
            await made.stop(0)
            await asyncio.wait([ack])
            assert not ack.cancelled()
            with pytest.raises(ClientClosed):
                await ack

    run(main())


def test_one_way_sends_are_written_before_the_end_and_in_their_order(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    async def main() -> None:
        producer = Producer("shop", broker.namesrv)
        await producer.start()
        queue, *_ = await producer.queues("Orders")
        producer._client.routes._routes.clear()  # all sends wait for the route
        sends = [
            asyncio.create_task(producer.send_oneway(Message("Orders", body), queue=queue))
            for body in bodies
        ]
        await asyncio.sleep(0)
        assert producer._open_sends() == len(bodies)
        await producer.stop()
        assert len({*await asyncio.gather(*sends)}) == len(bodies)

    bodies = [b"%d" % number for number in range(20)]
    run(main())
    broker.expect_in_order("Orders", bodies)


def test_one_way_sends_compress_long_bodies_off_the_loop(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[Any] = []
    plain = asyncio.to_thread

    async def noted(function: Any, *given: Any) -> Any:
        threads.append(function)
        return await plain(function, *given)

    async def main() -> None:
        async with Producer("shop", broker.namesrv) as producer:
            await producer.queues("Orders")
            monkeypatch.setattr(asyncio, "to_thread", noted)
            await producer.send_oneway(Message("Orders", b"x" * 100_000))

    run(main())
    assert len(threads) == 1
    (view,) = broker.expect("Orders")
    assert len(view.stored_body) < len(view.body) == 100_000


def test_heartbeats_go_on_after_something_else_cancelled_all_tasks(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer without heartbeats is forgotten by its broker."""
    beats = 0

    async def beat(_: AioClient) -> None:
        nonlocal beats
        beats += 1

    monkeypatch.setattr("troupemq.client.aio.client.HEARTBEAT_INTERVAL_MS", 1)
    monkeypatch.setattr(AioClient, "heartbeat", beat)

    async def main() -> None:
        async with Producer("shop", broker.namesrv):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
            await until(lambda: beats >= 3)

    run(main())


# --- event loops that begin tasks at once (asyncio.eager_task_factory), from Python 3.12 on


def test_flows_run_after_one_that_ended_at_once() -> None:
    """A consumer committed no more offsets, and took no more queues."""
    done: list[int] = []

    class Eager(SimpleNamespace):
        """Client whose tasks run within `spawn`, and end there."""

        is_closed = False

        def spawn(self, work: Any) -> asyncio.Future[None]:
            with pytest.raises(StopIteration):
                work.send(None)
            task = asyncio.get_running_loop().create_future()
            task.set_result(None)
            return task

        async def run(self, flow: Flow[None]) -> None:
            for _ in flow:
                raise AssertionError("it asks nothing")

    async def main() -> None:
        client: Any = Eager()
        client.remoting = client
        flows = LoopFlows(client)

        def flow(number: int) -> Flow[None]:
            done.append(number)
            yield from ()

        for number in range(3):
            flows.post(lambda number=number: flow(number))  # type: ignore[misc]
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert done == [0, 1, 2]


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="from Python 3.12 on")
def test_clients_work_on_a_loop_with_eager_tasks(broker: LocalBroker) -> None:
    async def main() -> None:
        factory = getattr(asyncio, "eager_task_factory")  # noqa: B009 (3.11 has none)
        asyncio.get_running_loop().set_task_factory(factory)
        handled = Handled()
        async with consumer(broker, handled, settings=QUICK) as made:
            await made.subscribe("Orders")
            settings = ProducerSettings(in_flight_max=2)
            async with Producer("shop", broker.namesrv, settings=settings) as producer:
                for _ in range(20):
                    bodies = [b"%d" % number for number in range(10)]
                    sends = [producer.send(Message("Orders", body)) for body in bodies]
                    async with asyncio.timeout(LONG_S):
                        await asyncio.gather(*sends)
                assert producer._slots.count == 0
            await until(lambda: len(handled.bodies) >= 200)
            await asyncio.to_thread(broker.join, "billing")

    asyncio.run(main())


def test_many_requests_at_once_let_other_tasks_run() -> None:
    """The commits of a stop with 4,000 queues were one turn of the loop."""
    asked, turns = list[str](), list[int]()

    async def ask(address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        asked.append(address)
        if address == "bad:1":
            raise ConnectionFailed(address)
        return command

    async def tick() -> None:
        while True:
            turns.append(len(asked))
            await asyncio.sleep(0)

    async def main() -> list[object]:
        made = AioClient("127.0.0.1:1", ip="127.0.0.1")
        made.remoting.open()
        made.remoting.ask = ask  # type: ignore[method-assign]
        calls = [Call("a:1", RemotingCommand(0), 1.0)] * (2 * CALLS_OF_A_TURN)
        ticking = asyncio.create_task(tick())
        answers = await made.carry_out(Calls([*calls, Call("bad:1", RemotingCommand(0), 1.0)]))
        ticking.cancel()
        await made.remoting.close()
        assert isinstance(answers, list)
        return answers

    *good, bad = asyncio.run(main())
    assert len(good) == 2 * CALLS_OF_A_TURN
    assert isinstance(bad, ConnectionFailed)
    assert CALLS_OF_A_TURN in turns
