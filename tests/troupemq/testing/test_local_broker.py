"""The broker that tests of other projects run: assertions, time, faults, ends."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from threading import enumerate as live_threads
from types import SimpleNamespace
from typing import Any

import pytest

from troupemq import (
    ArgumentIllegal,
    BrokerError,
    ClientError,
    ConsumeFrom,
    Message,
    MessageView,
    Producer,
    ProducerSettings,
    PushConsumer,
    RequestTimeout,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from troupemq.testing import LocalBroker, VirtualBroker, local_broker, running_broker

TRIES_ONCE = ProducerSettings(retries=0)
SHORT_MS = 200.0
"""Timeout of sends without an answer; those that get one are quicker on a busy machine, too."""


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 4}) as made:
        yield made


@pytest.fixture
def producer(broker: LocalBroker) -> Iterator[Producer]:
    with Producer("shop", broker.namesrv, settings=TRIES_ONCE) as made:
        made.send(Message("Other", b"connects"))
        yield made


def bodies(views: Sequence[MessageView]) -> list[bytes]:
    return sorted(view.body for view in views)


def test_expected_messages_are_found(broker: LocalBroker, producer: Producer) -> None:
    producer.send(Message("Orders", b"new", tags="a", keys="17"))
    producer.send(Message("Orders", b"paid", tags="b"))
    assert bodies(broker.expect("Orders", body="new", tags="a", keys="17")) == [b"new"]
    assert bodies(broker.expect("Orders", times=2)) == [b"new", b"paid"]
    assert broker.messages("Missing") == []


def test_failed_expectation_lists_the_messages_of_the_topic(
    broker: LocalBroker, producer: Producer
) -> None:
    producer.send(Message("Orders", b"new", tags="a"))
    with pytest.raises(AssertionError, match=r"body='old'.*\n.*body=b'new', tags='a'"):
        broker.expect("Orders", body="old", within_s=0.02)


def test_join_waits_until_a_group_has_consumed_everything(
    broker: LocalBroker, producer: Producer
) -> None:
    for number in range(20):
        producer.send(Message("Orders", b"%d" % number))
    consumer = broker.consume("Orders", group="billing")
    broker.join("billing")
    assert len(consumer.received) == 20
    assert broker.lag("billing") == 0


def test_join_raises_the_error_of_a_handler(broker: LocalBroker, producer: Producer) -> None:
    def broken(_: Sequence[MessageView]) -> None:
        raise LookupError("no such order")

    broker.consume("Orders", broken, group="billing")
    producer.send(Message("Orders", b"new"))
    with pytest.raises(LookupError, match="no such order"):
        broker.join("billing")


def test_join_raises_the_error_of_a_consumer_of_the_application(
    broker: LocalBroker, producer: Producer
) -> None:
    def broken(_: Sequence[MessageView]) -> None:
        raise LookupError("no such order")

    with PushConsumer("billing", broken, broker.namesrv) as consumer:
        consumer.subscribe("Orders")
        producer.send(Message("Orders", b"new"))
        with pytest.raises(LookupError, match="no such order"):
            broker.join("billing")


def test_messages_are_expected_in_an_order(broker: LocalBroker, producer: Producer) -> None:
    for body in (b"new", b"other", b"paid"):
        producer.send(Message("Orders", body))
    assert [view.body for view in broker.expect_in_order("Orders", ["new", "paid"])] == [
        b"new",
        b"paid",
    ]
    with pytest.raises(AssertionError, match=r"in this order in Orders; there is: \n.*b'new'"):
        broker.expect_in_order("Orders", ["paid", "new"], within_s=0.02)


def test_names_of_topics_and_groups_are_new(broker: LocalBroker) -> None:
    topics = {broker.new_topic(queues=2), broker.new_topic(), "Orders"}
    assert len(topics) == 3
    assert broker.new_group() != broker.new_group()


def test_timer_becomes_due_when_the_clock_is_moved(broker: LocalBroker, producer: Producer) -> None:
    producer.send(Message("Orders", b"timer", delay=timedelta(hours=3)))
    broker.advance("2h")
    assert broker.messages("Orders") == []
    broker.advance("1h")
    broker.expect("Orders", body=b"timer")


def test_lease_of_a_received_message_ends_when_the_clock_is_moved(
    broker: LocalBroker, producer: Producer
) -> None:
    producer.send(Message("Orders", b"new"))
    first = ConsumeFrom.FIRST_OFFSET
    with SimpleConsumer(
        "billing", broker.namesrv, begin=first, hold="time", auto_extend=False
    ) as consumer:
        consumer.subscribe("Orders")
        (delivery,) = consumer.receive()
        broker.advance("2h")
        (again,) = consumer.receive()
        assert again.message.message_id == delivery.message.message_id
        again.ack()
        broker.join("billing")


def test_delayed_message_arrives_when_the_clock_is_moved(
    broker: LocalBroker, producer: Producer
) -> None:
    producer.send(Message("Orders", b"reminder", delay_level=18))
    assert broker.messages("Orders") == []
    broker.advance("2h")
    broker.expect("Orders", body=b"reminder")


def test_moved_clock_leaves_members_and_connections_as_they_are(
    broker: LocalBroker, producer: Producer
) -> None:
    consumer = broker.consume("Orders", group="billing")
    broker.advance("1d")
    producer.send(Message("Orders", b"next day"))
    broker.join("billing")
    assert bodies(consumer.received) == [b"next day"]
    assert len(broker.admin.members_of("billing").connection_set) == 1


def test_failed_message_becomes_a_dead_letter_after_its_retries(
    broker: LocalBroker, producer: Producer
) -> None:
    tries: list[int] = []

    def broken(messages: Sequence[MessageView]) -> None:
        tries.append(messages[0].reconsume_times)
        raise LookupError("no such order")

    broker.consume("Orders", broken, group="billing")
    producer.send(Message("Orders", b"poison"))
    (dead,) = broker.expect_dead_letters("billing")
    assert tries == [*range(17)]
    assert "no such order" in (dead.failure or "")


def test_unknown_transaction_is_checked_when_the_clock_is_moved(broker: LocalBroker) -> None:
    with TransactionProducer("shop", lambda _: TransactionState.COMMIT, broker.namesrv) as producer:
        producer.send_in_transaction(Message("Orders", b"new"), lambda *_: TransactionState.UNKNOWN)
        assert broker.messages("Orders") == []
        broker.advance("2m")
        broker.expect("Orders", body=b"new")


def test_refused_requests_fail_with_their_code_as_often_as_asked(
    broker: LocalBroker, producer: Producer
) -> None:
    fault = broker.fail("send", "SYSTEM_BUSY", times=1)
    with pytest.raises(BrokerError, match="refused by a test"):
        producer.send(Message("Orders", b"refused"))
    producer.send(Message("Orders", b"taken"))
    assert fault.hits == 1
    assert bodies(broker.messages("Orders")) == [b"taken"]


def test_producer_tries_again_after_a_refusal(broker: LocalBroker) -> None:
    fault = broker.fail("send", times=2)
    with Producer("shop", broker.namesrv) as producer:
        producer.send(Message("Orders", b"new"))
    assert fault.hits == 2
    broker.expect("Orders", body=b"new")


def test_lost_answer_leaves_the_message_stored(broker: LocalBroker, producer: Producer) -> None:
    broker.lose("send", times=1, answer=True)
    with pytest.raises(RequestTimeout):
        producer.send(Message("Orders", b"new"), timeout_ms=SHORT_MS)
    broker.expect("Orders", body=b"new")


def test_lost_request_stores_nothing(broker: LocalBroker, producer: Producer) -> None:
    broker.lose("send", times=1)
    with pytest.raises(RequestTimeout):
        producer.send(Message("Orders", b"new"), timeout_ms=SHORT_MS)
    producer.send(Message("Orders", b"next"))
    assert bodies(broker.messages("Orders")) == [b"next"]


def test_slow_requests_arrive_later_until_the_fault_is_ended(
    broker: LocalBroker, producer: Producer
) -> None:
    fault = broker.slow(10_000, "send")
    with pytest.raises(RequestTimeout):
        producer.send(Message("Orders", b"slow"), timeout_ms=SHORT_MS)
    assert broker.messages("Orders") == []
    broker.advance(10)
    broker.expect("Orders", body=b"slow")
    fault.is_ended = True
    producer.send(Message("Orders", b"quick"))


def test_unknown_request_name_is_refused_with_a_sentence(broker: LocalBroker) -> None:
    with pytest.raises(ValueError, match="no request 'sned': use all, send, pull"):
        broker.fail("sned")


def test_clients_connect_again_after_a_cut(broker: LocalBroker) -> None:
    consumer = broker.consume("Orders", group="billing")
    with Producer("shop", broker.namesrv) as producer:
        producer.send(Message("Orders", b"before"))
        broker.join("billing")
        assert broker.cut() >= 2
        producer.send(Message("Orders", b"after"))
        broker.join("billing")
    assert bodies(consumer.received) == [b"after", b"before"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_acknowledged_messages_outlive_an_end_of_the_broker(
    broker: LocalBroker, producer: Producer, end: str
) -> None:
    for number in range(10):
        producer.send(Message("Orders", b"%d" % number))
    getattr(broker, end)()
    producer.send(Message("Orders", b"after"))
    assert len(broker.messages("Orders")) == 11


def test_full_disk_refuses_sends_and_serves_reads(broker: LocalBroker, producer: Producer) -> None:
    producer.send(Message("Orders", b"before"))
    broker.fill_disk()
    with pytest.raises(BrokerError, match="disk"):
        producer.send(Message("Orders", b"refused"))
    assert bodies(broker.messages("Orders")) == [b"before"]
    broker.free_disk()
    producer.send(Message("Orders", b"after"))


def test_settings_and_topics_are_those_asked_for() -> None:
    settings = {"flushDiskType": "SYNC_FLUSH", "autoCreateTopicEnable": "false"}
    with (
        running_broker({"Orders": 3}, settings) as broker,
        Producer("shop", broker.namesrv, settings=TRIES_ONCE) as producer,
    ):
        assert len(broker.admin.queues("Orders")) == 3
        with pytest.raises(ClientError):
            producer.send(Message("Unknown", b"new"))


def test_stopped_broker_leaves_no_thread_and_no_file() -> None:
    before = {*live_threads()}
    with running_broker() as broker, Producer("shop", broker.namesrv) as producer:
        folder = broker.folder
        producer.send(Message("Orders", b"new"))
        broker.consume("Orders")
    assert not folder.exists()
    assert {each.name for each in {*live_threads()} - before} == set()


@pytest.mark.parametrize(("free_mib", "is_in_memory"), [(64, False), (1024, True)])
def test_store_is_in_memory_where_there_is_room(
    free_mib: int, is_in_memory: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container has 64 MiB of /dev/shm, which the brokers of a few workers fill."""
    memory = tmp_path / "shm"
    memory.mkdir()
    free = SimpleNamespace(free=free_mib << 20)
    monkeypatch.setattr("troupemq.testing.local_broker.MEMORY", str(memory))
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    broker = LocalBroker()
    try:
        assert (broker.folder.parent == memory) is is_in_memory
    finally:
        broker.stop()
    assert not broker.folder.exists()


