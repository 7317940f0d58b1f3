"""Our Python consumers against both brokers, and in one group with the official Java client."""

import asyncio
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from protocol.codes import ResponseCode
from remoting.local_address import local_address
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import MakeBroker, MakeNameServer, wait_for_route
from tests.compat.patience import wait_until
from tests.compat.python_members import SETTINGS, WAIT_S, ConsumerProcess, Got, member
from tests.compat.toolchain import Java
from troupemq import aio
from troupemq.client.consuming.assignment import (
    Assignment,
    averagely,
    averagely_by_circle,
    consistent_hash,
)
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import BrokerError
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings

LEVELS = "1s 1s 1s 2s 2s 2s"
QUEUES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python-consumers")


@pytest.fixture(scope="module", params=[pytest.param("official", marks=pytest.mark.whole), "ours"])
def java(
    request: pytest.FixtureRequest,
    java_tools: Java,
    folder: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Agent]:
    """A Java client of a broker of either kind, with short delays."""
    kind = request.param
    with make_name_server(kind, folder / f"{kind}-name-server") as name_server:
        broker = make_broker(kind, folder / f"{kind}-broker", name_server)
        broker.settings = {**broker.settings, "messageDelayLevel": LEVELS}
        with broker, closing(java_agent(f"java-{kind}", java_tools, folder, broker)) as agent:
            yield agent


@pytest.fixture(scope="module")
def producer(java: Agent) -> Iterator[Producer]:
    with Producer("senders", java.broker.name_server.address) as producer:
        yield producer


_numbers = count(1)


@pytest.fixture
def topic(java: Agent) -> str:
    name = f"PC-{next(_numbers)}"
    java.create_topic(name, QUEUES)
    wait_for_route(java.broker, name)
    return name


def name_server(java: Agent) -> str:
    return java.broker.name_server.address


