"""Tests of troupemq/cluster_overview.py: what a cluster looks like, with official brokers in it."""

from collections.abc import Iterator
from time import time_ns

import pytest

from protocol.bodies import BrokerData, ClusterInfo, MessageQueue
from protocol.bodies_admin import ConsumeStatsBody
from protocol.bodies_own import ActorLine, ActorList, OffsetProgress, ProgressList, ProgressStats
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode
from protocol.json_body import Body
from tests.troupemq.fake_server import FakeServer
from troupemq.client.admin import Admin
from troupemq.cluster_overview import ClusterPoller

GONE = "127.0.0.1:1"
FIGURES = {
    "brokerVersionDesc": "V4_9_7",
    "putTps": "12.5 3.0 1.0",
    "getTransferedTps": "7.0 2.0 1.0",
    "sendThreadPoolQueueSize": "4",
    "commitLogDiskRatio": "0.5",
    "consumeQueueDiskRatio": "0.87",
    "commitLogMinOffset": "1000",
    "commitLogMaxOffset": "3048",
    "dispatchBehindBytes": "5",
}


def answers(server: FakeServer, code: RequestCode, body: Body) -> None:
    encoded = body.encode()
    server.on(code, lambda command: command.answer(body=encoded))


def cluster(namesrv: FakeServer, **addresses: str) -> None:
    """Masters of one cluster, by name."""
    brokers = {name: BrokerData("C", name, {0: at}) for name, at in addresses.items()}
    answers(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo(brokers, {"C": [*brokers]}))


def now_ms() -> int:
    return time_ns() // 1_000_000


def fill(server: FakeServer, name: str, *, is_ours: bool = False) -> None:
    """A group that is three messages behind in one of two queues, and has a retry waiting.

    A broker of ours reports that nothing was consumed for five minutes; an official one does not.
    """
    answers(server, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable(FIGURES))
    table = {
        MessageQueue("Orders", name, 0): OffsetProgress(10, 7, 5000, 9),
        MessageQueue("Orders", name, 1): OffsetProgress(4, 4, 1000, 4),
        MessageQueue("%RETRY%billing", name, 0): OffsetProgress(1, 0, 0, 0),
    }
    stats = ProgressStats(table, 2.5)
    if is_ours:
        now = now_ms()
        stats.observed_since, stats.answered_timestamp = now - 900_000, now
        table[MessageQueue("Orders", name, 0)].waiting_timestamp = now - 300_000
        table[MessageQueue("%RETRY%billing", name, 0)].waiting_timestamp = now - 1000
    else:
        for each in table.values():
            each.pull_offset = None
        stats = ConsumeStatsBody.from_json(stats.to_json())  # type: ignore[assignment]
    found = ProgressList([{"billing": [stats]}, {"idle": []}])
    answers(server, RequestCode.GET_BROKER_CONSUME_STATS, found)
    server.on(RequestCode.GET_ACTORS, lambda command: command.answer(3, remark="what?"))


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer, FakeServer]]:
    """A name server, a broker of ours, an official one."""
    with FakeServer() as namesrv, FakeServer() as ours, FakeServer() as official:
        cluster(namesrv, ours=ours.address, official=official.address, dead=GONE)
        fill(ours, "ours", is_ours=True)
        fill(official, "official")
        lines = [ActorLine("idle", True, 0, 9, 0), ActorLine("pull_hold", False, 3, 9, 1)]
        answers(ours, RequestCode.GET_ACTORS, ActorList(lines, 2))
        yield namesrv, ours, official


def test_all_brokers_are_listed_and_an_unreachable_one_is_named(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    with Admin(servers[0].address) as admin:
        overview = ClusterPoller(admin).take(with_actors=True)
    found = {each.place.name: each for each in overview.brokers}
    for name in ("ours", "official"):
        one = found[name]
        assert (one.in_tps, one.out_tps, one.waiting_sends) == (12.5, 7.0, 4)
        assert (one.disk_ratio, one.log_bytes, one.behind_bytes) == (0.87, 2048, 5)
    assert found["official"].actors is None and not found["official"].trouble
    assert found["ours"].slow_handlers == 2
    assert [actor.name for _, actor in overview.busiest_actors()] == ["pull_hold", "idle"]
    troubles = "\n".join(overview.troubles)
    assert "dead: " in troubles and GONE in troubles
    assert "ours: the disk is 87% full." in troubles
    assert "ours: the actor pull_hold is down." in troubles
    assert troubles.startswith("dead: "), "brokers that are gone come first"
    assert "billing is stuck for 5 min at offset 7 of Orders, ours, queue 0." in troubles
    assert overview.missing == ["dead"]


def test_lag_is_added_up_over_brokers_and_is_stuck_where_that_is_known(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    with Admin(servers[0].address) as admin:
        (group,) = ClusterPoller(admin).take().groups
    assert (group.group, group.lag, group.tps, group.in_flight) == ("billing", 8, 5.0, 2)
    assert group.stuck_queues == 1
    assert group.late_ms == 300_000
    assert 299_000 <= now_ms() - (group.stuck_since_ms or 0) <= 310_000


def test_actors_are_queried_on_demand_only(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    with Admin(servers[0].address) as admin:
        overview = ClusterPoller(admin).take()
    assert all(each.actors is None for each in overview.brokers)


def test_abandoned_groups_come_after_those_with_members() -> None:
    """An incident of the night must not hide behind groups that nothing has consumed for months."""
    where = OffsetProgress(10, 7, waiting_timestamp=1)
    table = {MessageQueue("Orders", "b", 0): where}
    lists = [
        {"abandoned": [ProgressStats(table, observed_since=1, members=0)]},
        {"billing": [ProgressStats(table, observed_since=2, members=3)]},
    ]
    with FakeServer() as namesrv, FakeServer() as broker:
        cluster(namesrv, b=broker.address)
        answers(broker, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable({}))
        answers(broker, RequestCode.GET_BROKER_CONSUME_STATS, ProgressList(lists))
        with Admin(namesrv.address) as admin:
            overview = ClusterPoller(admin).take()
    assert [each.members for each in overview.groups] == [0, 3]
    first, second = overview.troubles
    assert first.startswith("billing is stuck") and second.endswith("it has no member.")


def test_a_slave_that_does_not_follow_is_named() -> None:
    behind = str((300 << 20) + 3048)
    with FakeServer() as namesrv, FakeServer() as master, FakeServer() as slave:
        broker = BrokerData("C", "b", {0: master.address, 1: slave.address})
        found = ClusterInfo({"b": broker}, {"C": ["b"]})
        answers(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, found)
        fill(master, "b")
        table = {**FIGURES, "commitLogMaxOffset": behind}
        answers(master, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable(table))
        answers(slave, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable(FIGURES))
        with Admin(namesrv.address) as admin:
            overview = ClusterPoller(admin).take()
    assert "b: the slave 1 is 300.0 MiB behind its master." in overview.troubles


def test_lag_is_queried_less_often_than_rates(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    namesrv, ours, _ = servers
    with Admin(namesrv.address) as admin:
        poller = ClusterPoller(admin)
        first = poller.take()
        ours.on(
            RequestCode.GET_BROKER_CONSUME_STATS,
            lambda command: command.answer(1, remark="asked again"),
        )
        second = poller.take()
    assert second.groups == first.groups
    assert not any("asked again" in each for each in second.troubles)
