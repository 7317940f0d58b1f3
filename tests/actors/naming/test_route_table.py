"""Tests of actors/naming/route_table.py: brokers and topics of a name server."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from actors.naming import route_table
from actors.naming.route_table import BROKER_EXPIRES_MS, RouteTable, topics_body
from protocol.bodies import QueueData
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from protocol.headers.namesrv import RegisterBrokerHeader, RegisterBrokerResponseHeader

MASTER = RegisterBrokerHeader("broker-a", "10.0.0.1:10911", "C1", "10.0.0.1:10912", 0)
SLAVE = RegisterBrokerHeader("broker-a", "10.0.0.2:10911", "C1", "10.0.0.2:10912", 1)
OTHER = RegisterBrokerHeader("broker-b", "10.0.0.3:10911", "C1", "10.0.0.3:10912", 0)


def table(*names: str, version: int = 1, perm: int = 6, queues: int = 4) -> TopicConfigTable:
    configs = {name: TopicConfig(name, queues, queues, perm) for name in names}
    return TopicConfigTable(configs, DataVersion(1000, version))


def register(
    routes: RouteTable,
    broker: RegisterBrokerHeader,
    topics: TopicConfigTable,
    *,
    peer_id: int = 1,
    now_ms: float = 0,
) -> RegisterBrokerResponseHeader:
    return routes.register(broker, topics, [], peer_id, now_ms)


def brokers_of(routes: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    route = routes.route(topic)
    return {data.broker_name: data.broker_addrs for data in route.broker_datas} if route else {}


def whole(steps: Iterator[int]) -> int:
    """Return the number of topics after the last step."""
    return [0, *steps][-1]


def test_a_master_registers_its_topics_and_a_slave_does_not() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t"))
    register(routes, SLAVE, table("t", "only-here"))
    assert brokers_of(routes, "t") == {"broker-a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}}
    assert routes.route("only-here") is None
    route = routes.route("t")
    assert route is not None
    assert route.queue_datas == [QueueData("broker-a", 4, 4, 6, 0)]


def test_topics_are_replaced_if_the_data_version_differs() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("broker-a", "t"))
    register(routes, MASTER, table("broker-a", "same-version"))
    assert routes.route("same-version") is None
    register(routes, MASTER, table("u", version=2))
    assert set(routes.topics()) == {"broker-a", "t", "u"}, "a registration never removes topics"


def test_a_slave_is_sent_its_live_masters_address() -> None:
    routes = RouteTable()
    assert register(routes, SLAVE, table()) == RegisterBrokerResponseHeader()
    assert register(routes, MASTER, table("t"), peer_id=2) == RegisterBrokerResponseHeader()
    told = register(routes, SLAVE, table())
    assert told == RegisterBrokerResponseHeader("10.0.0.1:10912", "10.0.0.1:10911")
    routes.peer_closed(2)
    assert register(routes, SLAVE, table()) == RegisterBrokerResponseHeader()


def test_topic_names_of_a_closed_connection_are_freed_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of 95 brokers took 34 ms to free in the step of the closing."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 10)
    routes = RouteTable()
    for number in range(5):
        broker = RegisterBrokerHeader(f"b{number}", f"10.0.0.{number}:1", "C1", "h:1", 0)
        register(routes, broker, table(*(f"t{each}" for each in range(10))))
    assert len(routes.peer_closed(1)) == 5
    left = []
    while routes.is_sweeping:
        left.append(len(routes._freed))
        routes.sweep_some()
    assert left[:5] == [4, 3, 2, 1, 0]
    assert routes.topics() == []


def test_a_slave_that_becomes_master_loses_its_old_id() -> None:
    routes = RouteTable()
    register(routes, SLAVE, table())
    promoted = RegisterBrokerHeader("broker-a", "10.0.0.2:10911", "C1", "10.0.0.2:10912", 0)
    register(routes, promoted, table("t"))
    assert brokers_of(routes, "t") == {"broker-a": {0: "10.0.0.2:10911"}}


def test_a_silent_broker_expires_with_its_topics() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t", "both"), now_ms=0)
    register(routes, OTHER, table("both"), now_ms=5)
    assert routes.expire(BROKER_EXPIRES_MS) == []
    assert routes.expire(BROKER_EXPIRES_MS + 1) == ["10.0.0.1:10911"]
    assert routes.topics() == ["both"]
    assert brokers_of(routes, "both") == {"broker-b": {0: "10.0.0.3:10911"}}
    assert routes.cluster_info().cluster_addr_table == {"C1": ["broker-b"]}


def test_only_the_current_connections_end_removes_a_broker() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t"), peer_id=1)
    register(routes, MASTER, table("t"), peer_id=2)
    assert routes.peer_closed(1) == []
    assert routes.peer_closed(2) == ["10.0.0.1:10911"]
    assert routes.route("t") is None
    assert routes.cluster_info().cluster_addr_table == {}


def test_removing_the_last_broker_of_a_name_removes_its_topics() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t"))
    register(routes, SLAVE, table())
    routes.unregister(MASTER.broker_address)
    assert brokers_of(routes, "t") == {"broker-a": {1: "10.0.0.2:10911"}}
    routes.unregister(SLAVE.broker_address)
    assert routes.topics() == []
    routes.unregister(SLAVE.broker_address)  # once more does no harm


def test_unregistering_removes_other_names_at_the_address() -> None:
    """Without a registration they would never expire."""
    routes = RouteTable()
    register(routes, MASTER, table("t"))
    register(routes, replace(MASTER, broker_name="before"), table("t", "u"))
    register(routes, OTHER, table("t"), peer_id=2)
    assert routes.unregister(MASTER.broker_address)
    assert brokers_of(routes, "t") == {"broker-b": {0: "10.0.0.3:10911"}}
    assert routes.topics() == ["t"] and routes.sizes() == (1, 1, 1)
    assert not routes.unregister(MASTER.broker_address)
    assert not routes.unregister("10.0.0.4:10911"), "unknown broker"


def test_a_stopping_master_does_not_remove_the_one_promoted_in_its_place() -> None:
    """The promoted one lost its topics in apache/rocketmq #5374."""
    routes = RouteTable()
    register(routes, MASTER, table("t"))
    register(routes, replace(SLAVE, broker_id=0), table("t"), peer_id=2)
    assert routes.unregister(MASTER.broker_address)
    assert brokers_of(routes, "t") == {"broker-a": {0: SLAVE.broker_address}}
    assert routes.sizes() == (1, 1, 1)


