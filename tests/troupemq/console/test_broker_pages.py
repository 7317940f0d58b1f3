"""Pages of TroupeMQ and RocketMQ brokers: actors, store, damage, settings with meanings."""

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.bodies import BrokerData, ClusterInfo
from protocol.bodies_admin import ConsumeStatsList
from protocol.bodies_own import ActorLine, ActorList
from protocol.bodies_tables import KVTable, SubscriptionGroupTable, TopicConfigTable
from protocol.codes import RequestCode
from storage.log.damage import Damage
from tests.troupemq.console.conftest import MakeVisit, Visit
from tests.troupemq.fake_server import FakeServer
from troupemq.servers import Servers

OURS_ALONE = (
    RequestCode.GET_ACTORS,
    RequestCode.GET_STORE_STATE,
    RequestCode.GET_OPEN_TRANSACTIONS,
    RequestCode.GET_JOBS,
)


def address_of(visit: Visit) -> str:
    return visit.console.watch.newest().brokers[0].place.address


def test_a_troupemq_broker_shows_actors_store_and_settings_with_their_meaning(live: Visit) -> None:
    found = live.json("/broker", address=address_of(live))
    actors = {row["actor"]: row for row in found["actors"]}
    assert actors["put_message"]["state"] == "up" and actors["put_message"]["inbox"] == 0
    assert "The inboxes of" in found["loop"][0]["text"]
    assert found["store"]["log_files"] >= 1 and found["store"]["not_dispatched"] == 0
    assert found["damage"][0]["text"] == "No damage is known."
    settings = {row["setting"]: row for row in found["settings"]}
    reserved = settings["fileReservedTime"]
    assert (reserved["default"], reserved["holds"]) == ("72", "at once")
    assert reserved["in_words"] == "3 days"
    assert settings["listenPort"]["holds"] == "after a restart"
    assert "TroupeMQ" not in str(reserved["means"]) and len(str(reserved["means"])) > 10
    assert [name for name, row in settings.items() if not row["means"] and row["default"]] == []


def test_a_broker_is_shown_in_tabs_and_a_program_gets_all_of_them(live: Visit) -> None:
    address = address_of(live)
    marks = {
        "health": 'id="damage"',
        "traffic": 'id="rates"',
        "store": 'id="store"',
        "settings": 'id="settings"',
        "actors": 'id="actors"',
    }
    for tab in marks:
        page = live.get("/broker", address=address, tab=tab).text
        assert [each for each, mark in marks.items() if mark in page] == [tab]
    assert 'id="damage"' in live.get("/broker", address=address).text
    assert 'id="settings"' in live.get("/broker", address=address, filter="flush").text
    assert live.get("/broker", address=address, tab="nothing").status_code == 200
    whole = live.json("/broker", address=address)
    assert whole.keys() >= {"broker", "damage", "store", "settings", "actors", "loop", "figures"}
    assert "settings" not in live.json("/broker", address=address, tab="store")
    assert {row["rate"] for row in whole["rates"]} >= {"messages in", "messages out"}


