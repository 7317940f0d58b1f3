"""Asynchronous calls return at once, whatever hangs; what waits goes in its order."""

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from socket import getaddrinfo
from threading import Event, current_thread
from time import monotonic
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.compression import compress
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from tests.troupemq.client.cluster import MESSAGE, SEND, Cluster, stored
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.errors import (
    ArgumentIllegal,
    BrokerError,
    ClientBusy,
    ClientClosed,
    ConnectionFailed,
    RequestTimeout,
)
from troupemq.client.message import Message, MessageQueue, SendResult
from troupemq.client.producing.making import LONG_BODY_BYTES
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import LearningChoice
from troupemq.client.settings import ProducerSettings

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
QUEUE = MessageQueue("T", "a", 0)
RETURNS_S = 0.5
"""Far below any timeout of a name server, and no matter on a machine that is busy."""


@contextmanager
def held_routes(cluster: Cluster) -> Iterator[Event]:
    """The name server answers when the event is set."""
    answer, may_answer = cluster.namesrv.handlers[ROUTE], Event()

    def wait(command: RemotingCommand) -> RemotingCommand | bytes | None:
        assert may_answer.wait(WAIT_S)
        return answer(command)

    cluster.namesrv.on(ROUTE, wait)
    try:
        yield may_answer
    finally:
        may_answer.set()


def bodies_at(server: FakeServer, count: int) -> list[bytes]:
    return [bytes(server.next(SEND).body or b"") for _ in range(count)]


@pytest.mark.parametrize("way", ["send", "batch", "request"])
def test_an_asynchronous_call_does_not_wait_for_a_hanging_name_server(
    cluster: Cluster, way: str
) -> None:
    with held_routes(cluster) as may_answer, cluster.producer() as producer:
        begun_s = monotonic()
        future: Future[Any]
        if way == "send":
            future = producer.send_async(MESSAGE, queue=QUEUE)
        elif way == "batch":
            future = producer.send_batch_async([MESSAGE], queue=QUEUE)
        else:
            future = producer.request_async(MESSAGE, WAIT_S * 1000, queue=QUEUE)
        assert monotonic() - begun_s < RETURNS_S and not future.done()
        may_answer.set()
        if way == "request":
            assert cluster.a.next(SEND)
        else:
            assert future.result(WAIT_S).queue == QUEUE


def test_a_hanging_name_server_does_not_block_an_event_loop(cluster: Cluster) -> None:
    async def send(producer: Producer, may_answer: Event) -> SendResult:
        loop = asyncio.get_running_loop()
        sent = asyncio.wrap_future(producer.send_async(MESSAGE))
        loop.call_later(0.001, may_answer.set)  # it could not, were the loop held up
        return await asyncio.wait_for(sent, WAIT_S)

    with held_routes(cluster) as may_answer, cluster.producer() as producer:
        assert asyncio.run(send(producer, may_answer)).queue.topic == "T"


def test_a_send_has_its_own_timeout_regardless_of_earlier_sends() -> None:
    with FakeServer() as hangs, Producer("pg", [hangs.address, "127.0.0.1:1"]) as producer:
        begun_s = monotonic()
        futures = [producer.send_async(Message(f"T{n}", b"x"), 60) for n in range(5)]
        futures.append(producer.request_async(Message("T", b"x"), 60))  # type: ignore[arg-type]
        errors = [str(future.exception(WAIT_S)) for future in futures]
        assert monotonic() - begun_s < 1.0
        producer.stop(0)
    assert isinstance(futures[0].exception(), RequestTimeout)
    assert errors[0].startswith("no route of the topic T0: no name server answers: ")
    assert hangs.address in errors[0]
    assert "127.0.0.1:1" in errors[0] and "start one: troupemq namesrv" in errors[0]
    assert errors[-1].startswith("no reply in 60 ms")


