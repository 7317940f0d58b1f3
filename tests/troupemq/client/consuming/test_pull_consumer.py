"""A pull consumer: what polls give, and what the group is told of it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from protocol.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from protocol.headers.client import PullMessageHeader
from tests.troupemq.client.consuming.test_consumer import QUICK, fill, known_group
from tests.troupemq.client.consuming.test_consumer_requests import as_table, reset
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import BrokerError, ClientClosed, ClientError, MessageIllegal
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.testing import running_broker

ONE, TWO = MessageQueue(TOPIC, "b", 0), MessageQueue(TOPIC, "b", 1)
SETTINGS = replace(QUICK, commit_interval_ms=3_600_000, pull_batch_size=32)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield FakeBroker(namesrv, server)


def make(broker: FakeBroker, *, auto_commit: bool = True, commits: bool = False) -> PullConsumer:
    settings = QUICK if commits else SETTINGS
    return PullConsumer("g", broker.namesrv.address, settings=settings, auto_commit=auto_commit)


def poll(consumer: PullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    deadline_s = monotonic() + WAIT_S
    while len(got) < count and monotonic() < deadline_s:
        got += [view.body for view in consumer.poll(1000)]
    return got


def test_members_share_the_queues_and_each_pull_has_its_subscription(broker: FakeBroker) -> None:
    bodies = fill(broker, 10)
    with make(broker) as consumer:
        consumer.subscribe(TOPIC, "*")
        assert sorted(poll(consumer, 10)) == bodies
        pull = PullMessageHeader.decode(broker.server.next(RequestCode.PULL_MESSAGE).fields)
        (data,) = broker.beats[consumer.client_id].consumer_data_set
        assert consumer.assignment() == (ONE, TWO)
    assert pull.sys_flag & PULL_SUBSCRIPTION and pull.subscription == "*"
    assert data.consume_type == "CONSUME_ACTIVELY"
    assert [each.topic for each in data.subscription_data_set] == [TOPIC]


def test_a_poll_returns_at_most_the_requested_number(broker: FakeBroker) -> None:
    fill(broker, 10)
    with make(broker) as consumer:
        consumer.assign([ONE])
        assert [len(consumer.poll(5000, 2)) for _ in range(3)] == [2, 2, 1]
        assert not consumer.poll(10)


def test_messages_of_a_poll_count_as_consumed_at_the_next_one(broker: FakeBroker) -> None:
    bodies = fill(broker, 10)
    with make(broker, commits=True) as consumer:
        consumer.assign([ONE])
        assert [view.body for view in consumer.poll(5000, 3)] == bodies[0:6:2]
        assert broker.committed["g", 0] == 0
        consumer.poll(5000, 1)
        broker.wait_committed("g", 0, 3)


def test_a_reset_of_the_group_moves_a_pull_consumer(broker: FakeBroker) -> None:
    """Java's lite pull consumer goes on and commits what undoes it (apache/rocketmq #5318)."""
    bodies = fill(broker, 10)
    with make(broker) as consumer:
        consumer.subscribe(TOPIC)
        assert sorted(poll(consumer, 10)) == bodies
        reset(broker, as_table(3))
        assert poll(consumer, 2) == bodies[6::2]
        assert broker.committed["g", 0] == 3
    assert broker.committed["g", 0] == 5


@pytest.mark.parametrize("fails, committed", [(False, 5), (True, 0)])
def test_an_exception_leaves_the_last_poll_unconsumed(
    broker: FakeBroker, fails: bool, committed: int
) -> None:
    fill(broker, 10)

    def use() -> None:
        with make(broker) as consumer:
            consumer.assign([ONE])
            assert len(poll(consumer, 5)) == 5
            if fails:
                raise ValueError("not today")

    if fails:
        with pytest.raises(ValueError, match="not today"):
            use()
    else:
        use()
    assert broker.committed["g", 0] == committed


