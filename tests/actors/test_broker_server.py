"""Tests of start and stop of a broker and a name server; a failed start leaves nothing open."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import MSG_WAITALL, create_connection, create_server, socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors import broker_server
from actors.broker_server import open_ports, start_broker
from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem, StartFailed
from actors.namesrv_server import start_namesrv
from actors.network.connections import PortTaken, open_listener
from protocol.bodies import TopicRouteData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.ha import TRANSFER_HEAD_BYTES, encode_report
from storage.errors import StoreError, StoreLocked
from storage.files.disk import RealDisk
from tests.compat.servers import free_port
from tests.support.brokers import BROKER, pull_command, send_command
from tests.support.certificates import Certificates
from tests.support.sockets import HOST, WAIT_S, Line, serving_broker, serving_namesrv, store_at


def config(**settings: Any) -> BrokerConfig:
    return replace(BROKER, **{"listen_port": 0, "bind_address": HOST, **settings})


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def nothing_left_open(system: ActorSystem) -> Iterator[None]:
    """No descriptor more than before, once the system has stopped."""
    before = open_files()
    yield
    assert system.stop(WAIT_S)
    assert open_files() <= before
    assert not system.live


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    system = ActorSystem.real(disk=RealDisk())
    yield system
    system.stop(WAIT_S)


# --- ports


def test_port_0_gives_three_free_ports(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running:
        ports = running.ports
        assert (ports.fast, ports.ha) == (ports.main - 2, ports.main + 1)
        assert min(ports.main, ports.fast) > 0
        for port in (ports.main, ports.fast):
            with Line.to(port) as line:
                assert line.ask(send_command()).code == ResponseCode.SUCCESS
        with Line.to(ports.fast) as line:
            answer = line.ask(pull_command())
            assert (answer.code, answer.remark) == (3, " request type 11 not supported")
        with create_connection((HOST, ports.ha)) as slave:
            slave.sendall(encode_report(0))
            head = slave.recv(TRANSFER_HEAD_BYTES, MSG_WAITALL)
        assert head.startswith(bytes(8)) and head > bytes(12), "the log, from its beginning"


@pytest.mark.parametrize(
    ("bind_address", "acl_enable", "warned"),
    [("0.0.0.0", False, True), (HOST, False, False), ("0.0.0.0", True, False)],
)
def test_listening_beyond_localhost_without_access_control_logs_one_warning(
    bind_address: str, acl_enable: bool, warned: bool, system: ActorSystem, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"listen_port": 0, "bind_address": bind_address}
    common |= {"acl_enable": acl_enable, "acl_file": str(tmp_path / "plain_acl.yml")}
    names = ActorSystem.real(disk=RealDisk())
    with capture_logs() as logs:
        try:
            start_namesrv(
                NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), **common), system=names
            )
            at_namesrv = [line for line in logs if "listens_at" in line]
            broker = start_broker(config(**common), store_at(tmp_path / "store"), system=system)
            assert broker.stop(WAIT_S)
        finally:
            assert names.stop(WAIT_S)
    at_both = [line for line in logs if "listens_at" in line]
    assert (len(at_namesrv), len(at_both)) == ((1, 2) if warned else (0, 0))
    for line in at_both:
        assert (line["log_level"], line["listens_at"]) == ("warning", bind_address)
        assert "aclEnable=true" in line["hint"] and "bindAddress=127.0.0.1" in line["hint"]


def test_a_start_warns_of_ports_that_accept_clients_without_a_certificate(
    system: ActorSystem, tmp_path: Path
) -> None:
    files = Certificates(tmp_path / "tls").files()
    common: dict[str, Any] = {
        "listen_port": 0,
        "bind_address": HOST,
        "tls_client_auth": "require",
        "tls_server_certificate": files.cert_path,
        "tls_server_key": files.key_path,
        "tls_server_trust": files.trust_path,
    }
    names = ActorSystem.real(disk=RealDisk())
    with capture_logs() as logs:
        try:
            start_namesrv(
                NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), **common), system=names
            )
            at_namesrv = [line["hint"] for line in logs if "need.client.auth" in str(line)]
            broker = start_broker(config(**common), store_at(tmp_path / "store"), system=system)
            assert broker.stop(WAIT_S)
        finally:
            assert names.stop(WAIT_S)
    at_both = [line["hint"] for line in logs if "need.client.auth" in str(line)]
    assert [hint.rpartition(" ")[2] for hint in at_namesrv] == ["tls.server.mode=enforcing"]
    assert [hint.rpartition(" ")[2] for hint in at_both[1:]] == [
        "tls.server.mode=enforcing",
        "tls.ha.mode=enforcing",
    ]


@pytest.mark.parametrize(
    ("settings", "is_named"),
    [
        ({}, True),
        ({"ha_allowed_addresses": "10.0.0.*"}, False),
        ({"ha_bind_address": HOST}, False),
        ({"broker_role": "SLAVE", "broker_id": 1}, False),
    ],
)
def test_the_start_warning_names_an_open_replication_port(
    settings: dict[str, Any], is_named: bool, system: ActorSystem, tmp_path: Path
) -> None:
    open_to_all = config(bind_address="0.0.0.0", **settings)
    with capture_logs() as logs:
        assert start_broker(open_to_all, store_at(tmp_path), system=system).stop(WAIT_S)
    (warned,) = [line for line in logs if "listens_at" in line]
    assert ("haAllowedAddresses" in warned["hint"]) == is_named


def test_replication_listens_at_an_address_of_its_own() -> None:
    """H16 of docs/security.md: that of a network that only brokers are in."""
    sockets, ports = open_ports(config(ha_bind_address="127.0.0.2"))
    found = [sock.getsockname() for sock in sockets]
    for sock in sockets:
        sock.close()
    assert found == [(HOST, ports.main), (HOST, ports.fast), ("127.0.0.2", ports.ha)]


def test_a_foreign_replication_address_is_reported() -> None:
    with pytest.raises(PortTaken, match="write an address of this machine as haBindAddress"):
        open_ports(config(ha_bind_address="192.0.2.1"))


def test_a_slave_does_not_open_the_ha_port() -> None:
    sockets, ports = open_ports(config(broker_role="SLAVE", broker_id=1))
    for sock in sockets:
        sock.close()
    assert len(sockets) == 2
    with create_server((HOST, ports.ha)):
        pass


def test_free_ports_are_searched_until_all_three_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def listen(host: str, port: int, name: str) -> socket:
        asked.append(name)
        if name in ("HA port", "listenPort - 2") and asked.count(name) == 1:
            raise PortTaken("taken")  # first the HA port, then, of the next three, the fast port
        return open_listener(host, port, name)

    monkeypatch.setattr(broker_server, "open_listener", listen)
    before = open_files()
    sockets, ports = open_ports(config())
    assert [sock.getsockname()[1] for sock in sockets] == [ports.main, ports.fast, ports.ha]
    for sock in sockets:
        sock.close()
    assert open_files() == before
    assert asked.count("listenPort - 2") >= 2  # others on this machine may have had one, too


def test_without_free_ports_the_start_fails_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:

    def listen(host: str, port: int, name: str) -> socket:
        if name != "listenPort":
            raise PortTaken("taken")
        return open_listener(host, port, name)

    monkeypatch.setattr(broker_server, "open_listener", listen)
    before = open_files()
    with pytest.raises(PortTaken, match=r"^No three free ports were found: set listenPort\.$"):
        open_ports(config())
    assert open_files() == before


@pytest.mark.parametrize(
    ("below", "name"),
    [(0, "listenPort"), (2, "listenPort - 2"), (-1, "listenPort + 1")],
    ids=["main", "fast", "HA"],
)
def test_a_port_in_use_is_reported_and_nothing_is_left_open(
    system: ActorSystem, tmp_path: Path, below: int, name: str
) -> None:
    port = free_port() - below  # its neighbours are free
    with create_server((HOST, port)), nothing_left_open(system):
        sentence = (
            f"Port {port} ({name}) is in use: stop what listens there, or choose another port."
        )
        with pytest.raises(PortTaken) as told:
            start_broker(
                config(listen_port=port + below), store_at(tmp_path / "store"), system=system
            )
        assert str(told.value) == sentence
    assert not (tmp_path / "store").exists()


def test_a_name_servers_port_in_use_is_reported(system: ActorSystem, tmp_path: Path) -> None:
    with create_server((HOST, 0)) as taken, nothing_left_open(system):
        port = taken.getsockname()[1]
        settings = NamesrvConfig(
            listen_port=port, bind_address=HOST, kv_config_path=str(tmp_path / "kv.json")
        )
        with pytest.raises(PortTaken, match=rf"^Port {port} \(listenPort\) is in use: "):
            start_namesrv(settings, system=system)


# --- stores


def test_two_brokers_cannot_have_one_store(system: ActorSystem, tmp_path: Path) -> None:
    with serving_broker(tmp_path) as first:
        with nothing_left_open(system):
            with pytest.raises(StoreLocked) as told:
                start_broker(config(), store_at(tmp_path), system=system)
            sentence = str(told.value)
            assert str(tmp_path) in sentence and sentence.endswith(".")
        with Line.to(first.ports.main) as line:
            assert line.ask(send_command()).code == ResponseCode.SUCCESS
        assert (tmp_path / "abort").exists()


def test_a_store_that_cannot_be_created_is_reported_and_nothing_is_left_open(
    system: ActorSystem, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with nothing_left_open(system), pytest.raises(StoreError, match=r"\.$"):
        start_broker(config(), store_at(tmp_path / "file"), system=system)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not start is given up at once."""
    monkeypatch.setattr("actors.engine.supervisor.FAILURES_MAX", 0)