def untyped(value: object) -> Any:
    return value


@pytest.mark.parametrize(
    ("topics", "settings", "told"),
    [
        (["Orders"], None, 'topics are a dict of queue counts, as {"Orders": 4}, and not'),
        ("Orders", None, "topics are a dict"),
        (None, {"maxMessageSize": 1024}, "the setting maxMessageSize is a string, as in"),
        (None, "brokerRole=SLAVE", "settings are a dict"),
    ],
)
def test_topics_in_a_list_left_a_folder_and_a_cryptic_error(
    topics: object, settings: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was `dictionary update sequence element #0 has length 6; 2 is required`."""
    monkeypatch.setattr(local_broker, "MEMORY", str(tmp_path))
    with (
        pytest.raises(ArgumentIllegal, match=told),
        running_broker(untyped(topics), untyped(settings)),
    ):
        raise AssertionError("started")
    with pytest.raises(ArgumentIllegal, match=told):
        VirtualBroker(1, untyped(topics), untyped(settings))
    assert not [*tmp_path.iterdir()]


def test_wrong_arguments_of_the_broker_of_a_test_are_named(broker: LocalBroker) -> None:
    with pytest.raises(ArgumentIllegal, match="a duration is seconds, a timedelta or a text"):
        broker.advance(untyped(None))
    with pytest.raises(ArgumentIllegal, match="'SYSTEM_BUSSY': did you mean SYSTEM_BUSY"):
        broker.fail("send", "SYSTEM_BUSSY")
    with pytest.raises(ArgumentIllegal, match="handler is a function"):
        broker.consume("Orders", untyped(5))


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -1, "-1s", True, 1e10])
def test_clock_is_not_moved_backwards_or_to_no_number(broker: LocalBroker, duration: Any) -> None:
    """After an advance by nan every answer of the broker that needs its clock failed."""
    with pytest.raises(ValueError, match=r"a duration is|-1s is not a number"):
        broker.advance(duration)


def test_expectation_that_always_holds_is_refused(broker: LocalBroker) -> None:
    """`expect(topic, times=0)` passed whatever the topic had, and one within nan never ended."""
    for check in (broker.expect, broker.expect_dead_letters):
        with pytest.raises(ArgumentIllegal, match="times is 0, and not within 1 to"):
            check("Orders", times=0)
    with pytest.raises(ArgumentIllegal, match="within_s is nan"):
        broker.expect("Orders", within_s=float("nan"))
    with pytest.raises(ArgumentIllegal, match="times is '2', and not an integer"):
        broker.fail("send", times=untyped("2"))
    with pytest.raises(ArgumentIllegal, match="ms is -1"):
        broker.slow(-1, "pull")