def test_without_auto_commit_only_commit_stores_offsets(broker: FakeBroker) -> None:
    fill(broker, 10)
    with make(broker, auto_commit=False, commits=True) as consumer:
        consumer.assign([ONE, TWO])
        poll(consumer, 10)
        consumer.poll(100)
        assert (broker.committed["g", 0], consumer.committed(ONE)) == (0, 0)
        consumer.commit({ONE: 2})
        assert (consumer.committed(ONE), consumer.committed(TWO)) == (2, 0)
        consumer.commit()
        assert (consumer.committed(ONE), consumer.committed(TWO)) == (5, 5)
        broker.add(0, b"last")
        poll(consumer, 1)
    assert broker.committed["g", 0] == 5


def test_queues_given_from_outside_can_be_queried_and_committed(broker: FakeBroker) -> None:
    fill(broker, 10)
    with make(broker) as consumer:
        assert consumer.committed(ONE) == 0
    with make(broker) as consumer:
        consumer.commit({ONE: 3})
    assert broker.committed["g", 0] == 3


def test_a_seek_drops_fetched_messages(broker: FakeBroker) -> None:
    bodies = fill(broker, 20)[0::2]
    with make(broker) as consumer:
        consumer.assign([ONE])
        assert [view.body for view in consumer.poll(5000, 2)] == bodies[:2]
        consumer.seek(ONE, 7)
        assert poll(consumer, 3) == bodies[7:]
        consumer.seek_to_begin(ONE)
        assert poll(consumer, 10) == bodies
        consumer.seek_to_end(ONE)
        assert not consumer.poll(50)
        with pytest.raises(MessageIllegal, match="0 to 10"):
            consumer.seek(ONE, 11)
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(TWO, 0)