def test_a_cluster_without_brokers_is_removed() -> None:
    """4.9.7 goes on naming it in the cluster that it was in before, and mqadmin fails over that."""
    routes = RouteTable()
    register(routes, MASTER, table("t"), peer_id=1)
    register(routes, replace(MASTER, cluster_name="C2"), table("t"), peer_id=2)
    assert routes.peer_closed(2) == ["10.0.0.1:10911"]
    assert routes.cluster_info().cluster_addr_table == {}
    assert routes.system_topics() == ([], None)


def clusters(routes: RouteTable) -> dict[str, list[str]]:
    return routes.cluster_info().cluster_addr_table


def test_a_broker_that_changes_its_cluster_leaves_the_old_one() -> None:
    """4.9.7 keeps it in both; ever new ones of a stranger were all kept, however long."""
    routes = RouteTable()
    register(routes, OTHER, table("t"), peer_id=2)
    for number in range(100):
        register(routes, replace(MASTER, cluster_name=f"C{number}"), table("t"))
    assert clusters(routes) == {"C1": ["broker-b"], "C99": ["broker-a"]}
    assert routes.cluster_info().broker_addr_table["broker-a"].cluster == "C99"
    assert routes.topics_of_cluster("C99") == ["t"] and routes.topics_of_cluster("C98") == []
    assert routes.sizes() == (1, 2, 2)


def test_a_slave_in_another_cluster_does_not_move_its_master() -> None:
    routes = RouteTable()
    register(routes, replace(SLAVE, cluster_name="C2"), table())
    assert clusters(routes) == {"C2": ["broker-a"]}
    register(routes, MASTER, table("t"), peer_id=2)
    register(routes, replace(SLAVE, cluster_name="C2"), table())
    assert clusters(routes) == {"C1": ["broker-a"]}
    routes.peer_closed(2)
    register(routes, replace(SLAVE, cluster_name="C2"), table())
    assert clusters(routes) == {"C2": ["broker-a"]}


