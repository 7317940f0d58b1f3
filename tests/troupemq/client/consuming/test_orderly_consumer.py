"""An orderly consumer and a broker that locks queues; broadcast and SQL92 on the wire."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from protocol import bodies
from protocol.bodies import CheckClientRequest, LockBatchRequest, LockBatchResponse
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageHeader
from protocol.headers.send import SendMessageHeader
from protocol.properties import parse
from tests.compat.patience import wait_until
from tests.troupemq.client.consuming.test_consumer import (
    QUICK,
    Seen,
    fill,
    known_group,
    topic_queues,
    wait_for_queues,
)
from tests.troupemq.client.consuming.test_consumer_faults import reborn
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.connection import client
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import ConsumeResult, Listener
from troupemq.client.errors import BrokerError, MessageIllegal
from troupemq.client.message import MessageView

ORDERLY = replace(QUICK, suspend_queue_ms=10, lock_interval_ms=50)


class LockingBroker(FakeBroker):
    """Locks queues, but those of `others`."""

    def __init__(self, namesrv: FakeServer, server: FakeServer) -> None:
        super().__init__(namesrv, server)
        self.others: set[int] = set()
        self.unlocked: list[int] = []
        server.on(RequestCode.LOCK_BATCH_MQ, self._lock)
        server.on(RequestCode.UNLOCK_BATCH_MQ, self._unlock)

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        wanted = LockBatchRequest.decode(command.body).mq_set
        found = [queue for queue in wanted if queue.queue_id not in self.others]
        return command.answer(body=LockBatchResponse(found).encode())

    def _unlock(self, command: RemotingCommand) -> RemotingCommand:
        found = LockBatchRequest.decode(command.body)
        self.unlocked += [queue.queue_id for queue in found.mq_set if queue.topic == TOPIC]
        return command.answer()


@pytest.fixture
def broker() -> Iterator[LockingBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield LockingBroker(namesrv, server)


def consumer(broker: FakeBroker, listener: Listener, **options: object) -> PushConsumer:
    made = PushConsumer(
        "g",
        listener,
        broker.namesrv.address,
        settings=ORDERLY,
        **options,  # type: ignore[arg-type]
    )
    made.subscribe(TOPIC)
    return made


def test_a_queue_is_consumed_after_its_lock_and_unlocked_at_the_end(
    broker: LockingBroker,
) -> None:
    bodies_, seen = fill(broker, 8), Seen()
    broker.others = {1}
    with consumer(broker, seen, orderly=True) as member:
        assert seen.take(4) == bodies_[0::2]
        wait_for_queues(broker, member, 1)
        broker.others = set()
        assert seen.take(4) == bodies_[1::2]
        broker.wait_committed("g", 1, 4)
    assert sorted(broker.unlocked) == [0, 1]
    assert seen.bodies.empty()


def test_a_thread_without_time_consumes_once_before_it_turns_to_other_queues(
    broker: LockingBroker,
) -> None:
    """The thread went from queue to queue at a full core, and consumed nothing."""
    bodies_, seen = fill(broker, 4), Seen()
    settings = replace(ORDERLY, continuous_ms=0)
    made = PushConsumer("g", seen, broker.namesrv.address, settings=settings, orderly=True)
    made.subscribe(TOPIC)
    with made:
        assert seen.take(4) == bodies_


def test_a_lock_lost_to_another_member_stops_the_queue(broker: LockingBroker) -> None:
    known_group(broker)
    seen = Seen()
    with consumer(broker, seen, orderly=True) as member:
        wait_for_queues(broker, member, 2)
        broker.others = {0}
        wait_for_queues(broker, member, 1)
        broker.committed["g", 0] = 3  # as the other one left it
        for _ in range(4):
            broker.add(0, b"not again")
        broker.add(0, b"new")
        broker.others = set()
        assert seen.take(2) == [b"new", b"not again"]
    assert seen.bodies.empty()


def test_a_restarted_broker_gives_no_queue_away_that_another_member_consumes(
    broker: LockingBroker,
) -> None:
    """Without locks and the other member in its list, both consumed the queue at once."""
    bodies_, seen = fill(broker, 4), Seen()
    broker.others = {1}
    with consumer(broker, seen, orderly=True) as member:
        assert seen.take(2) == bodies_[0::2]
        with reborn(broker) as again:
            broker.others = set()
            broker.add(0, b"after")
            assert seen.take(1) == [b"after"]
            for _ in range(6):  # a rebalance asks once for each topic
                again.next(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
            assert [queue.queue_id for queue in topic_queues(member)] == [0]
    assert seen.bodies.empty()


def test_a_queue_is_kept_until_its_listener_returns(broker: LockingBroker) -> None:
    """The lock was not renewed: after 60 s another member consumed it beside the listener."""
    fill(broker, 2)
    begun, may_end = Event(), Event()

    def listen(views: Sequence[MessageView]) -> None:
        if views[0].queue.queue_id == 1:
            begun.set()
            assert may_end.wait(WAIT_S)

    settings = replace(ORDERLY, drop_wait_ms=1)
    made = PushConsumer("g", listen, broker.namesrv.address, settings=settings, orderly=True)
    made.subscribe(TOPIC)
    with made:
        assert begun.wait(WAIT_S)
        broker.members["g"].insert(0, "0 another")
        broker.members["g"].append("zzz")  # the second of three has queue 1 of two: we keep none
        broker.members["g"].append("1 another")
        for _ in range(6):
            broker.server.next(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        renewed = LockBatchRequest.decode(broker.server.next(RequestCode.LOCK_BATCH_MQ).body)
        assert [queue.queue_id for queue in renewed.mq_set] == [1]
        assert 1 not in broker.unlocked
        may_end.set()
        wait_for_queues(broker, made, 0)
        broker.wait_committed("g", 1, 1)


def test_a_stop_that_waits_for_listeners_keeps_its_membership_and_locks(
    broker: LockingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without heartbeats others got its queues after 120 s, and its locks ended after 60 s."""
    monkeypatch.setattr(client, "HEARTBEAT_INTERVAL_MS", 20)
    fill(broker, 1)
    begun, may_end = Event(), Event()

    def listen(views: Sequence[MessageView]) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    made = consumer(broker, listen, orderly=True)
    made.start()
    assert begun.wait(WAIT_S)
    stopping = Thread(target=made.stop)
    stopping.start()
    wait_until(lambda: made._rebalancing._closed, "the stop begins")
    while not broker.server.received.empty():
        broker.server.received.get()
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ) * 2:
        broker.server.next(code)
    may_end.set()
    stopping.join(WAIT_S)
    assert broker.committed["g", 0] == 1
    assert sorted(broker.unlocked) == [0, 1]