@pytest.mark.usefixtures("impatient")
def test_a_broker_with_unreadable_tables_does_not_start_and_leaves_nothing_open(
    system: ActorSystem, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("a file where a directory belongs")
    with nothing_left_open(system), pytest.raises(StartFailed, match=r"topics\.json"):
        start_broker(config(), store_at(tmp_path), system=system)
    with serving_broker(tmp_path / "other") as running:
        assert running.ports.main


@pytest.mark.usefixtures("impatient")
def test_a_name_server_that_does_not_start_leaves_nothing_open(
    system: ActorSystem, tmp_path: Path
) -> None:
    (tmp_path / "kv").write_text("a file where a directory belongs")
    settings = NamesrvConfig(
        listen_port=0, bind_address=HOST, kv_config_path=str(tmp_path / "kv" / "kv.json")
    )
    with nothing_left_open(system), pytest.raises(StartFailed):
        start_namesrv(settings, system=system)


# --- starting and stopping


def test_a_broker_can_be_restarted_on_its_store(tmp_path: Path) -> None:
    for life in range(3):
        with serving_broker(tmp_path) as running, Line.to(running.ports.main) as line:
            assert running.broker.recovery.clean
            answer = line.ask(send_command(b"%d" % life, queue_id=0))
            assert (answer.fields or {})["queueOffset"] == str(life)
            assert (line.ask(pull_command()).fields or {})["maxOffset"] == str(life + 1)
        assert not (tmp_path / "abort").exists()


def test_a_stop_closes_all_ports_and_a_second_stop_returns_the_same(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running:
        assert running.stop(WAIT_S)
        assert running.stop(WAIT_S)
        for port in (running.ports.main, running.ports.fast):
            with pytest.raises(ConnectionRefusedError):
                create_connection((HOST, port))


def test_a_broker_serves_handlers_registered_later(system: ActorSystem, tmp_path: Path) -> None:
    made: list[str] = []

    def more(_: object) -> list[ChildSpec]:
        made.append("asked")
        return []

    running = start_broker(config(), store_at(tmp_path), system=system, make_more=more)
    assert made == ["asked"]
    assert running.stop(WAIT_S)


@pytest.mark.parametrize("others", [[], ["silent"], ["silent", "closed"]])
def test_a_broker_registers_where_it_really_listens(others: list[str], tmp_path: Path) -> None:
    """Whatever becomes of other name servers: neither that nor the stop waits for them."""
    with serving_namesrv(tmp_path) as namesrv, create_server((HOST, 0)) as silent:
        gone = create_server((HOST, 0))
        ports = {"silent": silent.getsockname()[1], "closed": gone.getsockname()[1]}
        gone.close()
        address = ";".join(f"{HOST}:{ports[each]}" for each in others)
        address += f";{HOST}:{namesrv.port}"
        with (
            serving_broker(tmp_path / "store", namesrv_address=address) as running,
            Line.to(namesrv.port) as line,
            Line.to(running.ports.main) as producer,
        ):
            assert producer.ask(send_command()).code == ResponseCode.SUCCESS
            asked = {"topic": "Topic"}
            for _ in range(1_000):  # each is a round trip: the broker registers meanwhile
                command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {**asked})
                answer = line.ask(command)
                if answer.code == ResponseCode.SUCCESS:
                    break
            route = TopicRouteData.decode(bytes(answer.body or b""))
            addresses = [data.broker_addrs for data in route.broker_datas]
            assert addresses == [{0: f"127.0.0.1:{running.ports.main}"}]
