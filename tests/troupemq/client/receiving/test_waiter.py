"""Tests of the driver that blocks: late answers, the end of pauses, the thread it refuses."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.troupemq.client.receiving.test_simple_consumer import Bench, bench, bodies
from tests.troupemq.fake_server import WAIT_S
from troupemq.client.connection.client import Client
from troupemq.client.errors import ClientClosed, ClientError
from troupemq.client.receiving.flows import Flow, Pause
from troupemq.client.receiving.waiter import Waiter

__all__ = ["bench"]

POP = RequestCode.POP_MESSAGE


def test_the_stop_ends_a_pause() -> None:
    begun = Event()

    def pausing() -> Flow[None]:
        begun.set()
        yield Pause(60_000)

    client = Client("127.0.0.1:1")
    waiter = Waiter(client)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waiter.run, pausing())
        assert begun.wait(WAIT_S)
        waiter.stop()
        assert isinstance(waiting.exception(WAIT_S), ClientClosed)
    client.remoting.close()


def test_a_late_answer_is_returned_by_the_next_receive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its messages would stay held as long as the connection lives."""
    monkeypatch.setattr("troupemq.client.receiving.waiter.SLACK_MS", 20)
    silent: list[RemotingCommand] = []
    pop = bench.server.handlers[POP]

    def late(command: RemotingCommand) -> None:
        silent.append(command)

    bench.broker.add(b"a", b"b", b"c")
    bench.server.on(POP, late)
    with bench.consumer() as consumer:
        assert consumer.receive(3, wait_ms=0) == []
        bench.server.on(POP, pop)
        answer = pop(silent[0])
        assert isinstance(answer, RemotingCommand)
        bench.server.push(answer)
        monkeypatch.setattr("troupemq.client.receiving.waiter.SLACK_MS", 10_000)
        assert bodies(consumer.receive(1)) == [b"a"]  # no more than it asks for
        assert bodies(consumer.receive()) == [b"b", b"c"]


def test_a_callback_must_not_wait(bench: Bench) -> None:
    refused, done = [], Event()
    with bench.consumer() as consumer:

        def call() -> None:
            try:
                consumer.receive(wait_ms=0)
            except ClientError as error:
                refused.append(str(error))
            done.set()

        consumer.receive(wait_ms=0)  # starts the I/O thread
        consumer._client.remoting.later(0, call)
        assert done.wait(WAIT_S)
    assert refused == ["a callback must not wait for an answer: the answers come after it"]


def test_answered_receives_leave_nothing_behind(bench: Bench) -> None:
    """Each of them left a timer of an hour."""
    with bench.consumer() as consumer:

        def noted() -> int:
            connections = consumer._client.remoting._connections.values()
            expiring = [each._pending._expiring for each in connections]
            return sum(len(opaques) for each in expiring for opaques in each.values())

        consumer.receive(wait_ms=0)
        before = noted()
        for _ in range(20):
            consumer.receive(wait_ms=0)
        assert noted() <= before + 1  # perhaps a heartbeat


def test_late_answer_is_not_waited_for_without_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SLACK_MS", 20), ("KEPT_S", 0.0)):
        monkeypatch.setattr(f"troupemq.client.receiving.waiter.{name}", value)
    pop = bench.server.handlers[POP]
    bench.server.on(POP, lambda command: None)
    with bench.consumer() as consumer:
        assert consumer.receive(wait_ms=0) == []
        bench.server.on(POP, pop)
        bench.broker.add(b"a")
        assert bodies(consumer.receive()) == [b"a"]