class Counted(dict[str, Any]):
    """Dictionary that counts complete iterations."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()

    def values(self) -> Any:
        self.times += 1
        return super().values()


def test_all_brokers_of_a_connection_are_removed_in_one_pass() -> None:
    """A hundred of 10,000 took 0.4 s of a handler, and each went through all topics."""
    routes = RouteTable()
    register(routes, MASTER, table("t", "stays"))
    for number in range(100):
        broker = replace(OTHER, broker_name=f"b{number}", broker_address=f"10.0.0.9:{number + 1}")
        register(routes, broker, table("t", f"own-{number}"), peer_id=2)
    routes._brokers, routes._queues = Counted(routes._brokers), Counted(routes._queues)
    assert len(routes.peer_closed(2)) == 100
    assert (routes._brokers.times, routes._queues.times) == (1, 0), "topics go by a list"
    assert brokers_of(routes, "t") == {"broker-a": {0: "10.0.0.1:10911"}}
    assert {*routes.topics()} == {"t", "stays"}
    assert routes.sizes() == (2, 1, 1)


def test_an_unchanged_data_version_keeps_a_broker_alive() -> None:
    routes = RouteTable()
    assert routes.is_changed(MASTER.broker_address, DataVersion(1000, 1))
    register(routes, MASTER, table("broker-a", "t"), now_ms=0)
    assert not routes.is_changed(MASTER.broker_address, DataVersion(1000, 1))
    assert routes.is_changed(MASTER.broker_address, DataVersion(1000, 2))
    routes.touch(MASTER.broker_address, 100)
    assert routes.expire(BROKER_EXPIRES_MS + 50) == []


def test_write_permission_stays_wiped_until_the_data_version_changes() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t", "u", perm=7))
    assert whole(routes.wipe_write_perm("broker-a")) == 2
    assert whole(routes.wipe_write_perm("broker-x")) == 0
    assert list(routes._wiped) == ["broker-a"], "any client may name a million brokers"
    assert _perm(routes, "t") == 5
    assert whole(routes.wipe_write_perm("broker-a")) == 2
    assert whole(routes.add_write_perm("broker-a")) == 2
    assert _perm(routes, "t") == 7
    assert whole(routes.wipe_write_perm("broker-a")) == 2
    register(routes, MASTER, table("t", "u", perm=7, version=2))
    assert _perm(routes, "t") == 7


def test_read_only_topics_stay_read_only_when_write_permission_is_restored() -> None:
    routes = RouteTable()
    configs = {
        topic: TopicConfig(topic, perm=perm) for topic, perm in (("both", 6), ("read-only", 4))
    }
    register(routes, MASTER, TopicConfigTable(configs, DataVersion(1000, 1)))
    assert whole(routes.add_write_perm("broker-a")) == 2
    assert (_perm(routes, "both"), _perm(routes, "read-only")) == (6, 4)
    whole(routes.wipe_write_perm("broker-a"))
    assert (_perm(routes, "both"), _perm(routes, "read-only")) == (4, 4)
    whole(routes.add_write_perm("broker-a"))
    assert (_perm(routes, "both"), _perm(routes, "read-only")) == (6, 4)


def test_a_registration_after_a_wipe_is_not_overwritten() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("t", perm=6))
    whole(routes.wipe_write_perm("broker-a"))
    register(routes, MASTER, table("t", perm=4, version=2))
    whole(routes.add_write_perm("broker-a"))
    assert _perm(routes, "t") == 4


def test_permissions_of_many_topics_change_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with 500,000 topics held a name server up for 0.4 s."""
    monkeypatch.setattr(route_table, "CHANGED_AT_ONCE", 2)
    routes = RouteTable()
    register(routes, MASTER, table("a", "b", "c", "d", "e"))
    register(routes, OTHER, table("a", "other"))
    steps = routes.wipe_write_perm("broker-a")
    assert [*routes.wipe_write_perm("broker-x")] == []
    assert next(steps) == 2 and [_perm(routes, topic) for topic in ("a", "c")] == [4, 6]
    assert [*steps] == [4, 5] and {_perm(routes, topic) for topic in "abcde"} == {4}
    assert [*routes.add_write_perm("broker-a")] == [2, 4, 5]
    assert {_perm(routes, topic) for topic in "abcde"} == {6}
    steps = routes.wipe_write_perm("broker-a")
    next(steps)
    routes.unregister(MASTER.broker_address)
    assert [*steps] == [] and not routes._wiped, "nothing is left of a broker that has gone"


def test_routes_and_brokers_for_other_threads_never_change() -> None:
    routes = RouteTable()
    routes.register(MASTER, table("t"), ["10.0.0.1:30000"], 1, 0)
    register(routes, SLAVE, table())
    route, brokers = routes.route("t"), routes.cluster_info()
    assert route is not None
    before, listed = route.encode(), brokers.encode()
    whole(routes.wipe_write_perm("broker-a"))
    register(routes, replace(MASTER, cluster_name="C99"), table("t", perm=4, version=2))
    register(routes, replace(MASTER, broker_id=7), table("t", perm=4, version=3))
    routes.unregister(SLAVE.broker_address)
    assert routes.route("t") != route and routes.cluster_info() != brokers
    assert route.encode() == before and brokers.encode() == listed


