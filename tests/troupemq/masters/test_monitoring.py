"""Tests of troupemq/masters/monitoring.py: one page and one health of several masters."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from actors.config import BrokerConfig
from actors.metrics.page_server import HttpRequest, Page, PageAnswer, PageServer
from actors.network.connections import open_listener
from storage.errors import StoreError
from tests.support.metrics import samples, value
from troupemq.health.checks import HealthCheck, checks_answer
from troupemq.masters import monitoring
from troupemq.masters.monitoring import MonitoredMaster, Monitoring, masters_of, merged

HOST = "127.0.0.1"
PAGE = """# HELP m Messages
# TYPE m gauge
m{{cluster="c",node_id="{name}"}} {number}
# HELP process_x_total Of the process
# TYPE process_x_total counter
process_x_total {number}
# HELP python_y Of Python
# TYPE python_y gauge
python_y{{generation="0"}} 1.0
python_y{{}} 2
# HELP empty Nothing
# TYPE empty gauge
"""


def test_metrics_families_are_merged_and_each_line_names_its_node() -> None:
    pages = {name: PAGE.format(name=name, number=n) for n, name in enumerate(("b-a", "b-b"))}
    text = "".join(merged(pages))
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert names == ["m", "process_x_total", "python_y", "empty"]
    found = samples(text)
    assert value(found, "m", node_id="b-b", cluster="c") == 1
    assert value(found, "process_x_total", node_id="b-b") == 1
    assert value(found, "python_y", node_id="b-a", generation="0") == 1
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(lines)) == len(lines) == 8


class Cluster:
    """Masters that answer what they are told to, and what shows them."""

    def __init__(self, folder: Path) -> None:
        self.let_go = Event()
        self._folder = folder
        self._servers: list[PageServer] = []
        self._masters: list[MonitoredMaster] = []

    def master(self, name: str, pages: Mapping[str, Page] | None) -> None:
        """`pages`: None for one that does not serve."""
        ready = self._folder / f"{name}.json"
        self._masters.append(MonitoredMaster(name, str(ready)))
        if pages is not None:
            server = PageServer(open_listener(HOST, 0, "test"))
            server.add(pages)
            self._servers.append(server)
            ports = {"metrics": server.port, "health": server.port}
            ready.write_text(json.dumps({"pid": os.getpid(), **ports}))

    def shown(self) -> int:
        """The port that shows all."""
        config = BrokerConfig(broker_name="b", metrics_type="PROM", bind_address=HOST)
        server = PageServer(open_listener(HOST, 0, "test"))
        server.add(Monitoring(self._masters, config).pages())
        self._servers.append(server)
        return server.port

    def hangs(self, _: HttpRequest) -> PageAnswer:
        self.let_go.wait(30)
        return PageAnswer(HTTPStatus.OK, b"")

    def close(self) -> None:
        self.let_go.set()
        for server in self._servers:
            server.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def serves(name: str, number: int = 0) -> Page:
    text = PAGE.format(name=name, number=number).encode()
    return lambda _: PageAnswer(HTTPStatus.OK, text)


def says(*checks: HealthCheck) -> Page:
    return lambda _: checks_answer(checks)


def get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_master_that_is_down_or_hangs_is_marked_without_delay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "ASK_S", 0.3)
    cluster.master("b", {"/metrics": serves("b", 7)})
    cluster.master("b-1", {"/metrics": cluster.hangs})
    cluster.master("b-2", None)
    port = cluster.shown()
    began_s = monotonic()
    status, text = get(port, "/metrics")
    assert status == 200 and monotonic() - began_s < 10
    found = samples(text)
    assert {labels["node_id"]: up for labels, up in found["troupemq_master_up"]} == {
        **{"b": 1, "b-1": 0, "b-2": 0}
    }
    assert value(found, "m", node_id="b") == 7
    assert 0.2 < value(found, "troupemq_master_scrape_seconds", node_id="b-1") < 5
    assert get(port, "/metrics/exporter")[0] == 200, "which the first one does not have"


def test_health_lists_every_master_by_name(cluster: Cluster) -> None:
    well, ill = HealthCheck("disk", True), HealthCheck("disk", False, "it is full")
    cluster.master("b", {"/health/live": says(well), "/health/ready": says(well)})
    cluster.master("b-1", {"/health/live": says(well), "/health/ready": says(ill)})
    cluster.master("b-2", None)
    port = cluster.shown()
    assert get(port, "/health/live")[0] == 200, "one that starts is alive"
    status, text = get(port, "/health/ready")
    wrong: Callable[[Any], dict[str, str]] = lambda found: {  # noqa: E731
        each["check"]: each["why"] for each in found["checks"] if not each["ok"]
    }
    assert status == 503
    found = wrong(json.loads(text))
    assert found.pop("b-1: disk") == "it is full"
    assert list(found) == ["b-2: serving"] and "it is starting" in found["b-2: serving"]


def test_health_does_not_wait_for_a_hanging_master(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "HEALTH_S", 0.2)
    cluster.master("b", {"/health/live": cluster.hangs})
    cluster.master("b-1", {"/health/live": lambda _: PageAnswer(HTTPStatus.OK, b"[]")})
    status, text = get(cluster.shown(), "/health/live")
    assert status == 503
    assert [each["why"] for each in json.loads(text)["checks"]] == [
        "no answer within 0 s",
        "its answer is not understood",
    ]


def test_an_invalid_plan_is_a_one_sentence_error(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    with pytest.raises(StoreError, match=r"cannot read .*plan.json: No such file"):
        masters_of(str(plan))
    plan.write_text("{}")
    with pytest.raises(StoreError, match="is not a plan of several masters"):
        masters_of(str(plan))


def test_a_ready_file_of_a_dead_process_is_ignored(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"pid": (1 << 22) + 1, "metrics": 1}))
    assert MonitoredMaster("b", str(ready)).ports() == {}
