"""Input is checked before the console signs it, and only listed servers are asked."""

import ast
from pathlib import Path
from queue import Empty

import pytest

from protocol.bodies import ClusterInfo
from protocol.bodies_own import JobRun, Jobs
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.host import pack_host
from protocol.message_id import offset_message_id
from tests.troupemq.console.conftest import MakeVisit, Visit
from tests.troupemq.fake_server import FakeServer
from troupemq.client.admin import Admin
from troupemq.client.errors import RouteNotFound
from troupemq.console import pages
from troupemq.console.asking import PageRequest
from troupemq.console.changes import CHANGES
from troupemq.console.given import RULES, anything

EVIL = "evil-account\x01true\x01evil-secret"
FREE = {"body", "arguments", "text", "filter"}
"""Fields of changes that are contents, not names."""


def silent(server: FakeServer) -> bool:
    """Return whether the server received nothing."""
    try:
        server.received.get_nowait()
    except Empty:
        return server.connected.empty()
    return False


def id_at(address: str) -> str:
    host, _, port = address.partition(":")
    return offset_message_id(pack_host(host, int(port)), 0)


def test_no_request_is_signed_for_an_unlisted_server(
    live: Visit,
) -> None:
    """Regression: such a request was replayed under another code and created an admin."""
    with FakeServer() as stranger:
        address = stranger.address
        given = {
            "job-cancel": {"broker": address, "run": "evil-accounttrueevil-secret"},
            "job-run": {"broker": address, "job": "archive"},
            "setting": {"address": address, "key": "transactionCheckMax", "value": "9"},
            "resume": {"address": address, "id": id_at(address)},
            "resend": {"id": id_at(address)},
            "consume-again": {"id": id_at(address), "group": "g", "client": "c"},
            "redrive-one": {"id": id_at(address), "group": "g"},
            "redrive-some": {"ids": id_at(address), "group": "g"},
            "discard": {"ids": id_at(address), "group": "g"},
        }
        for name, fields in given.items():
            answer = live.client.post(
                f"/api/change/{name}",
                json={"given": fields, "do": True},
                headers={"X-CSRF-Token": live.csrf},
            )
            assert answer.status_code == 409 and answer.json()["failures"], name
        for path, query in {
            "/api/producers": {"broker": address},
            "/api/broker": {"address": address},
            "/api/job": {"broker": address, "run": "archive-1"},
        }.items():
            assert live.get(path, **query).status_code == 404, path
        assert "no name server lists" in live.get("/api/messages", id=id_at(address)).text
        assert silent(stranger)


def test_the_console_connects_only_to_listed_servers(live: Visit) -> None:
    """This holds for any cause: a redirect, or a page without checks."""
    session = live.console.cluster.session
    with FakeServer() as stranger, pytest.raises(RouteNotFound, match="no name server lists it"):
        session.ask(stranger.address, Code.GET_BROKER_CONFIG)
    with FakeServer() as stranger:
        (found,) = session.ask_all([stranger.address], Code.GET_BROKER_CONFIG).values()
        assert isinstance(found, RouteNotFound)
        with pytest.raises(RouteNotFound):
            session._client.remoting.ask(
                stranger.address, RemotingCommand(Code.GET_BROKER_CONFIG), 1000.0
            )
        assert silent(stranger)


def test_a_message_id_cannot_lead_to_an_unlisted_server(live: Visit) -> None:
    """This holds for commands and applications, too, because ids come from anywhere."""
    with FakeServer() as stranger, Admin(live.console.cluster.namesrv) as admin:
        with pytest.raises(RouteNotFound, match="no name server lists a broker there"):
            admin.view_message(id_at(stranger.address))
        assert silent(stranger)


def test_a_broker_listed_by_host_name_is_found_by_an_ids_address(
    live: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(live.console.cluster.namesrv) as admin:
        info = admin.cluster_info()
        (broker,) = info.broker_addr_table.values()
        port = broker.broker_addrs[0].rpartition(":")[2]
        broker.broker_addrs[0] = f"localhost:{port}"

        async def listed() -> ClusterInfo:
            return info

        monkeypatch.setattr(admin._flows, "cluster_info", listed)
        assert admin.listed(f"127.0.0.1:{port}") == (broker.broker_name, f"localhost:{port}")
        with pytest.raises(RouteNotFound):
            admin.listed(f"127.0.0.2:{port}")


def test_only_known_runs_can_be_cancelled(live: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    now = live.console.watch.newest()
    broker = now.brokers[0].place.address
    now.jobs = {broker: Jobs(["archive"], [JobRun("archive-1", "archive", "running")])}
    monkeypatch.setattr(live.console.watch, "newest", lambda: now)
    asked: list[object] = []
    session = live.console.cluster.session
    monkeypatch.setattr(session, "ask", lambda *given, **more: asked.append(given))
    page = live.change("job-cancel", broker=broker, run="evil-accounttrueevil-secret").text
    assert "run evil-accounttrueevil-secret not found" in page and not asked
    assert "is being cancelled" in live.change("job-cancel", broker=broker, run="archive-1").text
    assert len(asked) == 1


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_fields_of_changes_refuse_control_characters(live: Visit, name: str) -> None:
    change = CHANGES[name]
    viewer = live.console.accounts.viewer_of("visitor")
    assert viewer is not None
    asked = PageRequest(live.console, viewer, {})
    for each in change.inputs(asked):
        if each.name in FREE or each.kind == "secret":
            continue
        given = {**{other.name: "" for other in change.inputs(asked)}, each.name: EVIL}
        faults = change.faults(asked, given, is_meant=True)
        assert any(each.label in fault or each.name in fault for fault in faults), each.name


def test_every_page_parameter_is_validated(visit_to: MakeVisit) -> None:
    """Each has a rule; names and ids are refused before anything is asked."""
    names = set()
    for path in Path(pages.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "asked"
                and node.func.attr in ("text", "needed", "number", "time_ms")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                names.add(str(node.args[0].value))
    assert len(names) > 15 and names <= RULES.keys()
    visit = visit_to()
    for place, query in {
        "/topic": "name",
        "/group": "name",
        "/group/members": "name",
        "/dead-letters/group": "name",
        "/dead-letters/export": "name",
        "/producers": "broker",
        "/broker": "address",
        "/job": "broker",
        "/messages": "id",
        "/message": "topic",
        "/message/life": "topic",
        "/tail": "topic",
        "/trace": "id",
        "/client": "group",
        "/jobs/history": "job",
    }.items():
        for where in (place, f"/api{place}"):
            answer = visit.get(where, **{query: EVIL})
            assert answer.status_code == 400, (where, answer.text)
    free = {name for name, rule in RULES.items() if rule is anything}
    assert not free & {"topic", "group", "id", "key", "run", "job", "broker", "client", "name"}
