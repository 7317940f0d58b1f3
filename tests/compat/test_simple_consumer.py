"""Our SimpleConsumer against the official brokers: 5.5, which has POP, and 4.9.7, which has not.

The same cases run against our own broker, which holds messages with the connection.
"""

import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import time_ns

import pytest

from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.servers import (
    SMALL_FILES,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
)
from tests.compat.toolchain import MissingTool, java_5_servers
from troupemq import (
    DEAD_LETTER,
    Admin,
    ConsumeFrom,
    Delivery,
    Message,
    NotSupported,
    Producer,
    SimpleConsumer,
)

QUEUES = 4
WAIT_S = 40.0
"""A broker of 5.5 looks every few seconds for messages whose time is over."""
SETTINGS = SMALL_FILES | {"enablePropertyFilter": "true"}
JVM = ("-Xms256m", "-Xmx512m")
_numbers = count(1)


@pytest.fixture(
    scope="module", params=["ours", pytest.param("official-5.5", marks=pytest.mark.whole)]
)
def namesrv(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of the name server of a broker that has POP."""
    folder = tmp_path_factory.mktemp("simple")
    names_folder, broker_folder = folder / "names", folder / "broker"
    for each in (names_folder, broker_folder):
        each.mkdir()
    names: NameServer
    if request.param == "ours":
        names = OurNameServer(names_folder)
        with names, OurBroker(broker_folder, names, SETTINGS):
            yield names.address
        return
    try:
        java = java_5_servers()
    except MissingTool as tool:
        if os.environ.get("TROUPEMQ_CI"):
            raise
        pytest.skip(f"no official 5.5 broker here: {tool}")
    names = OfficialNameServer(java, names_folder)
    names.jvm_options = JVM
    with names:
        settings = SETTINGS | {"recallMessageEnable": "true"}
        broker = OfficialBroker(java, broker_folder, names, settings)
        broker.jvm_options = JVM
        with broker:
            yield names.address


@pytest.fixture
def topic(namesrv: str) -> str:
    name = f"Simple-{next(_numbers)}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, QUEUES)
        wait_until(lambda: bool(admin.queues(name)), "its route")
    return name


def consumer(namesrv: str, *topics: str, group: str = "", **options: object) -> SimpleConsumer:
    made = SimpleConsumer(
        group or f"group-{topics[0]}",
        namesrv,
        begin=ConsumeFrom.FIRST_OFFSET,
        **options,  # type: ignore[arg-type]
    )
    for each in topics:
        made.subscribe(each)
    return made


def send(namesrv: str, topic: str, *sent: bytes) -> None:
    with Producer("senders", namesrv) as producer:
        for future in [producer.send_async(Message(topic, body)) for body in sent]:
            future.result()


def receive(member: SimpleConsumer, number: int, count_max: int = 32) -> list[Delivery]:
    """Receive up to `count_max` at a time until there are so many."""
    found: list[Delivery] = []

    def all_came() -> bool:
        found.extend(member.receive(count_max, wait_ms=2000))
        return len(found) >= number

    wait_until(all_came, f"{number} messages", WAIT_S)
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return sorted(each.message.body for each in deliveries)


def test_each_message_is_settled_by_itself(namesrv: str, topic: str) -> None:
    sent = [b"%02d" % number for number in range(60)]
    send(namesrv, topic, *sent)
    with consumer(namesrv, topic, invisible_s=5) as member:
        received = receive(member, 60)
        assert bodies(received) == sent
        for each in received[:10]:
            each.ack()
        member.ack(received[10:58])
        retried, extended = received[58:]
        retried.retry(seconds=1)
        extended.extend(2)
        again = receive(member, 1)
        member.ack(again)
        if extended.holds_with_connection:  # ours: until the connection's end
            extended.ack()
        elif len(again) == 1:
            rest = receive(member, 1)
            member.ack(rest)
            again += rest
        assert set(bodies(again)) <= {retried.message.body, extended.message.body}
        assert retried.message.body in bodies(again)
        for each in again:
            assert (each.message.reconsume_times, each.message.topic) == (1, topic)
        assert member.receive(wait_ms=7000) == []


def test_several_topics_and_filters_are_received_together(namesrv: str, topic: str) -> None:
    with Admin(namesrv) as admin:
        other, third = f"{topic}-other", f"{topic}-third"
        for each in (other, third):
            admin.create_topic(each, QUEUES)
    with Producer("senders", namesrv) as producer:
        producer.send(Message(topic, b"all"))
        for tags in ("a", "b"):
            producer.send(Message(other, b"tag %s" % tags.encode(), tags=tags))
        for amount in ("1", "7"):
            body = b"amount %s" % amount.encode()
            producer.send(Message(third, body, properties={"amount": amount}))
    with consumer(namesrv, topic) as member:
        member.subscribe(other, "b || c")
        member.subscribe(third, sql="amount > 5")
        received = receive(member, 3)
        assert bodies(received) == [b"all", b"amount 7", b"tag b"]
        member.ack(received)
        send(namesrv, topic, b"later")
        (later,) = receive(member, 1)
        later.ack()


def test_a_message_is_dead_at_once_or_after_its_last_retry(namesrv: str, topic: str) -> None:
    send(namesrv, topic, b"at once", b"after a retry")
    with consumer(namesrv, topic, max_reconsume_times=1) as member, Admin(namesrv) as admin:
        for each in receive(member, 2):
            each.retry(*([DEAD_LETTER] if each.message.body == b"at once" else [1]))
        (last,) = receive(member, 1)
        assert last.message.body == b"after a retry"
        last.retry()
        assert member.receive(wait_ms=1000) == []
        wait_until(
            lambda: admin.message_count(f"%DLQ%{member.group}") == 2, "both dead letters", WAIT_S
        )


def test_a_hold_for_a_time_is_extended_by_itself(namesrv: str, topic: str) -> None:
    send(namesrv, topic, b"long")
    with consumer(namesrv, topic, hold="time", invisible_s=2, auto_extend=True) as member:
        (long,) = receive(member, 1)
        assert member.receive(wait_ms=8000) == []
        long.ack()
        assert member.receive(wait_ms=4000) == []


def test_order_is_kept_over_a_retry(namesrv: str) -> None:
    topic = f"Ordered-{next(_numbers)}"
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 1)
    send(namesrv, topic, b"1")
    send(namesrv, topic, b"2")
    with consumer(namesrv, topic, orderly=True) as member:
        (first,) = member.receive(1, 5000)
        assert first.message.body == b"1"
        assert member.receive(1, 500) == []  # the second waits for the first
        first.retry(seconds=0)
        (again,) = receive(member, 1, 1)
        assert (again.message.body, again.message.reconsume_times) == (b"1", 1)
        again.ack()
        second = receive(member, 1)
        assert bodies(second) == [b"2"]
        member.ack(second)


def test_members_share_a_topic_of_one_queue(namesrv: str) -> None:
    topic = f"One-{next(_numbers)}"
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 1)
    sent = [b"%02d" % number for number in range(20)]
    send(namesrv, topic, *sent)
    with consumer(namesrv, topic) as first, consumer(namesrv, topic) as second:
        got = [each for _ in range(10) for member in (first, second) for each in member.receive(1)]
        assert Counter(bodies(got)) == Counter(sent)
        for each in got:
            each.ack()


@pytest.mark.whole
@pytest.mark.parametrize("namesrv", ["official-5.5"], indirect=True)
def test_delays_are_those_of_rocketmq_5(namesrv: str, topic: str) -> None:
    """Allow for a second: due times of RocketMQ 5 are rounded down to whole ones."""
    now_ms = time_ns() // 1_000_000
    with Producer("senders", namesrv) as producer, consumer(namesrv, topic) as member:
        recalled = producer.send(Message(topic, b"recalled", delay=4))
        producer.send(Message(topic, b"delay", delay=timedelta(seconds=3)))
        producer.send(Message(topic, b"time", deliver_at=now_ms + 5000))
        assert producer.recall(topic, recalled.recall_handle) == recalled.message_id
        for body, due_ms in ((b"delay", 3000), (b"time", 5000)):
            (delivery,) = receive(member, 1)
            assert delivery.message.body == body
            assert due_ms - 1000 <= delivery.message.store_timestamp_ms - now_ms < due_ms + 5000
            delivery.ack()
        assert member.receive(wait_ms=2000) == []


def test_an_official_4_9_broker_is_refused_in_one_sentence(
    tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    for name in ("names", "broker"):
        (tmp_path / name).mkdir()
    with (
        make_name_server("official", tmp_path / "names") as names,
        make_broker("official", tmp_path / "broker", names),
        Admin(names.address) as admin,
    ):
        admin.create_topic("Topic", 1)
        with (
            consumer(names.address, "Topic") as member,
            pytest.raises(NotSupported, match="needs TroupeMQ or RocketMQ 5"),
        ):
            member.receive()
        assert not any(each.group == member.group for each in admin.group_list())