def test_sends_that_waited_for_a_route_keep_their_order(cluster: Cluster) -> None:
    with held_routes(cluster) as may_answer, cluster.producer() as producer:
        futures = [
            producer.send_async(Message("T", b"%d" % number), queue=QUEUE) for number in range(20)
        ]
        may_answer.set()
        for number in range(20, 40):
            futures.append(producer.send_async(Message("T", b"%d" % number), queue=QUEUE))
        for future in futures:
            future.result(WAIT_S)
    assert bodies_at(cluster.a, 40) == [b"%d" % number for number in range(40)]


def test_one_route_answer_serves_all_waiting_sends(cluster: Cluster) -> None:
    with held_routes(cluster) as may_answer, cluster.producer() as producer:
        futures = [producer.send_async(MESSAGE) for _ in range(20)]
        may_answer.set()
        for future in futures:
            future.result(WAIT_S)
    assert cluster.namesrv.received.qsize() == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
def test_each_waiting_send_gets_its_own_error(cluster: Cluster, code: ResponseCode) -> None:
    with held_routes(cluster) as may_answer, cluster.producer() as producer:

        def refuse(command: RemotingCommand) -> RemotingCommand:
            assert may_answer.wait(WAIT_S)
            return command.answer(code, remark="no")

        cluster.namesrv.on(ROUTE, refuse)
        futures = [producer.send_async(MESSAGE) for _ in range(2)]
        may_answer.set()
        first, second = (future.exception(WAIT_S) for future in futures)
    assert isinstance(first, BrokerError) and isinstance(second, BrokerError)
    assert first is not second and (second.code, second.remark) == (code, "no")


def test_a_stop_ends_sends_that_wait_for_a_route(cluster: Cluster) -> None:
    with held_routes(cluster), cluster.producer() as producer:
        future = producer.send_async(MESSAGE, WAIT_S * 1000)
        producer.stop(0)
        with pytest.raises(ClientClosed):
            future.result(WAIT_S)


def test_a_long_body_is_compressed_on_a_thread_and_keeps_its_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_compress, threads = Event(), []

    def slowly(body: bytes, sys_flag: int) -> tuple[bytes, int]:
        threads.append(current_thread())
        assert may_compress.wait(WAIT_S)
        return compress(body, sys_flag)

    monkeypatch.setattr("troupemq.client.producing.sending.compress", slowly)
    with cluster.producer() as producer:
        producer.send(MESSAGE, queue=QUEUE)
        long = producer.send_async(
            Message("T", bytes(LONG_BODY_BYTES)), queue=QUEUE, wait_for_room=False
        )
        short = producer.send_async(Message("T", b"short"), queue=QUEUE)
        assert not long.done() and not short.done()
        may_compress.set()
        assert long.result(WAIT_S).queue == short.result(WAIT_S).queue == QUEUE
        commands = [cluster.a.next(SEND) for _ in range(3)]
        producer.send_async(Message("T", bytes(LONG_BODY_BYTES)), queue=QUEUE).result(WAIT_S)
    assert threads[0] is not current_thread() and threads[1] is current_thread()
    flags = [SendMessageHeader.of_command(command).sys_flag for command in commands]
    assert flags == [0, 769, 0]


@pytest.mark.parametrize("way", ["loop", "told"])
def test_a_send_over_the_limit_fails_at_once_in_an_event_loop(cluster: Cluster, way: str) -> None:
    cluster.a.on(SEND, lambda command: None)

    def send_two(producer: Producer, wait_for_room: bool | None) -> Future[SendResult]:
        producer.send_async(MESSAGE, WAIT_S * 1000, queue=QUEUE)
        begun_s = monotonic()
        second = producer.send_async(MESSAGE, queue=QUEUE, wait_for_room=wait_for_room)
        assert monotonic() - begun_s < RETURNS_S
        return second

    async def in_a_loop(producer: Producer) -> Future[SendResult]:
        return send_two(producer, None)

    with cluster.producer(ProducerSettings(in_flight_max=1)) as producer:
        loops = way == "loop"
        refused = asyncio.run(in_a_loop(producer)) if loops else send_two(producer, False)
        with pytest.raises(ClientBusy, match="1 sends of"):
            refused.result(0)
        producer.stop(0)