def test_a_message_over_its_retry_limit_goes_to_the_retry_topic(broker: LockingBroker) -> None:
    known_group(broker)
    retry = {TOPIC: 2, "%RETRY%g": 1}
    serve_routes(broker.namesrv, {"b": broker.server}, retry)
    broker.server.succeed(
        RequestCode.SEND_MESSAGE_V2, msgId="m", queueId="0", queueOffset="0", transactionId=""
    )
    broker.add(0, b"bad", TAGS="t")
    settings = replace(ORDERLY, max_reconsume_times=1)
    made = PushConsumer(
        "g",
        lambda views: ConsumeResult.RETRY_LATER,
        broker.namesrv.address,
        settings=settings,
        orderly=True,
    )
    made.subscribe(TOPIC)
    with made:
        command = broker.server.next(RequestCode.SEND_MESSAGE_V2)
        broker.wait_committed("g", 0, 1)
    header = SendMessageHeader.of_command(command)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 1, 1)
    assert command.body == b"bad"
    properties = parse((header.properties or "").encode())
    assert properties == {
        "UNIQ_KEY": "bad",
        "TAGS": "t",
        "ORIGIN_MESSAGE_ID": "bad",
        "RETRY_TOPIC": TOPIC,
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "1",
        "DELAY": "4",
        "TROUPE_FAILURE": "the listener asked for a retry",
    }


def test_a_message_that_cannot_be_sent_back_is_sent_as_a_new_one(broker: LockingBroker) -> None:
    known_group(broker)
    serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 2, "%RETRY%g": 1})
    broker.server.succeed(
        RequestCode.SEND_MESSAGE_V2, msgId="m", queueId="0", queueOffset="0", transactionId=""
    )
    broker.takes_back = False
    broker.add(0, b"bad")
    made = consumer(broker, lambda views: ConsumeResult.RETRY_LATER)
    with made:
        command = broker.server.next(RequestCode.SEND_MESSAGE_V2)
        broker.wait_committed("g", 0, 1)
    header = SendMessageHeader.of_command(command)
    assert (header.reconsume_times, header.max_reconsume_times) == (1, 16)


def test_a_broadcasting_consumer_has_all_queues_and_local_offsets(
    broker: LockingBroker, tmp_path: Path
) -> None:
    for number in range(6):
        broker.add(number % 2, b"%d" % number)
    broker.members["g"] += ["0 another", "zzz"]
    for expected in ([b"%d" % number for number in range(6)], [b"6"]):
        seen = Seen()
        made = consumer(
            broker,
            seen,
            broadcast=True,
            client_ip="10.1.2.3",
            offsets_folder=tmp_path,
            begin=ConsumeFrom.FIRST_OFFSET,
        )
        with made:
            assert seen.take(len(expected)) == expected
            beat = broker.beats[made.client_id].consumer_data_set[0]
        assert made.client_id == "10.1.2.3@DEFAULT"
        assert beat.message_model == "BROADCASTING"
        assert [each.topic for each in beat.subscription_data_set] == [TOPIC]
        broker.add(0, b"6")
    assert (tmp_path / "10.1.2.3@DEFAULT" / "g" / "offsets.json").exists()
    assert not broker.committed


