"""kill -9 of the broker under Python clients: a producer that sends on, and a group of two members.

Push consumers in one trial, and workers that settle each message in the other.
Three kills, restarted at the same port and on the same store. Everything acknowledged is consumed
at least once, and in the end the group's offsets are behind the last message of every queue.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread

import pytest

from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer
from tests.system.test_cluster_kills import at_a_port_of_its_own, kill
from troupemq import (
    Admin,
    ConsumeFrom,
    ConsumerSettings,
    Message,
    MessageView,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    SendResult,
    SendStatus,
    SimpleConsumer,
)

KILLS = 3
QUEUES = 4
TOPIC, GROUP = "Topic", "group"
BETWEEN_KILLS = (300, 1500)
"""Messages that are acknowledged, and consumed, before the next kill."""

BACK_S = 60.0
SENDING = ProducerSettings(retries=1000, send_timeout_ms=60_000, in_flight_max=200)
CONSUMING = ConsumerSettings(
    consume_threads=4, commit_interval_ms=200, rebalance_interval_ms=1000, pull_error_delay_ms=200
)


class Sender(Thread):
    """Sends without waiting for answers, until it is told to end; keeps what was acknowledged."""

    def __init__(self, namesrv: str) -> None:
        super().__init__()
        self.over = Event()
        self.acknowledged: set[bytes] = set()
        self.failed: list[BaseException] = []
        self._namesrv = namesrv

    def run(self) -> None:
        with Producer("producers", self._namesrv, settings=SENDING) as producer:
            number = 0
            while not self.over.is_set():
                body = b"%d" % number
                number += 1
                sent = producer.send_async(Message(TOPIC, body))
                sent.add_done_callback(partial(self._done, body))
            producer.stop(BACK_S)

    def _done(self, body: bytes, sent: Future[SendResult]) -> None:
        if (error := sent.exception()) is not None:
            self.failed.append(error)
        elif sent.result().status is SendStatus.OK:
            self.acknowledged.add(body)


class Member:
    """A listener that keeps what it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._lock = Lock()

    def __call__(self, views: Sequence[MessageView]) -> None:
        with self._lock:
            self.bodies += [view.body for view in views]


@pytest.mark.slow(seconds=10)
@pytest.mark.trial(short=1, long=10)
def test_a_group_consumes_all_acknowledged_messages_through_kills(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    members = Member(), Member()
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(tmp_path / "names"))
        broker = at_a_port_of_its_own(OurBroker(tmp_path / "broker", names, SMALL_FILES))
        stack.enter_context(broker)
        with Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        sender = Sender(names.address)
        with ExitStack() as group:
            for listener in members:
                consumer = PushConsumer(
                    GROUP,
                    listener,
                    names.address,
                    begin=ConsumeFrom.FIRST_OFFSET,
                    settings=CONSUMING,
                )
                consumer.subscribe(TOPIC)
                group.enter_context(consumer)
            sender.start()
            try:
                for _ in range(KILLS):
                    wait_for_more(sender, members, random.randrange(*BETWEEN_KILLS))
                    kill(broker)
                    broker.start()
                wait_for_more(sender, members, BETWEEN_KILLS[0])
            finally:
                sender.over.set()
                sender.join()
            wait_until(lambda: sender.acknowledged <= consumed(members), "all consumed", BACK_S)
        assert sender.failed == []
        assert_offsets_are_at_the_end(names.address)


class Worker(Thread):
    """Receives and acknowledges until its consumer stops; keeps what it got and what it settled."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.settled: set[bytes] = set()
        self._consumer = consumer

    def run(self) -> None:
        while self._consumer.is_running:
            for delivery in self._consumer.receive(8, wait_ms=2000):
                with delivery:
                    self.bodies.append(delivery.message.body)
                if delivery.is_settled:
                    self.settled.add(delivery.message.body)


@pytest.mark.slow(seconds=10)
@pytest.mark.trial(short=0, long=5)
def test_workers_settle_whatever_was_acknowledged_before_between_and_after_kills(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(tmp_path / "names"))
        broker = at_a_port_of_its_own(OurBroker(tmp_path / "broker", names, SMALL_FILES))
        stack.enter_context(broker)
        with Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        sender = Sender(names.address)
        with ExitStack() as group:
            consumers = [
                group.enter_context(
                    SimpleConsumer(GROUP, names.address, begin=ConsumeFrom.FIRST_OFFSET)
                )
                for _ in range(2)
            ]
            workers = [Worker(consumer) for consumer in consumers]
            for consumer, worker in zip(consumers, workers, strict=True):
                consumer.subscribe(TOPIC)
                worker.start()
            sender.start()
            try:
                for _ in range(KILLS):
                    wait_for_more(sender, workers, random.randrange(*BETWEEN_KILLS))
                    kill(broker)
                    broker.start()
                wait_for_more(sender, workers, BETWEEN_KILLS[0])
            finally:
                sender.over.set()
                sender.join()
            wait_until(
                lambda: sender.acknowledged <= set().union(*(each.settled for each in workers)),
                "all settled",
                BACK_S,
            )
            for consumer in consumers:
                consumer.stop()
            for worker in workers:
                worker.join()
        got = [body for worker in workers for body in worker.bodies]
        print(f"{len(got)} received, {len(got) - len(set(got))} of them again")
        assert sender.failed == []


def consumed(members: Sequence[Member]) -> set[bytes]:
    return {body for member in members for body in list(member.bodies)}


def wait_for_more(sender: Sender, members: Sequence[Member] | Sequence[Worker], count: int) -> None:
    """Until so many more are acknowledged and each member has had some more."""
    sent = len(sender.acknowledged) + count
    had = [(member, len(member.bodies)) for member in members]
    wait_until(lambda: len(sender.acknowledged) >= sent, "sends", BACK_S)
    wait_until(
        lambda: all(len(each.bodies) > before for each, before in had),
        "messages at both members",
        BACK_S,
    )


def assert_offsets_are_at_the_end(namesrv: str) -> None:
    """The stop of the last member has stored all that the group has consumed."""
    with Admin(namesrv) as admin, PullConsumer(GROUP, namesrv) as reader:
        queues = admin.queues(TOPIC)
        assert [reader.committed(queue) for queue in queues] == [
            admin.offsets(queue)[1] for queue in queues
        ]