def _perm(routes: RouteTable, topic: str) -> int:
    route = routes.route(topic)
    assert route is not None
    return route.queue_datas[0].perm


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    routes = RouteTable()
    elsewhere = RegisterBrokerHeader("broker-z", "10.0.0.9:10911", "C2", "10.0.0.9:10912", 0)
    register(routes, MASTER, table("t", "u"))
    register(routes, elsewhere, table("t", "u"), peer_id=2)
    routes.delete_topic("t", "C1")
    assert brokers_of(routes, "t") == {"broker-z": {0: "10.0.0.9:10911"}}
    routes.delete_topic("u")
    assert routes.topics() == ["t"]
    assert (routes.topics_of_cluster("C1"), routes.topics_of_cluster("C2")) == ([], ["t"])
    assert routes.topics_of_cluster("none") == []


def test_cluster_and_broker_names_are_topics() -> None:
    routes = RouteTable()
    assert routes.system_topics() == ([], None)
    register(routes, MASTER, table("t"))
    assert routes.system_topics() == (["C1", "broker-a"], "10.0.0.1:10911")


def test_registered_filter_servers_are_part_of_the_route() -> None:
    routes = RouteTable()
    routes.register(MASTER, table("t"), ["f:1"], 1, 0)
    route = routes.route("t")
    assert route is not None and route.filter_server_table == {"10.0.0.1:10911": ["f:1"]}
    routes.register(MASTER, table("t"), None, 1, 0)
    assert route.filter_server_table == {"10.0.0.1:10911": ["f:1"]}
    routes.register(MASTER, table("t"), [], 1, 0)
    route = routes.route("t")
    assert route is not None and route.filter_server_table == {}


def test_a_broker_leaves_a_large_table_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a broker with 500,000 topics held a name server up for 0.3 s."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 2)
    routes, names = RouteTable(), [f"t{number}" for number in range(9)]
    register(routes, OTHER, table("t1", "both"))
    register(routes, MASTER, table(*names, "both"))
    assert routes.unregister(MASTER.broker_address) and routes.is_sweeping
    assert len(routes.topics()) == 10
    assert routes.route("t8") is None, "clients are not told of it"
    assert brokers_of(routes, "both") == {"broker-b": {0: OTHER.broker_address}}
    route = routes.route("both")
    assert route is not None and len(route.queue_datas) == 1
    steps = 0
    while routes.is_sweeping:
        routes.sweep_some()
        steps += 1
    assert steps >= 3 and {*routes.topics()} == {"t1", "both"} and routes.sizes() == (2, 1, 1)
    assert routes._queues_count == 2


def test_many_brokers_of_the_same_topics_leave_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """95 brokers of a connection with 40,000 topics held a name server up for 0.5 s."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 20)
    routes, names = RouteTable(), [f"t{number}" for number in range(9)]
    for number in range(20):
        broker = replace(OTHER, broker_name=f"b{number}", broker_address=f"10.0.0.9:{number + 1}")
        register(routes, broker, table(*names))
    routes.peer_closed(1)
    steps = 0
    while routes.is_sweeping:
        before = routes.queues_count
        routes.sweep_some()
        assert before - routes.queues_count <= 20, "a topic at a time"
        steps += 1
    assert steps >= 8 and routes.topics() == []


@pytest.mark.parametrize("ends", [0, 1, 2])
def test_a_broker_that_comes_back_while_it_is_removed_has_its_new_topics(
    ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 2)
    routes, names = RouteTable(), [f"t{number}" for number in range(9)]
    register(routes, OTHER, table("a", "b", "c"))
    register(routes, MASTER, table(*names))
    for _ in range(ends + 1):
        routes.unregister(MASTER.broker_address)
        register(routes, MASTER, table("t7", "new"))
    routes.unregister(OTHER.broker_address)
    while routes.is_sweeping:
        routes.sweep_some()
    assert {*routes.topics()} == {"t7", "new"} and routes._queues_count == 2
    assert brokers_of(routes, "t7") == {"broker-a": {0: MASTER.broker_address}}


def test_names_are_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "BODY_NAMES_AT_ONCE", 2)
    for names in ([], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", 'c"', "d"], ["a", "\n", "c"]):
        assert TopicList.decode(topics_body(names)).topic_list == names
