"""Tests of troupemq/health/checks.py: live, ready, and why not, of servers that really run."""

from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from threading import Event

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from actors.engine.actor import Actor, handles
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.naming import namesrv_link
from actors.replication import ha_slave
from storage.files.disk import RealDisk
from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, free_port
from troupemq.health.checks import Health, HealthCheck, broker_checks, is_well, namesrv_checks
from troupemq.servers import Servers

HOST = "127.0.0.1"
STOP_S = 20.0


class Stuck(Actor):
    """Holds the loop until it is let go."""

    def __init__(self, begun: Event, let_go: Event) -> None:
        super().__init__()
        self._begun, self._let_go = begun, let_go

    @handles(str)
    def hold(self, _: str) -> None:
        """In a handler: nothing else of the loop goes on."""
        self._begun.set()
        self._let_go.wait(60)


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    system = ActorSystem.real(disk=RealDisk())
    yield system
    system.stop(STOP_S)


StartServers = Callable[..., Servers]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServers]:
    started: list[Servers] = []

    def start(namesrv: str = "", **settings: str) -> Servers:
        servers = Servers(lambda reason: None)
        started.append(servers)
        own = {
            "listenPort": "0",
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "namesrvAddr": namesrv,
            "storePathRootDir": str(tmp_path / f"store-{len(started)}"),
            **SMALL_FILES,
            **settings,
        }
        broker, store, _ = parse_broker_config("", own)
        servers.start_broker(broker, store)
        return servers

    yield start
    for each in started:
        each.stop(STOP_S)


def wrong(checks: list[HealthCheck]) -> dict[str, str]:
    return {each.check: each.why for each in checks if not each.ok}


def test_a_start_is_alive_and_not_ready(system: ActorSystem) -> None:
    health = Health()
    assert is_well(health.live())
    health.watch(system)
    assert is_well(health.live())
    assert "it is starting" in wrong(health.ready())["serving"]


def test_a_blocked_loop_is_not_alive_until_it_continues(system: ActorSystem) -> None:
    begun, let_go, health = Event(), Event(), Health()
    health.watch(system)
    system.start(ChildSpec("stuck", lambda _: Stuck(begun, let_go)))
    system.address("stuck").tell("hold")
    assert begun.wait(20)
    assert "the loop has not answered for 0.1 s" in wrong(health.live(0.1))["loop"]
    let_go.set()
    assert is_well(health.live(20.0))


def test_a_process_that_gave_up_is_not_alive(system: ActorSystem) -> None:
    health = Health()
    health.watch(system)
    system.give_up("it fails again and again")
    assert wrong(health.live()) == {"loop": "gave up: it fails again and again"}


def test_a_broker_without_name_servers_is_ready_at_once_and_not_while_it_stops(
    start: StartServers,
) -> None:
    servers = start()
    assert wrong(servers.health.ready()) == {}
    servers.health.leaves()
    assert wrong(servers.health.ready()) == {"serving": "it is stopping"}


def test_a_broker_is_ready_once_a_name_server_knows_it(
    start: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namesrv_link, "LOOK_MS", 100)
    config, _ = parse_namesrv_config("", {"listenPort": "0", "bindAddress": HOST})
    namesrv = Servers(lambda reason: None)
    namesrv.start_namesrv(config)
    try:
        servers = start(f"{HOST}:{namesrv.ports['namesrv']}")
        wait_until(lambda: not wrong(servers.health.ready()), "registered")
    finally:
        namesrv.stop(STOP_S)
    wait_until(lambda: "registered" in wrong(servers.health.ready()), "forgotten")


def test_a_slave_reports_why_it_does_not_replicate(
    start: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_slave, "AGAIN_MS", 100)
    beats = {"haSendHeartbeatInterval": "100"}
    master = start(**beats)
    slave = {"brokerRole": "SLAVE", "brokerId": "1", **beats}
    lost = start(**slave)
    assert wrong(lost.health.ready()) == {"master": "it has not reached its master yet"}
    follows = start(**slave, haMasterAddress=f"{HOST}:{master.ports['ha']}")
    wait_until(lambda: not wrong(follows.health.ready()), "following")
    master.stop(STOP_S)
    wait_until(lambda: "master" in wrong(follows.health.ready()), "its master is gone")


def test_a_full_disk_and_a_failed_flush_are_not_ready(
    start: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = start()
    assert servers.broker is not None
    own = servers.broker.broker.store.config.root  # the commit log can have a disk of its own
    monkeypatch.setattr(RealDisk, "usage_ratio", lambda _, path: 0.95 if path == own else 0.2)
    log = servers.broker.broker.store.commit_log
    with monkeypatch.context() as broken:
        broken.setattr(log, "_sync_error", OSError(5, "Input/output error"))
        found = wrong(broker_checks(servers.broker.broker))
    assert found["disk"] == "95% of the disk are used: above 90% sends are refused"
    assert "Input/output error" in found["flush"]


def test_a_name_server_is_ready_after_brokers_could_register() -> None:
    now = 100.0
    look = namesrv_checks(lambda: now)
    assert not is_well(look())
    now = 105.0
    assert is_well(look())


def test_health_and_metrics_can_share_a_port(start: StartServers) -> None:
    port = str(free_port())
    ports = {"healthPort": port, "metricsPromExporterPort": port}
    servers = start(metricsExporterType="PROM", **ports)
    assert servers.ports["metrics"] == servers.ports["health"] == int(port)
    for path, wanted in (("/health/ready", b'"ok": true'), ("/metrics", b"rocketmq_topic_number")):
        connection = HTTPConnection(HOST, int(port), timeout=STOP_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and wanted in answer.read()
        connection.close()
    servers.stop(STOP_S)
    with pytest.raises(ConnectionRefusedError):
        create_connection((HOST, int(port)), STOP_S)