def test_actors_are_folded_unless_one_is_unwell(
    live: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, address = live.console.cluster.session, address_of(live)
    read, folded = session.read, '<details id="fold_actors">'
    assert folded in live.get("/broker", address=address, tab="actors").text
    lines = [ActorLine("reput", True, 0, 9, 0), ActorLine("put_message", False, 7, 9, 2)]

    def with_trouble(kind: type[Any], *given: Any, **more: Any) -> Any:
        return ActorList(lines) if kind is ActorList else read(kind, *given, **more)

    monkeypatch.setattr(session, "read", with_trouble)
    page = live.get("/broker", address=address, tab="actors").text
    assert folded not in page and "Actors with problems" in page
    found = live.json("/broker", address=address, tab="health")
    assert [row["actor"] for row in found["unwell"]] == ["put_message"]
    assert "restarted 2 times" in found["actor_problems"][0]["text"]


def test_settings_are_found_by_name_meaning_and_change(live: Visit) -> None:
    def names(**query: str) -> list[str]:
        rows = live.json("/broker", address=address_of(live), **query)["settings"]
        return [row["setting"] for row in rows]

    assert "fileReservedTime" in names(filter="RESERVED")
    assert "flushDiskType" in names(filter="disk") and "brokerName" not in names(filter="disk")
    changed = names(which="changed")
    assert "mappedFileSizeCommitLog" in changed and "maxMessageSize" not in changed
    assert "listenPort" not in names(which="live") and "maxMessageSize" in names(which="live")


def test_known_damage_is_shown_by_offset(live: Visit, servers: Servers) -> None:
    assert servers.broker is not None
    damage: Damage = servers.broker.broker.store.damage
    damage.add(7, 19, "its CRC is wrong")
    try:
        live.console.watch.forget()
        found = live.json("/broker", address=address_of(live))
        assert found["damaged_places"][0]["why"] == "its CRC is wrong"
        assert found["damage"][0]["text"].startswith(
            "The commit log is damaged at 1 place, 12 bytes"
        )
        assert "damage at 1 place" in live.json("/")["findings"][0]["text"]
        address = address_of(live)
        reports = live.console.cluster.ask(lambda admin: admin.store_reports(broker=address))
        assert reports.found[0].damage == ("7 to 19: its CRC is wrong",) and reports.failures
    finally:
        damage.forget_from(0)
        live.console.watch.forget()


@pytest.fixture
def official(visit_to: MakeVisit) -> Iterator[Visit]:
    """Client of a broker without TroupeMQ requests and with its own settings."""
    with FakeServer() as namesrv, FakeServer() as broker:
        info = ClusterInfo(
            {"b": BrokerData("C", "b", {0: broker.address, 1: "127.0.0.1:1"})}, {"C": ["b"]}
        )
        namesrv.on(
            RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=info.encode())
        )
        figures = KVTable(
            {
                "commitLogMinOffset": "0",
                "commitLogMaxOffset": "2048",
                "dispatchBehindBytes": "5",
                "commitLogDirCapacity": "Total : 1.0 GiB, Free : 1.0 GiB.",
            }
        )
        broker.on(
            RequestCode.GET_BROKER_RUNTIME_INFO,
            lambda command: command.answer(body=figures.encode()),
        )
        settings = b"fileReservedTime=48\nrocketmqHome=/opt/rocketmq\naclEnable=false\n"
        broker.on(RequestCode.GET_BROKER_CONFIG, lambda command: command.answer(body=settings))
        empty = {
            RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable(),
            RequestCode.GET_BROKER_CONSUME_STATS: ConsumeStatsList(),
        }
        for code, body in empty.items():
            broker.on(code, lambda command, body=body: command.answer(body=body.encode()))  # type: ignore[misc]
        for code in OURS_ALONE:
            broker.on(code, lambda command: command.answer(3, remark="not supported"))
        yield visit_to(namesrv=namesrv.address)


def test_a_rocketmq_broker_shows_its_data_and_names_missing_figures(official: Visit) -> None:
    found = official.json(
        "/broker", address=official.console.watch.newest().brokers[0].place.address
    )
    assert "RocketMQ broker" in found["actors_missing"][0]["text"]
    assert "do not look for it" in found["damage"][0]["text"]
    assert found["store"]["log_size"] == 2048 and found["store"]["not_dispatched"] == 5
    settings = {row["setting"]: row for row in found["settings"]}
    assert settings["fileReservedTime"]["means"] and settings["fileReservedTime"]["holds"] is None
    assert settings["rocketmqHome"]["means"] is None
    assert [row["broker"] for row in found["family"]] == ["master", "slave 1"]


def test_a_broker_without_access_control_is_not_asked_for_accounts(official: Visit) -> None:
    """RocketMQ brokers send no answer to that, and would count as down afterwards."""
    found = official.json("/access")
    assert "no access control" in found["off"][0]["text"] and "accounts" not in found
