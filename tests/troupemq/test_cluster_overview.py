"""Tests of troupemq/cluster_overview.py: what a cluster looks like, with official brokers in it."""

from collections.abc import Iterator

import pytest

from protocol.bodies import BrokerData, ClusterInfo, KVTable, MessageQueue
from protocol.bodies_admin import ConsumeStatsBody, ConsumeStatsList, OffsetWrapper
from protocol.bodies_own import ActorLine, ActorList
from protocol.codes import RequestCode
from protocol.json_body import Body
from tests.troupemq.fake_server import FakeServer
from troupemq.client.admin import Admin
from troupemq.cluster_overview import ClusterPoller, GroupFigures

GONE = "127.0.0.1:1"
FIGURES = {
    "brokerVersionDesc": "V4_9_7",
    "putTps": "12.5 3.0 1.0",
    "getTransferedTps": "7.0 2.0 1.0",
    "sendThreadPoolQueueSize": "4",
    "commitLogDiskRatio": "0.87",
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


def fill(server: FakeServer, name: str) -> None:
    """An official broker with a group that is three messages behind in one of two queues."""
    answers(server, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable(FIGURES))
    table = {
        MessageQueue("Orders", name, 0): OffsetWrapper(10, 7, 5000),
        MessageQueue("Orders", name, 1): OffsetWrapper(4, 4, 1000),
        MessageQueue("%RETRY%billing", name, 0): OffsetWrapper(9, 0, 0),
    }
    stats = ConsumeStatsList([{"billing": [ConsumeStatsBody(table, 2.5)]}, {"idle": []}])
    answers(server, RequestCode.GET_BROKER_CONSUME_STATS, stats)
    server.on(RequestCode.GET_ACTORS, lambda command: command.answer(3, remark="what?"))


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer, FakeServer]]:
    """A name server, a broker of ours, an official one."""
    with FakeServer() as namesrv, FakeServer() as ours, FakeServer() as official:
        cluster(namesrv, ours=ours.address, official=official.address, dead=GONE)
        fill(ours, "ours")
        fill(official, "official")
        lines = [ActorLine("idle", True, 0, 9, 0), ActorLine("pull_hold", False, 3, 9, 1)]
        answers(ours, RequestCode.GET_ACTORS, ActorList(lines, 2))
        yield namesrv, ours, official


def test_all_brokers_are_listed_and_an_unreachable_one_is_named(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    with Admin(servers[0].address) as admin:
        overview = ClusterPoller(admin).take()
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


def test_lag_is_summed_over_brokers_without_retries(
    servers: tuple[FakeServer, FakeServer, FakeServer],
) -> None:
    with Admin(servers[0].address) as admin:
        (group,) = ClusterPoller(admin).take().worst_groups()
    assert (group.group, group.topic, group.lag, group.tps) == ("billing", "Orders", 6, 5.0)
    assert group.late_s(now_ms=65_000) == 60.0, "of the queue that is behind"
    assert GroupFigures("g", "t").late_s(1e9) is None


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
