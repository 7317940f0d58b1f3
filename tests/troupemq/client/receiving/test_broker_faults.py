"""Tests of a SimpleConsumer whose broker restarts, dies, or loses answers; and of its times."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.troupemq.client.receiving.test_workers import bodies
from troupemq import (
    ConsumeFrom,
    Delivery,
    DeliveryExpired,
    Message,
    Producer,
    SimpleConsumer,
)
from troupemq.testing import LocalBroker, running_broker

pytestmark = pytest.mark.heavy


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Tasks": 2}) as made:
        yield made


def consumer(broker: LocalBroker, **options: object) -> SimpleConsumer:
    made = SimpleConsumer(
        "workers",
        broker.namesrv,
        begin=ConsumeFrom.FIRST_OFFSET,
        **options,  # type: ignore[arg-type]
    )
    made.subscribe("Tasks")
    return made


def send(broker: LocalBroker, *tasks: bytes) -> None:
    with Producer("senders", broker.namesrv) as producer:
        for task in tasks:
            producer.send(Message("Tasks", task))


def receive(member: SimpleConsumer, number: int, wait_ms: float = 10_000) -> list[Delivery]:
    found = member.receive(wait_ms=wait_ms)
    while len(found) < number and (more := member.receive(wait_ms=wait_ms)):
        found += more
    return found


def come_again(member: SimpleConsumer) -> list[bytes]:
    return bodies(member.receive(wait_ms=100))


@pytest.mark.parametrize("ends", [LocalBroker.restart, LocalBroker.kill])
def test_messages_settled_after_a_restart_stay_settled_and_the_others_come_again(
    broker: LocalBroker, ends: Callable[[LocalBroker], None]
) -> None:
    send(broker, b"a", b"b", b"c")
    with consumer(broker) as member:
        first, second, third = receive(member, 3)
        first.ack()
        ends(broker)
        rest = {third.message.body}
        try:
            second.ack()
        except DeliveryExpired:  # a broker that was killed may not know the group any more
            assert ends is LocalBroker.kill
            rest |= {first.message.body, second.message.body}
        again = receive(member, len(rest), 1000)
        assert {third.message.body} <= set(bodies(again)) <= rest


def test_messages_of_a_cut_connection_come_again_whatever_its_handles_settle(
    broker: LocalBroker,
) -> None:
    send(broker, b"a", b"b")
    with consumer(broker) as member:
        former = receive(member, 2)
        assert broker.cut() >= 1
        again = receive(member, 2)
        assert sorted(bodies(again)) == [b"a", b"b"]
        for each in former:
            with suppress(DeliveryExpired):  # or the broker no longer knows whose it was
                each.ack()
    with consumer(broker) as other:  # the stop has given back what the former handles left alone
        assert sorted(bodies(receive(other, 2))) == [b"a", b"b"]


def test_an_acknowledgement_whose_answer_is_lost_is_made_again(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_TRY_MS", 100)
    send(broker, b"a")
    with consumer(broker) as member:
        (delivery,) = receive(member, 1)
        broker.lose("ACK_MESSAGE", times=1, answer=True)
        delivery.ack()
        assert come_again(member) == []


def test_a_busy_broker_is_asked_again(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_AGAIN_MS", 10)
    send(broker, b"a")
    with consumer(broker) as member:
        broker.fail("POP_MESSAGE", "SYSTEM_BUSY", times=2)
        (delivery,) = receive(member, 1)
        broker.fail("ACK_MESSAGE", "SYSTEM_BUSY", times=2)
        delivery.ack()
        assert come_again(member) == []


def test_a_retry_is_due_after_its_level_or_its_seconds_and_not_before(broker: LocalBroker) -> None:
    send(broker, b"level", b"seconds")
    with consumer(broker) as member:
        for each in receive(member, 2):
            if each.message.body == b"level":
                each.retry(delay_level=5)  # a minute
            else:
                each.retry(seconds=90)
        broker.advance("50s")
        assert come_again(member) == []
        broker.advance("10s")
        (first,) = receive(member, 1)
        assert first.message.body == b"level"
        first.ack()
        assert come_again(member) == []
        broker.advance("30s")
        (second,) = receive(member, 1)
        assert (second.message.body, second.message.reconsume_times) == (b"seconds", 1)
        second.ack()


def test_a_hold_for_a_time_ends_with_it_and_an_extension_with_its_own(broker: LocalBroker) -> None:
    send(broker, b"a")
    with consumer(broker, hold="time", invisible_s=10) as member:
        (held,) = receive(member, 1)
        broker.advance("9s")
        held.extend(60)
        broker.advance("50s")
        assert come_again(member) == []
        broker.advance("11s")
        (again,) = receive(member, 1)
        assert again.message.reconsume_times == 1
        with suppress(DeliveryExpired):
            held.ack()
        broker.advance("11s")
        (third,) = receive(member, 1)
        assert third.message.reconsume_times == 2


def test_a_hold_with_the_connection_has_no_end(broker: LocalBroker) -> None:
    send(broker, b"a")
    with consumer(broker) as member:
        (held,) = receive(member, 1)
        for _ in range(30):
            broker.advance("1m")
            member._client.heartbeat()  # clients keep the machine's clock
        assert come_again(member) == []
        held.ack()
