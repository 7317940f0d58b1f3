"""Consoles for tests: one without a reachable cluster, and one of a broker in this process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from actors.config import parse_broker_config, parse_namesrv_config
from tests.compat.patience import wait_until
from troupemq.cli.servers import SMALL_FILES
from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError
from troupemq.client.message import SendResult
from troupemq.console import accounts as accounts_module
from troupemq.console.accounts import Accounts
from troupemq.console.app import Application
from troupemq.console.asking import Console, ConsoleSettings
from troupemq.console.sessions import Sessions
from troupemq.servers import Servers

GONE = "127.0.0.1:1"
HERE = "http://localhost"


CHEAP = {"n": 2, "r": 8, "p": 1}
"""Cheap parameters of scrypt; test_accounts.py checks the real ones."""


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_module, "SCRYPT", CHEAP)


@dataclass
class Visit:
    """HTTP client that behaves like a browser."""

    client: TestClient
    console: Console

    def log_in(self, name: str, password: str, following: str = "/") -> Response:
        form = {"name": name, "password": password, "next": following}
        return self.client.post("/login", data=form, follow_redirects=False)

    def get(self, path: str, **query: object) -> Response:
        return self.client.get(path, params={key: str(value) for key, value in query.items()})

    def json(self, path: str, **query: object) -> dict[str, Any]:
        answer = self.get(f"/api{path}", **query)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    @property
    def csrf(self) -> str:
        """Return the form token of the current session."""
        sessions: Sessions = self.console.sessions
        found = sessions.find(self.client.cookies.get("troupemq_console") or "")
        assert found is not None
        return found.csrf

    def change(self, name: str, /, **given: str) -> Response:
        """Send the form of a change, and carry it out."""
        return self.post(name, {**given, "step": "do"})

    def preview(self, name: str, /, **given: str) -> Response:
        """Send the form of a change for its preview."""
        return self.post(name, given)

    def post(self, name: str, given: dict[str, str]) -> Response:
        return self.client.post(f"/change/{name}", data={**given, "csrf": self.csrf})


MakeVisit = Callable[..., Visit]
Query = dict[str, object]


def place_of(result: SendResult) -> Query:
    """Return queue and offset of a message as the query of its page."""
    queue = result.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": result.queue_offset,
    }


def queries(broker: str, group: str, message: SendResult, key: str) -> dict[str, Query]:
    """Return the queries of pages about one object; add new pages of that kind here."""
    return {
        "/broker": {"address": broker},
        "/topic": {"name": message.queue.topic},
        "/group": {"name": group},
        "/group/members": {"name": group},
        "/client": {"group": group, "client": "nobody"},
        "/producers": {"topic": message.queue.topic, "group": "shop"},
        "/messages": {"topic": message.queue.topic, "key": key},
        "/tail": {"topic": message.queue.topic},
        "/message": place_of(message),
        "/message/life": place_of(message),
        "/trace": {"id": message.message_id, "trace_topic": message.queue.topic},
        "/dead-letters/group": {"name": group},
        "/jobs/history": {"job": "archive"},
        "/job": {"broker": broker, "run": "x"},
    }


@pytest.fixture
def visit_to(tmp_path: Path) -> Iterator[MakeVisit]:
    """Return a function that creates a console and a client logged in with a role."""
    opened: list[Visit] = []

    def make(role: str | None = "admin", **settings: object) -> Visit:
        made = ConsoleSettings(**{"data": tmp_path, "namesrv": GONE, **settings})  # type: ignore[arg-type]
        console = Console(made)
        visit = Visit(TestClient(Application(console).make(), base_url=HERE), console)
        opened.append(visit)
        if role is not None:
            password = console.accounts.new_password("visitor", role)
            assert visit.log_in("visitor", password).status_code == 303
        return visit

    yield make
    for visit in opened:
        visit.client.close()
        visit.console.cluster.close()
        visit.console.audit.close()


@pytest.fixture
def visit(visit_to: MakeVisit) -> Visit:
    """Client of an admin, without a reachable cluster."""
    return visit_to()


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path / "accounts.json")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Name server and registered broker in this process."""
    folder = tmp_path_factory.mktemp("servers")
    servers = Servers(lambda reason: None)
    paths = {
        "kvConfigPath": str(folder / "kvConfig.json"),
        "configStorePath": str(folder / "namesrv.properties"),
    }
    here = {"listenPort": "0", "bindAddress": "127.0.0.1"}
    servers.start_namesrv(parse_namesrv_config("", {**here, **paths})[0])
    settings = {
        **here,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{servers.ports['namesrv']}",
        "storePathRootDir": str(folder / "store"),
        "traceTopicEnable": "true",
        **SMALL_FILES,
    }
    broker, store, _ = parse_broker_config("", settings)
    servers.start_broker(broker, store)
    with Admin(settings["namesrvAddr"]) as admin:
        wait_until(lambda: _is_made(admin), "the broker to register")
    yield servers
    assert servers.stop(20.0)


def _is_made(admin: Admin) -> bool:
    try:
        admin.create_topic("Orders", 2)
        return len(admin.queues("Orders")) == 2
    except ClientError:
        return False


@pytest.fixture
def live(visit_to: MakeVisit, servers: Servers) -> Visit:
    """Client of an admin, with a running cluster."""
    return visit_to(namesrv=f"127.0.0.1:{servers.ports['namesrv']}")