class Load:
    """Sends numbered messages to every queue of a topic in turn, until it is told to end."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent: list[str] = []
        self._producer = producer
        self._queues = sorted(producer.queues(topic))
        self._topic = topic
        self._over = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count():
            for queue in self._queues:
                body = f"{queue.queue_id}-{number:06}"
                with suppress(BrokerError):  # a crowded broker: what it refuses is not stored
                    self._producer.send(Message(self._topic, body.encode()), queue=queue)
                    self.sent.append(body)
            if self._over.wait(0.01):
                return


Consumer = PushConsumer | PullConsumer | aio.PushConsumer


def own(consumer: Consumer, topic: str) -> set[int]:
    return {queue.queue_id for queue in consumer.queues() if queue.topic == topic}


def wait_for_shares(python: Consumer, java: Agent, name: str, topic: str) -> None:
    def shared() -> bool:
        ours, theirs = own(python, topic), java.assigned(name)
        return bool(ours and theirs) and ours | theirs == set(range(QUEUES)) and not ours & theirs

    wait_until(shared, "two members that share the queues", WAIT_S)


@pytest.mark.parametrize(
    "rule, orderly",
    [
        pytest.param("averagely", False, marks=pytest.mark.whole),
        ("averagely", True),
        pytest.param("averagely_by_circle", True, marks=pytest.mark.whole),
        ("consistent_hash", False),
    ],
)
def test_java_and_python_share_a_group(
    rule: str, orderly: bool, java: Agent, producer: Producer, topic: str
) -> None:
    rules: dict[str, Assignment] = {
        "averagely": averagely,
        "averagely_by_circle": averagely_by_circle,
        "consistent_hash": consistent_hash(),
    }
    group, name, got = f"group-of-{topic}", f"java-of-{topic}", Got()
    consumer = member(group, got, name_server(java), orderly=orderly, assign=rules[rule])
    consumer.subscribe(topic)
    with consumer:
        with Load(producer, topic) as load:
            got.wait(50)
            java.join(name, group, topic, orderly=orderly, strategy=rule)
            wait_for_shares(consumer, java, name, topic)
            wait_until(lambda: len(java.received(name)) > 50, "messages at the Java member", WAIT_S)
            members = sorted([consumer.client_id, java_id(java, name)])
            queues = [MessageQueue(topic, "broker-a", number) for number in range(QUEUES)]
            expected = rules[rule](consumer.client_id, members, queues)
            assert own(consumer, topic) == {queue.queue_id for queue in expected}
            java.leave(name)
            wait_until(lambda: len(own(consumer, topic)) == QUEUES, "all queues", WAIT_S)
        wait_until(
            lambda: set(load.sent) <= {*got.bodies(), *bodies_of(java, name)},
            "all messages",
            WAIT_S,
        )
    if orderly:
        assert_in_order(got.bodies())
        assert_in_order(bodies_of(java, name))


@pytest.mark.parametrize("orderly", [False, True])
def test_java_and_an_event_loop_share_a_group(
    orderly: bool, java: Agent, producer: Producer, topic: str
) -> None:
    """Queues move between both; what a coroutine fails to handle is delivered again to either."""
    group, name, got = f"group-of-{topic}", f"java-of-{topic}", Got()
    failed: set[str] = set()

    async def handle(views: Sequence[MessageView]) -> None:
        (view,) = views
        body = view.body.decode()
        await asyncio.sleep(0)
        if body.endswith("7") and body not in failed:
            failed.add(body)
            raise LookupError(body)
        got(views)

    async def until(is_so: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(wait_until, is_so, what, WAIT_S)

    async def main() -> None:
        settings = replace(SETTINGS, suspend_queue_ms=10)
        consumer = aio.PushConsumer(
            group,
            handle,
            name_server(java),
            orderly=orderly,
            begin=ConsumeFrom.FIRST_OFFSET,
            settings=settings,
        )
        await consumer.subscribe(topic)
        async with consumer:
            with Load(producer, topic) as load:
                await until(lambda: len(got.views) > 50, "messages at the event loop")
                await asyncio.to_thread(java.join, name, group, topic, orderly=orderly)
                await asyncio.to_thread(wait_for_shares, consumer, java, name, topic)
                await until(lambda: len(java.received(name)) > 50, "messages at the Java member")
                await asyncio.to_thread(java.leave, name)
                await until(lambda: len(own(consumer, topic)) == QUEUES, "all queues")
            await until(
                lambda: set(load.sent) <= {*got.bodies(), *bodies_of(java, name)}, "all messages"
            )

    asyncio.run(main())
    assert failed
    if orderly:
        assert_in_order(got.bodies())
        assert_in_order(bodies_of(java, name))


def java_id(java: Agent, name: str) -> str:
    return f"{local_address()}@{name}"


def bodies_of(java: Agent, name: str) -> list[str]:

    return [b64decode(event["body"]).decode() for event in java.received(name)]


def assert_in_order(bodies: list[str]) -> None:
    by_queue: defaultdict[str, list[str]] = defaultdict(list)
    for body in bodies:
        by_queue[body.partition("-")[0]].append(body)
    for seen in by_queue.values():
        assert seen == sorted(set(seen))


def test_orderly_members_hand_queues_over_in_order(
    java: Agent, producer: Producer, topic: str
) -> None:
    """Three of ours come and go under load: over all of them each queue is in order, each message
    once, for a queue is given away when it is committed, and taken when it was."""
    got = Got()
    settings = ConsumerSettings(rebalance_interval_ms=500)
    with Load(producer, topic) as load, ExitStack() as stack:
        for _ in range(3):
            consumer = member(f"g-{topic}", got, name_server(java), orderly=True, settings=settings)
            consumer.subscribe(topic)
            stack.enter_context(consumer)
            got.wait(len(got.views) + 200)
        stack.pop_all().close()
        last = member(f"g-{topic}", got, name_server(java), orderly=True)
        last.subscribe(topic)
        stack.enter_context(last)
        got.wait(len(got.views) + 200)
        load.__exit__()
        wait_until(lambda: set(load.sent) <= set(got.bodies()), "all messages", WAIT_S)
    assert_in_order(got.bodies())


def test_failed_messages_are_retried_and_become_dead_letters(
    java: Agent, producer: Producer, topic: str
) -> None:
    group = f"group-of-{topic}"
    got = Got(lambda view: view.tags == "bad")
    settings = ConsumerSettings(max_reconsume_times=2, rebalance_interval_ms=1000)
    consumer = member(group, got, name_server(java), settings=settings)
    consumer.subscribe(topic)
    with consumer:
        sent = producer.send(Message(topic, b"bad", tags="bad", keys="k"))
        producer.send(Message(topic, b"good", tags="good"))
        got.wait(4)
        wait_for_route(java.broker, f"%DLQ%{group}")
    assert sorted(got.bodies()) == ["bad", "bad", "bad", "good"]
    tries = [view for view in got.views if view.tags == "bad"]
    assert [view.reconsume_times for view in tries] == [0, 1, 2]
    assert {(view.topic, view.message_id) for view in tries} == {(topic, sent.message_id)}
    assert [view.queue.topic for view in tries[1:]] == [f"%RETRY%{group}"] * 2
    (dead,) = dead_letters(java, group)
    assert (dead.body, dead.keys, dead.reconsume_times) == (b"bad", ("k",), 3)


def dead_letters(java: Agent, group: str) -> list[MessageView]:
    got = Got()
    undertaker = member(f"undertaker-of-{group}", got, name_server(java))
    undertaker.subscribe(f"%DLQ%{group}")
    with undertaker:
        return got.wait(1)


def test_an_orderly_queue_waits_for_its_message_and_then_discards_it(
    java: Agent, producer: Producer, topic: str
) -> None:
    group = f"group-of-{topic}"
    got = Got(lambda view: view.body == b"2")
    settings = ConsumerSettings(max_reconsume_times=2, suspend_queue_ms=10)
    consumer = member(group, got, name_server(java), orderly=True, settings=settings)
    consumer.subscribe(topic)
    for body in (b"1", b"2", b"3"):
        producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
    with consumer:
        got.wait(5)
        wait_for_route(java.broker, f"%DLQ%{group}")
    assert got.bodies() == ["1", "2", "2", "2", "3"]
    (dead,) = dead_letters(java, group)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"2", topic)


def test_broadcast_offsets_go_from_java_to_python_and_back(
    java: Agent, producer: Producer, topic: str, folder: Path
) -> None:
    group, name = f"group-of-{topic}", f"reader-of-{topic}"
    first = [producer.send(Message(topic, b"%d" % number)) for number in range(40)]
    java.join(name, group, topic, broadcast=True)
    wait_until(lambda: len(java.received(name)) == len(first), "all at Java", WAIT_S)
    java.leave(name)
    files = folder / ".rocketmq_offsets"
    assert (files / java_id(java, name) / group / "offsets.json").exists()
    for number in range(40, 60):
        producer.send(Message(topic, b"%d" % number))
    got = Got()
    consumer = member(
        group,
        got,
        name_server(java),
        broadcast=True,
        instance_name=name,
        offsets_folder=files,
    )
    consumer.subscribe(topic)
    with consumer:
        got.wait(20)
        assert consumer.client_id == java_id(java, name)
        assert len(own(consumer, topic)) == QUEUES
    assert sorted(map(int, got.bodies())) == list(range(40, 60))
    for number in range(60, 70):
        producer.send(Message(topic, b"%d" % number))
    java.join(name, group, topic, broadcast=True)
    wait_until(lambda: len(java.received(name)) >= len(first) + 10, "the rest", WAIT_S)
    java.leave(name)
    assert sorted(map(int, bodies_of(java, name)[len(first) :])) == list(range(60, 70))


def test_sql92_filters_and_a_wrong_one_is_refused_at_the_start(
    java: Agent, producer: Producer, topic: str
) -> None:
    for number in range(20):
        properties = {"a": str(number), "colour": "red" if number % 2 else "blue"}
        producer.send(Message(topic, b"%d" % number, properties=properties))
    got = Got()
    consumer = member(f"group-of-{topic}", got, name_server(java))
    consumer.subscribe(topic, sql="a BETWEEN 5 AND 12 AND colour = 'red'")
    with consumer:
        got.wait(4)
    assert sorted(map(int, got.bodies())) == [5, 7, 9, 11]
    wrong = member(f"wrong-of-{topic}", got, name_server(java))
    wrong.subscribe(topic, sql="a >> 1")
    with pytest.raises(BrokerError) as refused:
        wrong.start()
    wrong.stop()
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.whole
def test_no_message_is_lost_when_consumers_are_killed_under_load(
    java: Agent, producer: Producer, topic: str, tmp_path: Path
) -> None:
    """At least once: whatever is killed and whenever, all that was sent is consumed."""
    numbers = count(1)

    def new() -> ConsumerProcess:
        out = tmp_path / f"{next(numbers)}.txt"
        return ConsumerProcess(name_server(java), f"group-of-{topic}", topic, out)

    with ExitStack() as stack:

        def start() -> ConsumerProcess:
            process = new()
            stack.callback(process.kill)
            return process

        running = [start(), start(), start()]
        everyone = list(running)

        def come_on(sent: int, consumed: int) -> bool:
            return len(load.sent) >= sent + 400 and len(everyone[-1].bodies()) > consumed

        with Load(producer, topic) as load:
            for turn in range(6):
                sent, consumed = len(load.sent), len(everyone[-1].bodies())
                wait_until(partial(come_on, sent, consumed), "messages at the newest", WAIT_S)
                running[turn % 3].kill()
                running[turn % 3] = start()
                everyone.append(running[turn % 3])
        wait_until(
            lambda: set(load.sent) <= {body for each in everyone for body in each.bodies()},
            "every message that was sent",
            WAIT_S,
        )


def test_a_pull_consumer_polls_seeks_and_continues_at_its_offset(
    java: Agent, producer: Producer, topic: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 3)
    for number in range(50):
        producer.send(Message(topic, b"%d" % number), queue=queue)

    def poll(consumer: PullConsumer, wanted: int) -> list[int]:
        got: list[int] = []
        while len(got) < wanted:
            views = consumer.poll(10_000)
            assert views, got
            got += [int(view.body) for view in views]
        return got

    def make() -> PullConsumer:
        return PullConsumer(f"group-of-{topic}", name_server(java), begin=ConsumeFrom.FIRST_OFFSET)

    with make() as consumer:
        consumer.assign([queue])
        assert poll(consumer, 50) == list(range(50))
        consumer.seek(queue, 45)
        assert poll(consumer, 5) == list(range(45, 50))
        consumer.seek_to_begin(queue)
        assert poll(consumer, 50) == list(range(50))
        consumer.commit()
        assert consumer.committed(queue) == 50
        assert consumer.offset_for_timestamp(queue, 0) == 0
        consumer.seek_to_end(queue)
        assert not consumer.poll(200)
    producer.send(Message(topic, b"50"), queue=queue)
    with make() as consumer:
        consumer.subscribe(topic)
        assert poll(consumer, 1) == [50]
        wait_until(lambda: len(consumer.assignment()) == QUEUES, "all queues", WAIT_S)