def test_a_send_over_the_limit_waits_on_a_plain_thread(cluster: Cluster) -> None:
    with cluster.producer(ProducerSettings(in_flight_max=2)) as producer:
        futures = [producer.send_async(MESSAGE, queue=QUEUE) for _ in range(50)]
        assert {future.result(WAIT_S).queue for future in futures} == {QUEUE}


def test_a_slowly_resolving_broker_name_blocks_no_caller(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_resolve = Event()

    def slowly(host: str, port: int, *, type: int, flags: int = 0) -> Any:
        if host == "broker.test" and not flags:
            assert may_resolve.wait(WAIT_S)
            host = "127.0.0.1"
        return getaddrinfo(host, port, type=type, flags=flags)

    monkeypatch.setattr("troupemq.client.connection.connection.getaddrinfo", slowly)
    named = FakeServer()
    with named:
        named.on(SEND, stored)
        named.succeed(RequestCode.UNREGISTER_CLIENT)
        named.address = named.address.replace("127.0.0.1", "broker.test")
        serve_routes(cluster.namesrv, {"a": cluster.a, "named": named}, {"T": 1})
        with cluster.producer() as producer:
            producer.send(MESSAGE, queue=QUEUE)
            slow = producer.send_async(MESSAGE, queue=MessageQueue("T", "named", 0))
            assert producer.send(MESSAGE, queue=QUEUE).queue == QUEUE  # the I/O thread goes on
            assert not slow.done()
            may_resolve.set()
            assert slow.result(WAIT_S).queue.broker_name == "named"


def test_a_name_that_does_not_resolve_fails_its_send(cluster: Cluster) -> None:
    cluster.b.address = "no-such-host.invalid:1"
    serve_routes(cluster.namesrv, {"a": cluster.a, "b": cluster.b}, {"T": 1})
    with cluster.producer() as producer, pytest.raises(ConnectionFailed, match=r"invalid:1: \S"):
        producer.send(MESSAGE, queue=MessageQueue("T", "b", 0))


def test_an_async_callback_is_refused(cluster: Cluster) -> None:
    async def later(done: object) -> None:
        raise AssertionError("nothing awaits it")

    with cluster.producer() as producer:
        future = producer.send_async(MESSAGE)
        with pytest.raises(ArgumentIllegal, match=r"the callback .*later is an async function"):
            future.add_done_callback(later)
        future.result(WAIT_S)


@pytest.mark.parametrize("hides", [False, True])
def test_a_callback_that_exits_or_is_not_awaited_is_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, hides: bool
) -> None:
    async def never() -> None:
        raise AssertionError("nothing awaits it")

    may_answer = Event()

    def late(command: RemotingCommand) -> RemotingCommand:
        assert may_answer.wait(WAIT_S)
        return stored(command)

    cluster.a.on(SEND, late)
    with cluster.producer() as producer:
        future = producer.send_async(MESSAGE, queue=QUEUE)
        future.add_done_callback(lambda done: never() if hides else sys.exit(3))
        may_answer.set()
        future.result(WAIT_S)
        assert producer.send(MESSAGE, queue=QUEUE).queue == QUEUE
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["callback"]


def test_a_failing_queue_selector_does_not_end_the_client(cluster: Cluster) -> None:
    class Forgetful(LearningChoice):
        def __call__(self, queues: Any, message: Message) -> MessageQueue:
            return MessageQueue("T", "a", 0)

        def learn(self, broker_name: str, latency_ms: float, failed: bool) -> None:
            raise KeyError(broker_name)

    with Producer("pg", cluster.namesrv.address, choose=Forgetful()) as producer:
        assert [producer.send(MESSAGE).queue for _ in range(2)] == [QUEUE] * 2
