"""Tests of a SimpleConsumer whose broker restarts, dies, or loses answers; and of its times."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from click.testing import CliRunner, Result

from tests.troupemq.client.receiving.test_workers import bodies
from troupemq import (
    Admin,
    ConsumeFrom,
    Delivery,
    DeliveryExpired,
    Message,
    Producer,
    SimpleConsumer,
    aio,
)
from troupemq.cli.admin import admin as admin_commands
from troupemq.client.admin.members import MemberState
from troupemq.client.admin.progress import MemberProgress
from troupemq.testing import LocalBroker, running_broker

pytestmark = pytest.mark.heavy

PAST_RECLAIMS_MS = 2_500
"""Time in which messages would come that a broker has given back, or found at a start."""


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
def test_messages_settled_after_a_restart_stay_settled_and_the_others_stay_held(
    broker: LocalBroker, ends: Callable[[LocalBroker], None]
) -> None:
    send(broker, b"a", b"b", b"c")
    with consumer(broker) as member:
        first, second, third = receive(member, 3)
        first.ack()
        ends(broker)
        rest = set[bytes]()
        try:
            second.ack()
        except DeliveryExpired:  # a broker that was killed may not know the group any more
            assert ends is LocalBroker.kill
            rest |= {first.message.body, second.message.body}
        again = receive(member, len(rest), PAST_RECLAIMS_MS)
        assert set(bodies(again)) <= rest
        third.ack()


def test_messages_of_a_cut_connection_stay_with_their_consumer(broker: LocalBroker) -> None:
    send(broker, b"a", b"b")
    with consumer(broker) as member, consumer(broker) as other:
        held = receive(member, 2)
        assert broker.cut() >= 1
        assert other.receive(wait_ms=PAST_RECLAIMS_MS) == []
        assert come_again(member) == []
        member.ack(held)
    assert broker.lag("workers") == 0


def test_messages_whose_connection_cannot_be_reclaimed_go_on_with_their_consumer(
    broker: LocalBroker,
) -> None:
    send(broker, b"a", b"b")
    with consumer(broker) as member:
        held = receive(member, 2)
        broker.fail("CHANGE_MESSAGE_INVISIBLETIME", "NO_MESSAGE")
        assert broker.cut() >= 1
        assert member.receive(wait_ms=PAST_RECLAIMS_MS) == []
        member.ack(held)
    assert broker.lag("workers") == 0


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


def test_members_report_the_messages_that_they_hold(broker: LocalBroker) -> None:
    command = ["consumerStatus", "-g", "workers", "-n", broker.namesrv]

    def ask() -> tuple[Sequence[MemberState], Sequence[MemberProgress], Result]:
        with Admin(broker.namesrv) as admin:
            states, progress = admin.member_states("workers"), admin.member_progress("workers")
            assert (states.failures, progress.failures) == ((), ())
            return states, progress, CliRunner().invoke(admin_commands, command)

    async def asked() -> tuple[Sequence[MemberState], Sequence[MemberProgress], Result]:
        async with aio.SimpleConsumer("workers", broker.namesrv) as member:
            await member.subscribe("Tasks")
            (delivery,) = await member.receive(1)
            assert delivery.message.reconsume_times == 1
            return await asyncio.to_thread(ask)

    send(broker, b"first", b"second", b"third")
    with consumer(broker) as first:
        held = receive(first, 3, wait_ms=1_000)
        held.pop().retry(seconds=0)
        states, progress, done = asyncio.run(asked())
    assert sorted(each.in_flight or 0 for each in states) == [1, 2]
    queues = {name for each in states for name in each.queue_names}
    assert queues <= {"Tasks@broker-a:0", "Tasks@broker-a:1", "%RETRY%workers@broker-a:0"}
    assert sorted(each.verdict for each in progress) == ["in flight: 1", "in flight: 2"]
    (mine,) = (each for each in progress if len(each.in_hand) == 2)
    assert {each.message_id for each in mine.in_hand} == {each.message.message_id for each in held}
    assert done.exit_code == 0 and "IN FLIGHT" in done.output
