"""A consumer group gets every message at least once, and its offsets never run ahead."""

from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import ConsumeResult
from troupemq.client.errors import ClientClosed, ConnectionFailed, MessageIllegal
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import ConsumerSettings

QUICK = ConsumerSettings(
    consume_threads=4,
    pull_batch_size=4,
    commit_interval_ms=20,
    rebalance_interval_ms=50,
    settle_ms=0,
    again_after_ms=10,
    pull_error_delay_ms=20,
)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield FakeBroker(namesrv, server)


class Seen:
    """A listener that remembers, in the order of its calls."""

    def __init__(self) -> None:
        self.bodies: SimpleQueue[bytes] = SimpleQueue()

    def __call__(self, views: Sequence[MessageView]) -> None:
        for view in views:
            self.bodies.put(view.body)

    def take(self, count: int) -> list[bytes]:
        try:
            return sorted(self.bodies.get(timeout=WAIT_S) for _ in range(count))
        except Empty:
            raise AssertionError("too few messages came") from None


def consumer(
    broker: FakeBroker,
    listener: object,
    settings: ConsumerSettings = QUICK,
    begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
    expression: str = "*",
) -> PushConsumer:
    made = PushConsumer(
        "g",
        listener,  # type: ignore[arg-type]
        broker.namesrv.address,
        settings=settings,
        begin=begin,
    )
    made.subscribe(TOPIC, expression)
    return made


def known_group(broker: FakeBroker) -> None:
    broker.committed.update({("g", queue_id): 0 for queue_id in range(len(broker.queues))})


def fill(broker: FakeBroker, count: int) -> list[bytes]:
    known_group(broker)
    bodies = [b"%03d" % number for number in range(count)]
    for number, body in enumerate(bodies):
        broker.add(number % len(broker.queues), body)
    return bodies


def test_every_message_is_consumed_once_and_offsets_are_committed(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 50), Seen()
    with consumer(broker, seen):
        assert seen.take(50) == bodies
        broker.wait_committed("g", 0, 25)
        broker.wait_committed("g", 1, 25)
    assert seen.bodies.empty()


def test_later_messages_are_consumed(broker: FakeBroker) -> None:
    known_group(broker)
    seen = Seen()
    with consumer(broker, seen):
        broker.server.next(RequestCode.PULL_MESSAGE)
        broker.add(0, b"late")
        assert seen.take(1) == [b"late"]


def test_a_new_group_starts_at_the_max_offset_and_commits_it_at_once(broker: FakeBroker) -> None:
    broker.add(0, b"old")
    with consumer(broker, Seen(), ConsumerSettings(commit_interval_ms=60_000)):
        broker.wait_committed("g", 0, 1)
        broker.wait_committed("g", 1, 0)


def test_tags_are_compared_and_not_only_their_hashes(broker: FakeBroker) -> None:
    known_group(broker)
    broker.add(0, b"1", TAGS="AaAa")
    broker.add(0, b"2", TAGS="BBBB")  # the same String.hashCode
    seen = Seen()
    with consumer(broker, seen, expression="BBBB"):
        broker.wait_committed("g", 0, 2)
    assert seen.take(1) == [b"2"]
    assert seen.bodies.empty()


def test_the_offset_does_not_pass_a_message_that_is_being_consumed(broker: FakeBroker) -> None:
    fill(broker, 10)
    begun, may_end = Event(), Event()

    def listen(views: Sequence[MessageView]) -> None:
        if views[0].body == b"004":
            begun.set()
            assert may_end.wait(WAIT_S)

    with consumer(broker, listen):
        assert begun.wait(WAIT_S)
        broker.wait_committed("g", 0, 2)
        broker.wait_committed("g", 1, 5)
        may_end.set()
        broker.wait_committed("g", 0, 5)


