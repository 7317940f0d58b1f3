"""Tests of actors/naming/topic_intake.py: a partial registration is not the whole table."""

import pytest

from actors.naming import route_table
from actors.naming.route_table import RouteTable
from protocol.bodies_tables import DataVersion
from tests.actors.naming.test_route_table import MASTER, SLAVE, register, table, whole

ADDRESS = MASTER.broker_address
WHOLE = ("A", "B", "C", "D", "E", "broker-a")


def asks_for_more(routes: RouteTable, version: int) -> bool:
    return routes.is_changed(ADDRESS, DataVersion(1000, version))


def test_a_single_topic_after_a_restart_is_not_taken_for_the_whole_table() -> None:
    """The topics A to E were missing for good."""
    routes = RouteTable()
    register(routes, MASTER, table("F", version=7))
    assert asks_for_more(routes, 7), "a broker with forceRegister=false would not come again"
    register(routes, MASTER, table(*WHOLE, "F", version=7))
    assert {*routes.topics()} == {*WHOLE, "F"}
    assert not asks_for_more(routes, 7)


def test_a_whole_table_is_recognized_by_its_broker_name_or_repetition() -> None:
    routes = RouteTable()
    register(routes, MASTER, table("A", "B"))
    assert asks_for_more(routes, 1)
    register(routes, MASTER, table("A", "B"))
    assert not asks_for_more(routes, 1)
    register(routes, MASTER, table(*WHOLE, version=2))
    assert not asks_for_more(routes, 2)


def test_two_concurrent_updates_with_one_version_are_both_stored() -> None:
    """Brokers read the version when they register, not when they change the topic."""
    routes = RouteTable()
    register(routes, MASTER, table(*WHOLE, version=5))
    register(routes, MASTER, table("F", version=7))
    register(routes, MASTER, table("G", version=7))
    assert {*routes.topics()} == {*WHOLE, "F", "G"}
    assert asks_for_more(routes, 7)


def test_a_lost_change_arrives_with_the_next_whole_table() -> None:
    routes = RouteTable()
    register(routes, MASTER, table(*WHOLE, version=5))
    register(routes, MASTER, table("F", version=7))  # version 6 had changed A
    register(routes, MASTER, table(*WHOLE, "F", version=7, queues=9))
    route = routes.route("A")
    assert route is not None and route.queue_datas[0].read_queue_nums == 9


def test_a_grown_table_without_a_new_version_is_stored() -> None:
    routes = RouteTable()
    register(routes, MASTER, table(*WHOLE, version=1))
    register(routes, MASTER, table("F", version=2))
    assert not asks_for_more(routes, 2), "one topic, and the version that follows"
    register(routes, MASTER, table(*WHOLE, "F", version=2))
    register(routes, MASTER, table(*WHOLE, "F", "G", version=2))
    assert "G" in routes.topics()


@pytest.mark.parametrize("versions", [(1, 1), (1, 2)])
def test_write_permission_stays_wiped_without_a_new_version(versions: tuple[int, int]) -> None:
    routes = RouteTable()
    register(routes, MASTER, table(*WHOLE, version=1))
    whole(routes.wipe_write_perm("broker-a"))
    if versions[1] == 2:
        register(routes, MASTER, table("F", version=2))
    register(routes, MASTER, table(*WHOLE, version=versions[1]))
    route = routes.route("A")
    assert route is not None and route.queue_datas[0].perm == 4


def test_topics_refused_by_the_limit_are_stored_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = RouteTable()
    monkeypatch.setattr(route_table, "TOPICS_MAX", 3)
    for _ in range(2):
        register(routes, MASTER, table(*WHOLE))
        assert len(routes.topics()) == 3 and asks_for_more(routes, 1)
    monkeypatch.setattr(route_table, "TOPICS_MAX", 10)
    register(routes, MASTER, table(*WHOLE))
    assert {*routes.topics()} == {*WHOLE} and not asks_for_more(routes, 1)


def test_a_slave_is_not_asked_for_topics() -> None:
    routes = RouteTable()
    register(routes, SLAVE, table("A"))
    assert not routes.is_changed(SLAVE.broker_address, DataVersion(1000, 1))