def test_an_sql_filter_is_checked_by_a_broker_and_sent_with_each_pull(
    broker: LockingBroker,
) -> None:
    known_group(broker)
    broker.server.succeed(RequestCode.CHECK_CLIENT_CONFIG)
    made = PushConsumer("g", Seen(), broker.namesrv.address, settings=QUICK)
    made.subscribe(TOPIC, sql="a > 3")
    with made:
        check = CheckClientRequest.decode(broker.server.next(RequestCode.CHECK_CLIENT_CONFIG).body)
        pull = PullMessageHeader.decode(broker.server.next(RequestCode.PULL_MESSAGE).fields)
        (data,) = broker.beats[made.client_id].consumer_data_set
    assert check.group == "g" and check.subscription_data is not None
    wanted = next(each for each in data.subscription_data_set if each.topic == TOPIC)
    assert (wanted.expression_type, wanted.sub_string, wanted.tags_set) == ("SQL92", "a > 3", [])
    assert check.subscription_data == wanted
    assert pull.expression_type == "SQL92"


def test_an_sql_filter_that_a_broker_refuses_stops_the_start(broker: LockingBroker) -> None:
    broker.server.on(
        RequestCode.CHECK_CLIENT_CONFIG,
        lambda command: command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="no"),
    )
    made = PushConsumer("g", Seen(), broker.namesrv.address, settings=QUICK)
    made.subscribe(TOPIC, sql="a >")
    with pytest.raises(BrokerError, match="SUBSCRIPTION_PARSE_FAILED"), made:
        raise AssertionError("it has started")


@pytest.mark.parametrize("expression, sql", [("a", "b > 1"), ("*", " ")])
def test_an_invalid_filter_is_refused(expression: str, sql: str) -> None:
    made = PushConsumer("g", Seen(), "127.0.0.1:1")
    with pytest.raises(MessageIllegal):
        made.subscribe(TOPIC, expression, sql=sql)
    made.stop()


def test_a_suspended_consumer_pulls_nothing_until_it_is_resumed(broker: LockingBroker) -> None:
    known_group(broker)
    seen = Seen()
    with consumer(broker, seen) as member:
        wait_for_queues(broker, member, 2)
        member.suspend()
        member.resume()
        broker.add(0, b"after")
        assert seen.take(1) == [b"after"]


def test_an_unsubscribed_topic_is_committed_and_released(broker: LockingBroker) -> None:
    bodies_, seen = fill(broker, 4), Seen()
    with consumer(broker, seen) as member:
        assert seen.take(4) == bodies_
        member.unsubscribe(TOPIC)
        wait_for_queues(broker, member, 0)
        wait_until(
            lambda: (broker.committed["g", 0], broker.committed["g", 1]) == (2, 2), "commits", 10
        )


def test_pulls_follow_the_brokers_suggestion_and_return_to_the_master_after_a_failure(
    broker: LockingBroker,
) -> None:
    known_group(broker)
    pull = broker.server.handlers[RequestCode.PULL_MESSAGE]
    with FakeServer() as slave:

        def to_slave(command: RemotingCommand) -> RemotingCommand:
            answer = pull(command)
            assert isinstance(answer, RemotingCommand) and answer.fields is not None
            answer.fields["suggestWhichBrokerId"] = "1"
            return answer

        broker.server.on(RequestCode.PULL_MESSAGE, to_slave)
        slave.on(RequestCode.PULL_MESSAGE, pull)
        slave.succeed(RequestCode.HEART_BEAT)
        route = bodies.TopicRouteData(
            [bodies.QueueData("b", 2, 2, 6)],
            [bodies.BrokerData("c", "b", {0: broker.server.address, 1: slave.address})],
        )
        others = broker.namesrv.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
            if command.fields == {"topic": TOPIC}:
                return command.answer(body=route.encode(standard_json=True))
            return others(command)

        broker.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)
        seen = Seen()
        with consumer(broker, seen):
            slave.next(RequestCode.PULL_MESSAGE)
            broker.add(0, b"1")
            assert seen.take(1) == [b"1"]
            slave.close()
            broker.add(0, b"2")
            assert seen.take(1) == [b"2"]


def test_without_a_name_server_consumption_continues_with_known_routes(
    broker: LockingBroker,
) -> None:
    known_group(broker)
    seen = Seen()
    with consumer(broker, seen) as member:
        wait_for_queues(broker, member, 2)
        broker.namesrv.close()
        broker.add(0, b"1")
        assert seen.take(1) == [b"1"]
        broker.server.cut()  # and the broker's connection breaks as well
        broker.add(1, b"2")
        assert seen.take(1) == [b"2"]