@pytest.mark.parametrize("way", ["exception", "result"])
def test_a_failed_message_is_sent_back_to_its_broker(broker: FakeBroker, way: str) -> None:
    fill(broker, 2)

    def listen(views: Sequence[MessageView]) -> ConsumeResult:
        if way == "exception":
            raise ValueError("not today")
        return ConsumeResult.RETRY_LATER

    with consumer(broker, listen):
        command = broker.server.next(RequestCode.CONSUMER_SEND_MSG_BACK)
        broker.wait_committed("g", 0, 1)
        broker.wait_committed("g", 1, 1)
    assert command.fields is not None
    assert command.fields["group"] == "g" and command.fields["originTopic"] == TOPIC
    assert command.fields["maxReconsumeTimes"] == "16"


def test_messages_that_cannot_be_sent_back_are_retried_locally(broker: FakeBroker) -> None:
    fill(broker, 1)
    broker.takes_back = False
    tries = iter([ConsumeResult.RETRY_LATER, ConsumeResult.RETRY_LATER, None])
    with consumer(broker, lambda views: next(tries)):
        broker.wait_committed("g", 0, 1)
    assert len(broker.sent_back) == 2


def test_an_offset_below_the_min_offset_is_corrected(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 20), Seen()
    broker.first_offsets = [5, 5]
    with consumer(broker, seen):
        assert seen.take(10) == bodies[10:]


