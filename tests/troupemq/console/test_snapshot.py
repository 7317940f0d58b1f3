"""Snapshots name missing servers and keep their deadline."""

import json
from collections.abc import Iterator
from time import time_ns

import pytest

from protocol.bodies import BrokerData, ClusterInfo, MessageQueue
from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStatsBody,
    ConsumeStatsList,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from protocol.bodies_own import (
    AclRefusal,
    AclRefusals,
    OffsetProgress,
    ProgressList,
    ProgressStats,
)
from protocol.bodies_tables import (
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.json_body import Body
from tests.troupemq.console.conftest import GONE
from tests.troupemq.fake_server import FakeServer
from troupemq.client.errors import ClientError
from troupemq.console import questions
from troupemq.console import snapshot as module
from troupemq.console.cluster import DeadlineSession
from troupemq.console.snapshot import SnapshotTaker

OURS = (
    RequestCode.GET_GROUP_CHANGES,
    RequestCode.GET_OPEN_TRANSACTIONS,
    RequestCode.GET_JOBS,
    RequestCode.GET_STORE_STATE,
    RequestCode.GET_ACL_REFUSALS,
)
NOW_MS = 1_700_000_000_000


def serve(server: FakeServer, code: RequestCode, body: Body) -> None:
    encoded = body.encode()
    server.on(code, lambda command: command.answer(body=encoded))


@pytest.fixture
def cluster() -> Iterator[tuple[FakeServer, FakeServer, DeadlineSession]]:
    """Name server, a master that answers like an official one, and one that is down."""
    with FakeServer() as namesrv, FakeServer() as broker:
        places = {
            "a": BrokerData("C", "a", {0: broker.address}),
            "b": BrokerData("C", "b", {0: GONE}),
        }
        serve(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo(places, {"C": ["a", "b"]}))
        serve(broker, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable({"putTps": "1.5 2 3"}))
        settings = b"brokerName=a\naclEnable=false\n"
        broker.on(RequestCode.GET_BROKER_CONFIG, lambda command: command.answer(body=settings))
        topics = {name: TopicConfig(name, 4, 4, 6) for name in ("T", "%RETRY%g", "%DLQ%g")}
        serve(broker, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable(topics))
        groups = {"g": SubscriptionGroupConfig("g")}
        serve(
            broker,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            SubscriptionGroupTable(groups),
        )
        queues = {
            MessageQueue("T", "a", 0): OffsetWrapper(10, 7, NOW_MS - 5000),
            MessageQueue("T", "a", 1): OffsetWrapper(10, 10, NOW_MS - 90_000),
        }
        stats = ConsumeStatsList([{"g": [ConsumeStatsBody(queues, 2.5)]}], broker.address, 3)
        serve(broker, RequestCode.GET_BROKER_CONSUME_STATS, stats)
        members = ConsumerConnection([ClientConnection("c", "h:1", "JAVA", 407)])
        serve(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, members)
        dead = TopicStatsTable({MessageQueue("%DLQ%g", "a", 0): TopicOffset(2, 7, 1)})
        serve(broker, RequestCode.GET_TOPIC_STATS_INFO, dead)
        for code in OURS:
            broker.on(code, lambda command: command.answer(3, remark="not supported"))
        session = DeadlineSession(namesrv.address)
        yield namesrv, broker, session
        session.close()


def test_a_snapshot_joins_answers_and_names_silent_brokers(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    _, _, session = cluster
    found = SnapshotTaker(session, lambda: NOW_MS).take()
    assert [(each.place.name, bool(each.says)) for each in found.brokers] == [
        ("a", True),
        ("b", False),
    ]
    assert found.missing == [f"{GONE}: connection refused"]
    group = found.groups["g"]
    assert (group.lag, group.late_ms, group.tps, group.members) == (3, 5000, 2.5, 1)
    assert group.dead_letters == 5 and not group.differs
    assert found.topics["T"].groups == {"g": 3} and found.topics["T"].read_queues == 4
    assert found.transactions == {} and found.jobs == {}
    assert found.brokers[0].number("putTps") == 1.5 and found.brokers[0].number("x") is None


def test_unsupported_requests_are_not_repeated_to_a_broker(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    """Each such request is a warning in an official broker's log."""
    _, broker, session = cluster
    asked: list[int] = []
    for code in OURS:
        broker.on(code, lambda command: asked.append(command.code) or command.answer(3))  # type: ignore[func-returns-value]
    clock_s = [1000.0]
    taker = SnapshotTaker(session, lambda: NOW_MS, lambda: clock_s[0])
    for _ in range(3):
        taker.take()
    assert sorted(asked) == sorted(OURS)
    clock_s[0] += questions.UNSUPPORTED_S + 1
    taker.take()
    assert len(asked) == 2 * len(OURS)


def test_a_hanging_broker_costs_at_most_its_timeout(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker accepts connections and never answers, like a suspended process."""
    monkeypatch.setattr(module, "ROUND_S", 0.3)
    monkeypatch.setattr(module, "SNAPSHOT_S", 0.4)
    _, broker, session = cluster
    for code in list(broker.handlers):
        broker.on(RequestCode(code), lambda command: None)
    found = SnapshotTaker(session, lambda: NOW_MS).take()
    assert any(broker.address in each for each in found.missing)
    assert found.topics == {} and len(found.brokers) == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"table": 3}', b"\xff" * 100])
def test_an_invalid_answer_counts_as_missing(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession], body: bytes
) -> None:
    _, broker, session = cluster
    for code in list(broker.handlers):
        if code not in OURS:
            broker.on(RequestCode(code), lambda command: command.answer(body=body))
    found = SnapshotTaker(session, lambda: NOW_MS).take()
    assert len(found.brokers) == 2 and found.missing


def test_without_a_name_server_pages_are_a_one_sentence_error() -> None:
    session = DeadlineSession(GONE)
    found = SnapshotTaker(session, lambda: NOW_MS).take()
    assert found.brokers == [] and found.missing == [
        f"no name server answers: {GONE}: connection refused"
        " (named by the argument namesrv or -n; start one: troupemq namesrv)"
    ]
    session.close()


def test_a_broker_that_leaves_is_named_for_a_day_and_missing_from_sums(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    namesrv, _, session = cluster
    now_ms = [NOW_MS]
    taker = SnapshotTaker(session, lambda: now_ms[0])
    assert taker.take().without == " without b", "it has never answered"
    here = {"b": BrokerData("C", "b", {0: GONE})}
    serve(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo(here, {"C": ["b"]}))
    now_ms[0] += 60_000
    found = taker.take()
    assert [(each.place.name, each.answered_ms) for each in found.gone] == [("a", NOW_MS)]
    assert found.without == " without a, b"
    now_ms[0] += module.GONE_KEPT_MS
    assert taker.take().gone == []


def test_access_control_is_asked_for_rarely_and_refusals_not_after_a_refusal(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    """A refused request would be one more refusal."""
    _, broker, session = cluster
    asked: list[int] = []

    def refuse(command: RemotingCommand) -> RemotingCommand:
        asked.append(command.code)
        return command.answer(1, remark="org.apache.rocketmq.acl.common.AclException: no")

    broker.on(RequestCode.GET_ACL_REFUSALS, refuse)
    clock_s = [1000.0]
    taker = SnapshotTaker(session, lambda: NOW_MS, lambda: clock_s[0])
    for _ in range(3):
        found = taker.take()
        assert [each.name for each in found.unguarded] == ["a"]
        clock_s[0] += module.ACCESS_S / 2 + 1
    assert len(asked) == 1 and not any("AclException" in each for each in found.missing)
    clock_s[0] += questions.UNSUPPORTED_S
    refused = AclRefusals([AclRefusal("acc", "g", 10, 3, NOW_MS, "no", "h:1")])
    serve(broker, RequestCode.GET_ACL_REFUSALS, refused)
    assert taker.take().refusals == taker.take().refusals == refused.refusals


def test_waiting_for_a_silent_broker_does_not_make_snapshots_rare(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with one broker that hangs, the console was asked every 45 s."""
    monkeypatch.setattr(module, "ROUND_S", 0.3)
    monkeypatch.setattr(module, "SNAPSHOT_S", 0.4)
    _, broker, session = cluster
    broker.on(RequestCode.GET_JOBS, lambda command: None)
    assert SnapshotTaker(session, lambda: NOW_MS).take().took_s < 0.3


def test_members_of_a_stuck_group_are_asked_for_what_they_hold(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    _, broker, session = cluster
    now_ms = time_ns() // 1_000_000
    where = OffsetProgress(10, 7, now_ms - 90_000, waiting_timestamp=now_ms - 60_000)
    stats = ProgressStats({MessageQueue("T", "a", 0): where}, 0.0, now_ms - 900_000, now_ms)
    listed = ProgressList([{"g": [stats]}], broker.address, 3)
    serve(broker, RequestCode.GET_BROKER_CONSUME_STATS, listed)
    held = {"lastConsumeTimestamp": now_ms - 60_000, "cachedMsgCount": 3, "cachedMsgMinOffset": 7}
    body = json.dumps({"mqTable": {"T@a:0": held}}).encode()
    broker.on(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda command: command.answer(body=body))
    group = SnapshotTaker(session, lambda: now_ms).take().groups["g"]
    assert group.is_stuck and [each.client for each in group.stuck_members] == ["c"]
    assert group.stuck_members[0].current is not None
    assert group.stuck_members[0].current.place == "offset 7 of T, a, queue 0"
    broker.on(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda command: command.answer(1))
    group = SnapshotTaker(session, lambda: now_ms).take().groups["g"]
    assert group.is_stuck and not group.stuck_members, "they refuse to say"
    stats.stuck_after = 99_000
    serve(broker, RequestCode.GET_BROKER_CONSUME_STATS, listed)
    group = SnapshotTaker(session, lambda: now_ms).take().groups["g"]
    assert not group.is_stuck, "the broker is set to wait longer"


def test_a_broker_that_hangs_delays_the_next_requests_no_more_until_it_answers(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each page waited for it again, so that the way to a verdict took 11 s."""
    monkeypatch.setattr(module, "ROUND_S", 0.3)
    monkeypatch.setattr(questions, "SILENT_MS", 150.0)
    _, broker, session = cluster
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    broker.on(code, lambda command: None)
    taker = SnapshotTaker(session, lambda: NOW_MS)
    taker.take()
    assert session.is_silent(broker.address)
    (answer,) = session.ask_all([broker.address], RequestCode.GET_ALL_TOPIC_CONFIG).values()
    assert isinstance(answer, ClientError), "it fails at once"
    serve(broker, code, KVTable({"putTps": "1"}))
    assert taker.take().brokers[0].says and not session.is_silent(broker.address)


def test_a_broker_whose_progress_is_too_long_is_asked_for_lags_alone(
    cluster: tuple[FakeServer, FakeServer, DeadlineSession],
) -> None:
    """The reader of JSON has a limit; progress doubles the fields of each queue."""
    _, broker, session = cluster
    code = RequestCode.GET_BROKER_CONSUME_STATS
    plain = broker.handlers[code]

    def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
        asks_progress = (command.fields or {}).get("withProgress") == "true"
        return command.answer(body=b"[too long") if asks_progress else plain(command)

    broker.on(code, answer)
    taker = SnapshotTaker(session, lambda: NOW_MS)
    assert taker.take().groups["g"].lag == 0
    assert taker.take().groups["g"].lag == 3
