"""The broker for dramatiq: its workers against a broker in this process, and worker processes."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.compat.patience import wait_until
from tests.support.runtimes import IS_PYPY, needs_installed
from tests.support.unreadable import send_unreadable

needs_installed("dramatiq")

import dramatiq  # noqa: E402
from dramatiq.broker import MessageProxy  # noqa: E402
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound  # noqa: E402
from dramatiq.middleware import Middleware  # noqa: E402

from troupemq import ArgumentIllegal, Message, Producer  # noqa: E402
from troupemq.dramatiq import DELAY_LEFT_MS, HOP_MS, TroupeMQBroker  # noqa: E402
from troupemq.testing import InjectedFault, LocalBroker, running_broker  # noqa: E402

GROUP = "dramatiq-default"
ADDRESSES = "10.0.0.1:9876;10.0.0.2:9876"
DEAD_LETTERS = f"%DLQ%{GROUP}"
WAIT_S = 10.0
JOIN_MS = 10_000
TIMEOUT_MS = 50
MANY = 60


@pytest.fixture
def local() -> Iterator[LocalBroker]:
    with running_broker(topics={GROUP: 2}) as made:
        yield made


@pytest.fixture
def broker(local: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[TroupeMQBroker]:
    monkeypatch.setattr("troupemq.dramatiq.QUIET_S", 0.1)
    made = TroupeMQBroker(local.namesrv)
    yield made
    made.close()


@contextmanager
def working(broker: TroupeMQBroker, threads: int = 4) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=TIMEOUT_MS, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def recording(broker: TroupeMQBroker, **options: Any) -> tuple[Any, list[int]]:
    """Return an actor that records its argument, and the record."""
    ran = list[int]()

    @dramatiq.actor(broker=broker, actor_name="record", **options)
    def record(number: int) -> None:
        ran.append(number)

    return record, ran


def join(broker: TroupeMQBroker) -> None:
    broker.join("default", interval=10, timeout=JOIN_MS)


def test_messages_run_and_are_acknowledged(local: LocalBroker, broker: TroupeMQBroker) -> None:
    record, ran = recording(broker)
    with working(broker) as worker:
        sent = [record.send(number) for number in range(MANY)]
        join(broker)
        worker.join()
        assert sorted(ran) == [*range(MANY)]
    stored = local.messages(GROUP)
    assert {each.tags for each in stored} == {"record"}
    assert {each.keys[0] for each in stored} == {each.message_id for each in sent}
    assert broker.get_declared_queues() == {"default"}
    assert broker.get_declared_delay_queues() == set()


def test_delay_is_a_timer_of_the_broker(local: LocalBroker, broker: TroupeMQBroker) -> None:
    record, ran = recording(broker)
    with working(broker):
        message = record.send_with_options(args=(1,), delay=3_600_000)
        assert message.options["eta"] - message.message_timestamp >= 3_600_000
        record.send(2)
        wait_until(lambda: ran == [2], "the message without a delay", WAIT_S)
        local.advance("1h")
        wait_until(lambda: ran == [2, 1], "the delayed message", WAIT_S)


@pytest.mark.parametrize("kind", [int, float])
def test_delay_longer_than_a_timer_takes_hops(
    local: LocalBroker,
    broker: TroupeMQBroker,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[int | float],
) -> None:
    """Retries of dramatiq wait for up to a week, timers for three days. A delay may be a float."""
    record, ran = recording(broker)
    sent, send = list[float](), broker.send

    def recorded(message: Any, delay_ms: float) -> None:
        send(message, delay_ms)
        sent.append(delay_ms)

    def hopped(times: int) -> bool:
        return len(sent) == times + 1

    monkeypatch.setattr(broker, "send", recorded)
    hour_ms = 3_600_000
    with working(broker):
        record.send_with_options(args=(1,), delay=kind(2 * HOP_MS + hour_ms))
        for hop in (1, 2):
            local.advance(HOP_MS / 1000)
            wait_until(partial(hopped, hop), "the next hop", WAIT_S)
        assert (sent, ran) == ([2 * HOP_MS + hour_ms, HOP_MS + hour_ms, hour_ms], [])
        local.advance("1h")
        wait_until(lambda: ran == [1], "the delayed message", WAIT_S)


def test_join_waits_for_delayed_messages_and_retries(broker: TroupeMQBroker) -> None:
    tried = list[int]()

    @dramatiq.actor(broker=broker, min_backoff=100, max_backoff=100)
    def fail_twice() -> None:
        tried.append(1)
        if len(tried) < 3:
            raise ValueError("not yet")

    with working(broker):
        fail_twice.send_with_options(delay=200)
        join(broker)
        assert len(tried) == 3


def test_join_ends_at_its_timeout(broker: TroupeMQBroker) -> None:
    record, _ = recording(broker)
    record.send(1)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", interval=10, timeout=100)


def test_failed_messages_become_dead_letters(local: LocalBroker, broker: TroupeMQBroker) -> None:
    """At the limit of retries, without an actor, and if they are no messages of dramatiq."""

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=10, max_backoff=10)
    def fail() -> None:
        raise ValueError("always")

    listed = dramatiq.Message[None]("default", "a", (), {}, {})
    object.__setattr__(listed, "options", [])
    endless = dramatiq.Message[None]("\n" * 300, "a", (), {}, {DELAY_LEFT_MS: HOP_MS})
    with Producer("others", local.namesrv) as producer:
        producer.send(Message(GROUP, b"no message of dramatiq", keys="other"))
        producer.send(Message(GROUP, listed.encode(), keys="listed"))
        producer.send(Message(GROUP, endless.encode(), keys="endless"))
    send_unreadable(local, GROUP, KEYS="unreadable")
    unknown: dramatiq.Message[None] = dramatiq.Message(
        queue_name="default", actor_name="unknown", args=(), kwargs={}, options={}
    )
    broker.enqueue(unknown)
    failing = fail.send()
    with working(broker):
        dead = local.expect(broker.dead_letter_topic_of("default"), times=6, within_s=WAIT_S)
        wait_until(lambda: local.lag(GROUP) == 0, "all messages settled", WAIT_S)
    keys = {each.keys[0] for each in dead}
    others = {"other", "listed", "endless", "unreadable"}
    assert keys == {*others, unknown.message_id, failing.message_id}


@pytest.mark.parametrize(("code", "comes_again"), [("SYSTEM_BUSY", 1), ("NO_PERMISSION", 0)])
def test_task_was_lost_when_its_retry_could_not_be_stored(
    local: LocalBroker,
    broker: TroupeMQBroker,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    comes_again: int,
) -> None:
    """dramatiq logs the failure and acknowledges the message."""
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.01)
    ran = list[InjectedFault]()

    @dramatiq.actor(broker=broker, min_backoff=10, max_backoff=10)
    def fail_once() -> None:
        if not ran:
            ran.append(local.fail("send", code))
            raise ValueError("the first time")

    fail_once.send()
    with working(broker):
        wait_until(lambda: bool(ran) and ran[0].hits > 3 * comes_again, "refused retries", WAIT_S)
        if comes_again:
            ran[0].is_ended = True
            local.expect(GROUP, times=2, within_s=WAIT_S)
            join(broker)
        else:
            (dead,) = local.expect(DEAD_LETTERS, within_s=WAIT_S)
            assert dead.failure and "NO_PERMISSION" in dead.failure
    assert len(local.messages(GROUP)) == 1 + comes_again


@pytest.mark.skipif(IS_PYPY, reason="dramatiq has no time limits on PyPy")
def test_time_limit_ends_a_message(local: LocalBroker, broker: TroupeMQBroker) -> None:
    @dramatiq.actor(broker=broker, time_limit=100, max_retries=0)
    def spin() -> None:
        for _ in range(300):
            Event().wait(0.01)

    broker.emit_after("process_boot")  # starts the thread of the time limits
    with working(broker):
        spin.send()
        local.expect(DEAD_LETTERS, within_s=WAIT_S)


def test_priority_of_an_actor_orders_what_a_worker_has(broker: TroupeMQBroker) -> None:
    begun, allowed, ran = Event(), Event(), list[str]()

    @dramatiq.actor(broker=broker)
    def block() -> None:
        begun.set()
        assert allowed.wait(WAIT_S)

    @dramatiq.actor(broker=broker, priority=10)
    def low() -> None:
        ran.append("low")

    @dramatiq.actor(broker=broker, priority=0)
    def high() -> None:
        ran.append("high")

    with working(broker, threads=1) as worker:
        worker.consumers["default"].prefetch = worker.queue_prefetch = 3
        block.send()
        assert begun.wait(WAIT_S)
        low.send()
        high.send()
        wait_until(lambda: worker.work_queue.qsize() >= 1, "a prefetched message", WAIT_S)
        allowed.set()
        join(broker)
    assert sorted(ran) == ["high", "low"]


def test_broker_priority_orders_what_waits(local: LocalBroker) -> None:
    broker = TroupeMQBroker(local.namesrv, max_priority=9)
    record, _ = recording(broker, queue_name="ranked")
    for priority in (0, 9, 3, 5):
        record.send_with_options(args=(priority,), broker_priority=priority)
    record.send_with_options(args=(99,), broker_priority="high", delay=1)
    wait_until(lambda: len(local.messages("dramatiq-ranked")) == 5, "all messages", WAIT_S)
    consumer = broker.consume("ranked", 1, TIMEOUT_MS)
    ran = []
    for _ in range(5):
        (message,) = received(consumer, 1)
        ran.append(message.args[0])
        consumer.ack(message)
    broker.close()
    assert ran[:3] == [9, 5, 3]
    with pytest.raises(ArgumentIllegal, match="max_priority"):
        TroupeMQBroker(local.namesrv, max_priority=256)


def test_worker_takes_no_more_than_its_prefetch(broker: TroupeMQBroker) -> None:
    record, _ = recording(broker)
    for number in range(5):
        record.send(number)
    first, second = broker.consume("default", 2, TIMEOUT_MS), broker.consume("default", 9, 1000)
    held = [message for message in (next(first) for _ in range(3)) if message is not None]
    assert len(held) == 2
    rest = received(second, 3)
    first.ack(held[0])
    second.nack(rest[0])
    first.requeue(held[1:])
    (again,) = received(second, 1)
    assert again.message_id == held[1].message_id
    second.close()  # keeps its client for what is not settled
    for message in (*rest[1:], again):
        second.ack(message)
    first.close()
    broker.join("default", interval=10, timeout=JOIN_MS)


def received(consumer: Any, count: int) -> list[MessageProxy]:
    """Return so many messages of a consumer."""
    found: list[MessageProxy] = []

    def is_enough() -> bool:
        if (message := next(consumer)) is not None:
            found.append(message)
        return len(found) >= count

    wait_until(is_enough, "messages", WAIT_S)
    return found


def test_messages_that_are_given_back_never_become_dead_letters(local: LocalBroker) -> None:
    """Else a message that waits behind long ones would end after 17 restarts of workers."""
    broker = TroupeMQBroker(local.namesrv, redeliveries_max=1)
    record, _ = recording(broker)
    sent = record.send(1)
    for _ in range(3):
        consumer = broker.consume("default", 2, TIMEOUT_MS)
        consumer.requeue(received(consumer, 1))
        consumer.close()
    consumer = broker.consume("default", 2, TIMEOUT_MS)
    (message,) = received(consumer, 1)
    assert message.message_id == sent.message_id
    consumer.ack(message)
    broker.close()
    assert local.messages(DEAD_LETTERS) == []


def test_consumer_that_closes_without_a_broker_keeps_no_message(
    local: LocalBroker, broker: TroupeMQBroker
) -> None:
    """dramatiq forgets it after the error; its client held the prefetched messages for ever."""
    record, _ = recording(broker)
    for number in range(2):
        record.send(number)
    wait_until(lambda: len(local.messages(GROUP)) == 2, "both messages", WAIT_S)
    first = broker.consume("default", 2, TIMEOUT_MS)
    (message,) = received(first, 1)
    first.ack(message)
    requests = ("send", "CHANGE_MESSAGE_INVISIBLETIME")
    faults = [local.fail(each, "SYSTEM_BUSY") for each in requests]
    with pytest.raises(ConnectionClosed):
        first.close()
    for fault in faults:
        fault.is_ended = True
    second = broker.consume("default", 2, TIMEOUT_MS)
    (again,) = received(second, 1)
    second.ack(again)


def test_stopped_worker_gives_back_what_it_has_not_begun(
    local: LocalBroker, broker: TroupeMQBroker
) -> None:
    begun, allowed, ran = Event(), Event(), list[int]()

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        ran.append(number)
        begun.set()
        assert allowed.wait(WAIT_S)

    for number in range(3):
        work.send(number)
    with working(broker, threads=1) as worker:
        wait_until(lambda: worker.work_queue.qsize() > 0, "prefetched messages", WAIT_S)
        assert begun.wait(WAIT_S)
        for thread in worker.workers:
            thread.stop()
        allowed.set()
    assert len(ran) == 1
    with working(broker):
        join(broker)
    assert sorted(ran) == [0, 1, 2]


def test_paused_worker_repeats_nothing(broker: TroupeMQBroker) -> None:
    """A pause closes the consumer; its messages are settled through the next one."""
    record, ran = recording(broker)
    with working(broker, threads=1) as worker:
        for number in range(MANY):
            record.send(number)
        wait_until(lambda: bool(ran), "the first message", WAIT_S)
        worker.pause()
        wait_until(lambda: worker.consumers["default"].paused_event.is_set(), "a pause", WAIT_S)
        worker.resume()
        join(broker)
    assert sorted(ran) == [*range(MANY)]


def test_flush_drops_what_waits(local: LocalBroker, broker: TroupeMQBroker) -> None:
    record, ran = recording(broker)
    broker.flush_all()  # a queue without messages
    for number in range(MANY):
        record.send(number)
    wait_until(lambda: len(local.messages(GROUP)) == MANY, "all messages", WAIT_S)
    broker.flush_all()
    with working(broker):
        join(broker)
    assert ran == []


def test_queue_names_become_topics(broker: TroupeMQBroker) -> None:
    assert broker.topic_of("mails.new") == "dramatiq-mails%2Enew"
    record, ran = recording(broker, queue_name="mails.new")
    with working(broker):
        record.send(1)
        wait_until(lambda: ran == [1], "the message", WAIT_S)


def test_unknown_queue_and_missing_broker_are_errors_of_dramatiq() -> None:
    broker = TroupeMQBroker("127.0.0.1:1")
    with pytest.raises(QueueNotFound):
        broker.consume("default")
    record, _ = recording(broker)
    with pytest.raises(ConnectionClosed):
        record.send(1)
    broker.close()


class Signals(Middleware):
    """Middleware that records the signals of messages."""

    def __init__(self) -> None:
        self.seen = list[str]()

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.seen.append(f"enqueue {delay}")

    def after_ack(self, broker: Any, message: Any) -> None:
        self.seen.append("ack")

    def after_nack(self, broker: Any, message: Any) -> None:
        self.seen.append("nack")


def test_middleware_sees_the_signals_of_messages(local: LocalBroker) -> None:
    signals = Signals()
    broker = TroupeMQBroker(local.namesrv, middleware=[signals])
    record, _ = recording(broker)
    with working(broker):
        record.send(1)
        wait_until(lambda: "ack" in signals.seen, "the acknowledgement", WAIT_S)
        record.send_with_options(args=("1", "2"), delay=5)
        wait_until(lambda: "enqueue 5" in signals.seen, "the delayed message", WAIT_S)
    broker.close()


def test_messages_outlive_a_kill_and_a_restart_of_the_broker(
    local: LocalBroker, broker: TroupeMQBroker
) -> None:
    record, ran = recording(broker)
    for number in range(MANY):
        record.send(number)
    with working(broker, threads=1):
        wait_until(lambda: len(ran) > 0, "some messages", WAIT_S)
        local.kill()
        wait_until(lambda: len(set(ran)) > MANY // 2, "more messages", 3 * WAIT_S)
        local.restart()
        wait_until(lambda: len(set(ran)) == MANY, "all messages", 3 * WAIT_S)
        wait_until(lambda: local.lag(GROUP) == 0, "all acknowledged", 3 * WAIT_S)


def test_program_of_the_page_runs(local: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    (program,) = re.findall(r"```python\n(# tasks.py\nimport dramatiq.*?)```", text, re.DOTALL)
    printed = list[str]()
    monkeypatch.setattr("dramatiq.broker.global_broker", None)
    names = {"__name__": "__main__", "print": lambda *words: printed.append(words[1])}
    exec(program.replace(ADDRESSES, local.namesrv), names)
    broker = dramatiq.get_broker()
    assert isinstance(broker, TroupeMQBroker)
    with working(broker):
        wait_until(lambda: printed == ["cat.png"], "the first message", WAIT_S)
        local.advance("1m")
        wait_until(lambda: printed == ["cat.png", "dog.png"], "the delayed message", WAIT_S)
    broker.close()


PROGRAM = """
import os
import time