def test_an_offset_above_the_max_offset_is_corrected(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    broker.committed["g", 0] = 4711
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        broker.wait_committed("g", 0, 2)


def test_a_full_process_queue_is_not_pulled(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 40), Seen()
    may_go = Event()

    def listen(views: Sequence[MessageView]) -> None:
        assert may_go.wait(WAIT_S)
        seen(views)

    settings = ConsumerSettings(
        consume_threads=2, pull_batch_size=4, queue_count_max=8, commit_interval_ms=20
    )
    with consumer(broker, listen, settings):
        pulled = [int((broker.server.next(RequestCode.PULL_MESSAGE).fields or {})["queueOffset"])]
        while len(pulled) < 4:
            pulled.append(
                int((broker.server.next(RequestCode.PULL_MESSAGE).fields or {})["queueOffset"])
            )
        assert max(pulled) == 4
        may_go.set()
        assert seen.take(40) == bodies


def test_two_members_share_the_queues_when_one_joins_and_when_one_leaves(
    broker: FakeBroker,
) -> None:
    known_group(broker)
    seen_a, seen_b = Seen(), Seen()
    first, second = consumer(broker, seen_a), consumer(broker, seen_b)
    with first:
        broker.add(0, b"1")
        assert seen_a.take(1) == [b"1"]
        with second:
            wait_for_queues(broker, first, 1)
            wait_for_queues(broker, second, 1)
            broker.add(0, b"2")
            broker.add(1, b"3")
            assert sorted(seen_a.take(1) + seen_b.take(1)) == [b"2", b"3"]
        notify(broker)
        wait_for_queues(broker, first, 2)
        broker.add(0, b"4")
        broker.add(1, b"5")
        assert seen_a.take(2) == [b"4", b"5"]


def notify(broker: FakeBroker) -> None:
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    broker.server.push(RemotingCommand(code, {"consumerGroup": "g"}, flag=2))


def wait_for_queues(broker: FakeBroker, member: PushConsumer, count: int) -> None:
    """Looks after each request that the broker gets, and there is always a next one."""
    deadline_s = monotonic() + WAIT_S
    while len(topic_queues(member)) != count:
        assert monotonic() < deadline_s, member.queues()
        broker.server.next()


def topic_queues(member: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in member.queues() if queue.topic == TOPIC]


def test_a_brokers_notice_rebalances_at_once(broker: FakeBroker) -> None:
    known_group(broker)
    settings = ConsumerSettings(rebalance_interval_ms=3_600_000, settle_ms=0)
    with consumer(broker, Seen(), settings) as member:
        wait_for_queues(broker, member, 2)
        broker.members["g"].append("0 another")
        notify(broker)
        wait_for_queues(broker, member, 1)


def test_a_queue_of_another_member_is_left_to_it_for_a_while(broker: FakeBroker) -> None:
    known_group(broker)
    broker.members["g"].append("zzz")
    settings = ConsumerSettings(rebalance_interval_ms=20, settle_ms=3_600_000)
    with consumer(broker, Seen(), settings) as member:
        for _ in range(3):
            broker.server.next(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert not topic_queues(member)
        broker.members["g"].remove("zzz")
        wait_for_queues(broker, member, 2)


def test_a_stop_commits_consumed_offsets_and_leaves_the_group(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 10), Seen()
    settings = ConsumerSettings(commit_interval_ms=3_600_000)
    with consumer(broker, seen, settings):
        assert seen.take(10) == bodies
    assert (broker.committed["g", 0], broker.committed["g", 1]) == (5, 5)
    assert broker.members["g"] == []


def test_a_stop_does_not_commit_unconsumed_messages(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "troupemq.client")
    fill(broker, 10)
    begun, may_end, ids = Event(), Event(), []

    def listen(views: Sequence[MessageView]) -> None:
        ids.append(views[0].message_id)
        begun.set()
        may_end.wait(WAIT_S)

    settings = ConsumerSettings(consume_threads=1, commit_interval_ms=3_600_000)
    member = consumer(broker, listen, settings)
    member.start()
    assert begun.wait(WAIT_S)
    member.stop(timeout_s=0.05)
    assert (broker.committed["g", 0], broker.committed["g", 1]) == (0, 0)
    for event in ("stop waits for listeners", "listeners still running at stop"):
        assert f"{event} group=g ids={ids[0]}" in caplog.text
    assert "handlers=1 handlers_left=1 offsets=" in caplog.text
    may_end.set()


def test_the_heartbeat_names_group_and_subscriptions(broker: FakeBroker) -> None:
    with consumer(broker, Seen(), expression="a || b") as member:
        broker.server.next(RequestCode.PULL_MESSAGE)
        (data,) = broker.beats[member.client_id].consumer_data_set
    wanted = {each.topic: each for each in data.subscription_data_set}
    assert (data.group_name, data.consume_type, data.message_model) == (
        "g",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    )
    assert set(wanted) == {TOPIC, "%RETRY%g"}
    assert (wanted[TOPIC].tags_set, wanted[TOPIC].code_set) == (["a", "b"], [97, 98])


def test_a_lost_connection_loses_no_message(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        broker.server.cut()
        broker.add(0, b"after")
        assert seen.take(1) == [b"after"]


def test_a_refused_pull_is_retried_after_a_heartbeat(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 2), Seen()
    pull = broker.server.handlers[RequestCode.PULL_MESSAGE]
    refusals = iter([True, True])

    def refuse_first(command: RemotingCommand) -> RemotingCommand | bytes | None:
        if next(refusals, False):
            return command.answer(ResponseCode.SUBSCRIPTION_NOT_LATEST, {}, remark="not latest")
        return pull(command)

    broker.server.on(RequestCode.PULL_MESSAGE, refuse_first)
    with consumer(broker, seen):
        assert seen.take(2) == bodies


def test_a_topic_that_appears_later_is_consumed(broker: FakeBroker) -> None:
    known_group(broker)
    route = broker.namesrv.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    broker.namesrv.on(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        lambda command: command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="no route"),
    )
    seen = Seen()
    with consumer(broker, seen):
        broker.namesrv.next(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        broker.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        broker.add(0, b"first")
        assert seen.take(1) == [b"first"]


def test_a_start_without_a_name_server_fails_at_once(broker: FakeBroker) -> None:
    broker.namesrv.close()
    member = consumer(broker, Seen())
    with pytest.raises(ConnectionFailed):
        member.start()
    member.stop()


def test_a_stopped_consumer_does_not_start_again(broker: FakeBroker) -> None:
    member = consumer(broker, Seen())
    member.stop()
    with pytest.raises(ClientClosed):
        member.start()


def test_an_empty_subscription_is_refused(broker: FakeBroker) -> None:
    member = consumer(broker, Seen())
    with pytest.raises(MessageIllegal, match="parse"):
        member.subscribe(TOPIC, "||")
    member.stop()