def test_a_queue_goes_on_after_a_seek_that_the_broker_refused(broker: FakeBroker) -> None:
    """The queue stayed dropped: polls returned nothing more of an assigned one."""
    bodies = fill(broker, 20)[0::2]
    update = broker.server.handlers[RequestCode.UPDATE_CONSUMER_OFFSET]
    broker.server.on(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        lambda command: command.answer(ResponseCode.SYSTEM_ERROR, remark="disk full"),
    )
    with make(broker) as consumer:
        consumer.assign([ONE])
        assert [view.body for view in consumer.poll(5000, 2)] == bodies[:2]
        with pytest.raises(BrokerError, match="disk full"):
            consumer.seek(ONE, 7)
        assert consumer._rebalancing.own[ONE].acknowledged == 0
        assert poll(consumer, 8) == bodies[2:]
        broker.server.on(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        consumer.seek(ONE, 7)
        assert poll(consumer, 3) == bodies[7:]


def test_a_paused_queue_returns_nothing_until_it_is_resumed(broker: FakeBroker) -> None:
    known_group(broker)
    with make(broker) as consumer:
        consumer.assign([ONE, TWO])
        consumer.pause([ONE])
        broker.add(0, b"1")
        broker.add(1, b"2")
        assert poll(consumer, 1) == [b"2"]
        assert not consumer.poll(50)
        consumer.resume([ONE])
        assert poll(consumer, 1) == [b"1"]


def test_another_assignment_replaces_the_first(broker: FakeBroker) -> None:
    bodies = fill(broker, 10)
    consumer = make(broker)
    consumer.assign([ONE])
    with consumer:
        assert poll(consumer, 5) == bodies[0::2]
        assert not consumer.poll(10)
        consumer.assign([TWO])
        assert poll(consumer, 5) == bodies[1::2]
        assert consumer.assignment() == (TWO,)
        assert consumer.fetch_queues(TOPIC) == (ONE, TWO)
    assert (broker.committed["g", 0], broker.committed["g", 1]) == (5, 5)


def test_subscription_and_assignment_exclude_each_other(broker: FakeBroker) -> None:
    consumer = make(broker)
    consumer.assign([ONE])
    with pytest.raises(ClientError, match="cannot subscribe"):
        consumer.subscribe(TOPIC)
    consumer.stop()
    consumer = make(broker)
    consumer.subscribe(TOPIC)
    with pytest.raises(ClientError, match="has subscribed"):
        consumer.assign([ONE])
    consumer.stop()
    with pytest.raises(ClientClosed):
        consumer.poll()


def test_a_broadcasting_pull_consumer_has_all_queues_and_local_offsets(
    broker: FakeBroker, tmp_path: Path
) -> None:
    bodies = fill(broker, 10)
    broker.members["g"] += ["0 another", "zzz"]
    committed = dict(broker.committed)
    for expected in (bodies[5:], [b"new"]):
        consumer = PullConsumer(
            "g",
            broker.namesrv.address,
            settings=SETTINGS,
            broadcast=True,
            begin=ConsumeFrom.TIMESTAMP,
            offsets_folder=tmp_path,
            instance_name="one",
        )
        broker.server.on(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda command: command.answer(
                fields={"offset": "2" if (command.fields or {})["queueId"] == "1" else "3"}
            ),
        )
        with consumer:
            consumer.subscribe(TOPIC)
            assert sorted(poll(consumer, len(expected))) == expected
        broker.add(0, b"new")
    assert broker.committed == committed


def test_remaining_messages_arrive_after_the_broker_restarts(
    broker: FakeBroker,
) -> None:
    bodies = fill(broker, 4)
    with make(broker) as consumer:
        consumer.assign([ONE])
        assert poll(consumer, 2) == bodies[0::2]
        broker.server.close()
        with FakeServer(int(broker.server.address.rpartition(":")[2])) as again:
            again.handlers = broker.server.handlers
            broker.add(0, b"after")
            assert poll(consumer, 1) == [b"after"]


def test_an_iteration_yields_messages_until_the_stop() -> None:
    with running_broker(topics={"Orders": 2}) as broker, Producer("shop", broker.namesrv) as shop:
        for number in range(3):
            shop.send(Message("Orders", b"%d" % number))
        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer("g", broker.namesrv, begin=first) as consumer:
            consumer.subscribe("Orders")
            got = []
            for message in consumer:
                got.append(message.body)
                if len(got) == 3:
                    consumer.stop()
        assert sorted(got) == [b"0", b"1", b"2"]


def test_a_message_of_an_iteration_counts_when_the_next_one_is_requested() -> None:
    with running_broker(topics={"Orders": 1}) as broker, Producer("shop", broker.namesrv) as shop:
        for number in range(3):
            shop.send(Message("Orders", b"%d" % number))
        for expected in (b"0", b"1"):
            with (
                pytest.raises(LookupError),
                PullConsumer("g", broker.namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer,
            ):
                consumer.subscribe("Orders")
                messages = iter(consumer)
                assert next(messages).body == expected
                next(messages)
                raise LookupError


def test_batches_are_filled_from_all_queues_until_the_stop(broker: FakeBroker) -> None:
    bodies = fill(broker, 10)
    got: list[bytes] = []
    with make(broker) as consumer:
        consumer.assign([ONE, TWO])
        for batch in consumer.batches(7, 200):
            assert len(batch) <= 7
            got += [view.body for view in batch]
            if len(got) == len(bodies):
                consumer.stop()
    assert sorted(got) == sorted(bodies)


def test_batches_without_a_wait_do_not_spin(broker: FakeBroker) -> None:
    looks = 0
    with make(broker) as consumer, ThreadPoolExecutor(1) as threads:
        consumer.assign([ONE, TWO])
        take = consumer._take_batch

        def counted(count_max: int) -> Sequence[MessageView]:
            nonlocal looks
            looks += 1
            return take(count_max)

        consumer._take_batch = counted  # type: ignore[method-assign]
        batch = threads.submit(next, consumer.batches(wait_ms=0))
        broker.server.next(RequestCode.PULL_MESSAGE)
        broker.server.next(RequestCode.PULL_MESSAGE)
        broker.add(0, b"a")
        assert [view.body for view in batch.result(WAIT_S)] == [b"a"]
    assert looks < 10


def test_a_failed_start_with_assigned_queues_can_be_repeated() -> None:
    """The repeated start did nothing, and no message was ever consumed."""
    with running_broker(topics={"Bills": 1}) as broker, Producer("shop", broker.namesrv) as shop:
        shop.send(Message("Bills", b"0"))
        consumer = PullConsumer("g", broker.namesrv, begin=ConsumeFrom.FIRST_OFFSET)
        consumer.assign([MessageQueue("Bills", "broker-a", 0)])
        broker.fail("QUERY_CONSUMER_OFFSET", times=1)
        with pytest.raises(BrokerError):
            consumer.start()
        assert not consumer.is_running
        with consumer:
            assert [view.body for view in consumer.poll()] == [b"0"]