import dramatiq

from troupemq.dramatiq import TroupeMQBroker

dramatiq.set_broker(TroupeMQBroker(os.environ["NAMESRV"]))


@dramatiq.actor
def work(number, seconds):
    with open("output", "a") as output:
        output.write(f"begun {number}\\n")
    time.sleep(seconds)
"""
THREADS = 2
IN_FLIGHT_MAX = 2 * THREADS
"""Messages that a worker of dramatiq prefetches, those that run included."""


@pytest.mark.slow(seconds=8)
def test_killed_worker_process_repeats_only_what_was_in_flight(
    local: LocalBroker, broker: TroupeMQBroker, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output = tmp_path / "output"
    output.touch()

    def begun(number: int | None = None) -> list[str]:
        wanted = "begun" if number is None else f"begun {number}"
        return [line for line in output.read_text().splitlines() if line.startswith(wanted)]

    @dramatiq.actor(broker=broker, actor_name="work")
    def work(number: int, seconds: int) -> None:
        raise AssertionError("runs elsewhere")

    for number in range(MANY):
        work.send(number, 3600 if number == 0 else 0)
    with worker_process(local, tmp_path):
        wait_until(lambda: len(begun()) == MANY, "all messages begun")
        wait_until(lambda: local.lag(GROUP) > 0, "the long one in flight")
    first = Counter(begun())
    assert set(first.values()) == {1}
    with worker_process(local, tmp_path):
        wait_until(lambda: len(begun(0)) == 2, "the long one again")
    again = Counter(begun()) - first
    assert again["begun 0"] == 1
    assert again.total() <= IN_FLIGHT_MAX


@contextmanager
def worker_process(local: LocalBroker, folder: Path) -> Iterator[None]:
    """Run `dramatiq`; in the end kill it with its children, as kill -9 does."""
    options = ("--processes", "1", "--threads", str(THREADS))
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-m", "dramatiq", "program", *options],
        cwd=folder,
        env={**os.environ, "NAMESRV": local.namesrv, "PYTHONPATH": root},
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
