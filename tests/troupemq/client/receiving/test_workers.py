"""Tests of workers against a broker of ours: what comes again after a kill, a join, a restart."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.compat.patience import wait_until
from tests.troupemq.client.receiving import worker
from tests.troupemq.client.receiving.worker import LONG
from tests.troupemq.fake_server import WAIT_S
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import DEAD_LETTER
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.client.receiving.delivery import Delivery
from troupemq.client.receiving.simple_consumer import SimpleConsumer
from troupemq.testing import LocalBroker

SHORT_TASKS = 400
QUIET_MS = 300
"""Time in which a message would come again that was not held for its worker any more."""


@pytest.fixture
def namesrv(local_broker: LocalBroker) -> str:
    local_broker.admin.create_topic("Tasks", 4)
    return local_broker.namesrv


@pytest.fixture
def consumers(namesrv: str) -> Iterator[tuple[SimpleConsumer, SimpleConsumer]]:
    with consumer(namesrv) as first, consumer(namesrv) as second:
        yield first, second


def consumer(namesrv: str) -> SimpleConsumer:
    made = SimpleConsumer("workers", namesrv, begin=ConsumeFrom.FIRST_OFFSET)
    made.subscribe("Tasks")
    return made


def send(namesrv: str, *tasks: bytes) -> None:
    with Producer("senders", namesrv) as producer:
        for sent in [producer.send_async(Message("Tasks", task)) for task in tasks]:
            sent.result()


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [each.message.body for each in deliveries]


@pytest.mark.slow(seconds=3)
def test_a_killed_worker_repeats_only_what_was_in_flight(namesrv: str) -> None:
    """With consumer offsets the short tasks behind the long one in its queue would run again."""
    short = [b"%d" % number for number in range(SHORT_TASKS)]
    send(namesrv, LONG, *short)
    command = [sys.executable, "-m", worker.__name__, namesrv]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            told = [process.stdout.readline().strip() for _ in range(1 + SHORT_TASKS)]
        finally:
            process.send_signal(signal.SIGKILL)
    assert sorted(told) == sorted([b"begun", *short])
    with consumer(namesrv) as second:
        again = second.receive()
        assert bodies(again) == [LONG]
        assert again[0].message.reconsume_times == 1
        second.ack(again)
        assert second.receive(wait_ms=QUIET_MS) == []


@pytest.mark.heavy
def test_a_worker_that_joins_gets_nothing_that_runs(
    namesrv: str, consumers: tuple[SimpleConsumer, SimpleConsumer]
) -> None:
    """With consumer offsets its queues would bring the tasks of their former owner along."""
    tasks = [b"%d" % number for number in range(20)]
    send(namesrv, *tasks)
    first, second = consumers
    running = [first.receive(1)[0] for _ in range(8)]
    joined = second.receive()
    rest = [*joined, *second.receive(wait_ms=QUIET_MS)]
    assert Counter(bodies([*running, *rest])) == Counter(tasks)
    first.ack(running)
    second.ack(rest)
    assert first.receive(wait_ms=0) == second.receive(wait_ms=0) == []


@pytest.mark.heavy
def test_a_clean_stop_gives_its_messages_to_the_others_at_once(
    namesrv: str, consumers: tuple[SimpleConsumer, SimpleConsumer]
) -> None:
    send(namesrv, b"a", b"b", b"c")
    first, second = consumers
    held = first.receive()
    held[0].ack()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(second.receive, 32, 5000)
        first.stop()
        got = waiting.result()
    while len(got) < 2 and (more := second.receive(wait_ms=5000)):
        got += more
    assert sorted(bodies(got)) == sorted(bodies(held[1:]))


@pytest.mark.heavy
def test_retries_and_dead_letters_are_where_pull_consumers_have_them(
    namesrv: str, consumers: tuple[SimpleConsumer, SimpleConsumer]
) -> None:
    send(namesrv, b"a")
    first, _ = consumers
    retries: list[dict[str, Any]] = [{"delay_level": 1}, {"seconds": 0}]
    for tries, options in enumerate(retries):
        (delivery,) = first.receive()
        assert (delivery.message.reconsume_times, delivery.message.topic) == (tries, "Tasks")
        delivery.retry(**options)
    (delivery,) = first.receive()
    assert delivery.message.reconsume_times == 2
    delivery.retry(DEAD_LETTER)
    with Admin(namesrv) as admin:
        wait_until(lambda: admin.message_count("%DLQ%workers") == 1, "the dead letter", WAIT_S)
        wait_until(lambda: admin.message_count("%RETRY%workers") == 2, "both retries", WAIT_S)
    assert first.receive(wait_ms=0) == []


@pytest.mark.heavy
def test_the_consumer_offset_waits_for_the_lowest_message_in_flight(namesrv: str) -> None:
    """Then a PushConsumer of the same group can go on, and administrators see the lag."""

    def lag() -> int:
        return sum(each.lag for each in admin.group_progress("workers"))

    send(namesrv, *(b"%d" % number for number in range(8)))
    with consumer(namesrv) as only, Admin(namesrv) as admin:
        received = only.receive()
        slow = min(received, key=lambda each: each.message.queue_offset)
        only.ack([each for each in received if each is not slow])
        wait_until(lambda: lag() == 2, "the slow message and the one behind it", WAIT_S)
        slow.extend(60)
        slow.ack()
        wait_until(lambda: lag() == 0, "nothing in flight", WAIT_S)
