"""Rules for every page and every change, new ones included.

Lists come from the snapshot, missing servers are named, and changes show their command line.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import click
import pytest

from protocol.bodies_own import Jobs
from protocol.bodies_tables import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.message import body_crc
from protocol.timers import RecallHandle
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tests.compat.patience import wait_until
from tests.troupemq.console.conftest import GONE, Visit, queries
from tests.troupemq.fake_server import FakeServer
from troupemq import Message, Producer, PullConsumer
from troupemq.cli import cli
from troupemq.cli.options import HELP_OPTIONS
from troupemq.client.admin import Admin
from troupemq.client.admin.groups import GroupSettings
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import SendResult
from troupemq.console import reading
from troupemq.console.asking import PLACES, PageRequest
from troupemq.console.changes import CHANGES, ConsoleChange
from troupemq.console.rendering import MENU
from troupemq.servers import Servers

OWN = {"/users", "/audit"}
"""Pages of the console itself, which ask no broker."""

ENTRIES = [each for some in MENU.values() for each in some]
LOOKED_FOR = {"/messages", "/trace", "/access", "/delays", "/alerts", *OWN}
"""Menu entries that are not lists of a snapshot."""

OF_ONE_PLACE = {"/client", "/job", "/jobs/history", "/history"}
"""Pages of one broker, one member, or the past."""

NOTHING = {"/transactions", "/delays", "/jobs", "/group/members", "/access", "/dead-letters"}
"""Their tables are empty in this cluster."""

SAYS = {"missing", "agreement"}
"""JSON keys that name missing servers, besides NAME_failures."""

OWN_CHANGES = {
    *("user", "remove-user", "token", "remove-token"),
    *("password", "alert-trial", "thresholds"),
}
"""Changes of the console itself, which have no command."""

DEAD = DLQ_TOPIC_PREFIX + "reader"
MESSAGE_ID = "7F00000100002A9F0000000000000000"


@pytest.fixture(scope="module")
def sent(servers: Servers) -> Iterator[SendResult]:
    """One message, and the group reader, which is behind."""
    namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
    with Producer("shop", namesrv) as producer:
        result = producer.send(Message("Orders", b"{}", keys="the-key"))
    with PullConsumer("reader", namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET) as late:
        late.commit(dict.fromkeys(late.fetch_queues("Orders"), 0))
    with Admin(namesrv) as admin:
        assert not admin.update_group(GroupSettings(group_name="reader")).failures
        assert not admin.update_topic(DEAD, 1).failures
        wait_until(lambda: len(admin.group_progress("reader")) > 0, "its offsets")
    yield result


def register(visit: Visit, address: str) -> None:
    """A second broker that has the same topics."""
    names = ("Orders", RETRY_TOPIC_PREFIX + "reader", DEAD)
    table = TopicConfigTable({name: TopicConfig(name, 1, 1, 6) for name in names})
    body = RegisterBrokerBody(table).encode()
    crc = body_crc(body)
    header = RegisterBrokerHeader("broker-b", address, "DefaultCluster", address, 0, False, crc)
    command = RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body=body)
    session = visit.console.cluster.session
    assert session.call(visit.console.cluster.namesrv, command, 5000.0).code == 0
    visit.console.watch.forget()


def test_every_page_has_its_place_in_the_menu() -> None:
    assert sorted(path for each in ENTRIES for path in (each.path, *each.pages)) == sorted(PLACES)


@pytest.mark.parametrize("path", [each.path for each in ENTRIES if each.path not in LOOKED_FOR])
def test_a_list_is_rendered_from_the_snapshot_only(
    live: Visit, sent: SendResult, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows it has, no broker is asked for one of them."""
    now = live.console.watch.newest()
    monkeypatch.setattr(live.console.watch, "newest", lambda: now)
    asked: list[object] = []
    remoting = live.console.cluster.session._client.remoting
    for name in ("call", "call_async"):
        monkeypatch.setattr(remoting, name, lambda *given: asked.append(given))
    assert live.get(path).status_code == 200
    assert live.get(f"/api{path}").json()["taken_ms"] == now.taken_ms
    assert asked == []


@pytest.mark.parametrize("path", sorted(PLACES.keys() - OWN - OF_ONE_PLACE))
def test_a_page_names_missing_brokers_and_shows_the_rest(
    live: Visit, sent: SendResult, path: str
) -> None:
    whole = live.console.watch.newest()
    address = next(each.place.address for each in whole.brokers if each.place.name == "broker-a")
    register(live, GONE)
    query = queries(address, "reader", sent, "the-key").get(path, {})
    page, program = live.get(path, **query), live.get(f"/api{path}", **query)
    assert (page.status_code, program.status_code) == (200, 200), page.text
    assert GONE in page.text, "it is not named"
    found = program.json()
    said = [str(value) for key, value in found.items() if key in SAYS or "_failures" in key]
    assert any(GONE in each for each in said), found
    tables = [value for key, value in found.items() if isinstance(value, list) and key not in SAYS]
    assert any(tables) or path in NOTHING, found


def test_messages_of_other_brokers_are_shown_beside_a_hanging_one(
    live: Visit, sent: SendResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that hangs uses its share of the deadline only."""
    monkeypatch.setattr(reading, "ENDS_S", 0.2)
    with FakeServer() as silent:
        register(live, silent.address)
        for query in ({}, {"text": "{"}):
            found = live.json("/messages", topic="Orders", **query)
            assert silent.address in str(found["messages_failures"])
            assert sent.message_id in {row["message"] for row in found["messages"]}
        register(live, GONE)


def fields(change: ConsoleChange, asked: PageRequest, broker: str) -> dict[str, str]:
    """Something that fits into each field of its form."""
    known = {
        "id": MESSAGE_ID,
        "ids": MESSAGE_ID,
        "address": broker,
        "broker": broker,
        "key": "transactionCheckMax",
    }
    known |= {"topic": "Orders", "group": "reader", "from_group": "reader"}
    known["handle"] = RecallHandle("Orders", "broker-a", 1_700_000_000_000, "ID").encode()
    known |= {"job": "archive", "account": "somebody-new"}
    kinds = {"number": "1", "time": "2020-01-01T00:00", "secret": "a-long-secret"}
    given = {}
    for each in change.inputs(asked):
        text = each.choices[0] if each.choices else kinds.get(each.kind, "some")
        given[each.name] = each.value or known.get(each.name, text)
    return given


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_shows_its_command_line(
    live: Visit, sent: SendResult, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is equal in page and JSON, and the command line accepts it."""
    change = CHANGES[name]
    if name in OWN_CHANGES:
        assert change.words is None
        return
    viewer = live.console.accounts.viewer_of("visitor")
    assert viewer is not None and change.words is not None
    now = live.console.watch.newest()
    broker = now.brokers[0].place.address
    with_job = replace(now, jobs={broker: Jobs(["archive"], [])})
    monkeypatch.setattr(live.console.watch, "newest", lambda: with_job)
    given = fields(change, PageRequest(live.console, viewer, {}), broker)
    page = unescape(live.preview(name, **given).text)
    program = live.client.post(
        f"/api/change/{name}", json={"given": given}, headers={"X-CSRF-Token": live.csrf}
    )
    line = program.json()["line"]
    assert line in page and "Equal command line" in page
    program_name, *words = shlex.split(line)
    assert program_name == "troupemq"
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        word = words.pop(0)
        found = command.get_command(context, word)
        assert found is not None, line
        command = found
    with command.make_context(word, words, **HELP_OPTIONS):
        pass
    for each in live.console.audit.newest(9):
        assert each["what"] == "login", "a preview changes nothing"
