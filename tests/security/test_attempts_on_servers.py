"""Attempts on name servers, on replication, and with a store made by a stranger: A35 to A37, A50.

Name servers here have no access control: these limits hold without it too. With it nobody but a
broker comes so far (H14, H15).
"""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from gc import collect
from pathlib import Path
from select import EPOLLIN, EPOLLOUT
from socket import socketpair
from time import process_time
from zlib import compress

import pytest
from structlog.testing import capture_logs

from actors.config import NamesrvConfig
from actors.engine.system import StartFailed
from actors.namesrv_server import children, service
from actors.naming import ceilings, kv_config, route_table
from actors.naming import namesrv as namesrv_module
from actors.network.connections import Accepted
from actors.network.service import Service
from protocol.bodies import ClusterInfo, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.frame import HEADER_BYTES_MAX
from protocol.ha import encode_report
from protocol.headers.namesrv import PutKvConfigHeader, RegisterBrokerHeader
from storage.errors import StoreError
from tests.support.brokers import BROKER, SimulatedBroker, send_command
from tests.support.fake_disk import FakeDisk
from tests.support.local_client import LocalClient
from tests.support.simulation import SimulatedSystem
from tests.support.sockets import Line, serving_broker

LETTERS = [f"-topic-{number}" for number in range(30)]


class OpenNamesrv:
    """A name server without access control and without sockets."""

    def __init__(self, **settings: str) -> None:
        config = NamesrvConfig(kv_config_path="/n/kv.json", **settings)  # type: ignore[arg-type]
        self.system = SimulatedSystem(1, FakeDisk(), 1_700_000_000_000)
        self._service = service(self.system, config)
        specs = children(self.system, config, [])
        self.system.start(*(each for each in specs if each.name != "namesrv_acceptor"))
        self.peer = self.client()

    def client(self, host: str = "198.51.100.1") -> LocalClient:
        return LocalClient(self.system, self._service, host=host)

    def ask(self, code: int, fields: dict[str, str], body: bytes | None = None) -> RemotingCommand:
        return self.peer.request(RemotingCommand(code, fields, body, version=407), timeout_s=60)

    def put(self, namespace: str, key: str, value: str) -> int:
        header = PutKvConfigHeader(namespace, key, value)
        return self.ask(Code.PUT_KV_CONFIG, header.encode()).code

    def register(
        self, name: str, address: str, body: bytes | None = None, *, compressed: bool = False
    ) -> RemotingCommand:
        header = RegisterBrokerHeader(name, address, "DefaultCluster", address, 0)
        fields = header.encode() | {"compressed": str(compressed).lower()}
        return self.ask(Code.REGISTER_BROKER, fields, body or topics("Orders"))

    def topics(self) -> list[str]:
        answer = self.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        found: list[str] = json.loads(bytes(answer.body or b"{}"))["topicList"]
        return found

    def brokers(self) -> dict[str, object]:
        answer = self.ask(Code.GET_BROKER_CLUSTER_INFO, {})
        return dict(ClusterInfo.decode(answer.body).broker_addr_table)


def topics(*names: str) -> bytes:
    table = TopicConfigTable({name: TopicConfig(name) for name in names})
    return RegisterBrokerBody(table).encode()


@pytest.fixture
def namesrv() -> Iterator[OpenNamesrv]:
    made = OpenNamesrv()
    yield made
    assert made.system.stop(30)


def test_a35_settings_for_clients_have_limits(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_config, "KV_NAMESPACES_MAX", 20)
    assert namesrv.put("n", "k", "v" * 1000) == 0
    assert namesrv.put("n", "k" * 5000, "v") == 1
    assert namesrv.put("n" * 5000, "k", "v") == 1
    assert namesrv.put("n", "k", "v" * (ceilings.KV_VALUE_CHARS_MAX + 1)) == 1
    assert HEADER_BYTES_MAX <= ceilings.KV_VALUE_CHARS_MAX, "a value of 100 MB comes in no header"
    codes = [namesrv.put(f"n{number}", "k", "v") for number in range(30)]
    assert codes == [0] * 19 + [1] * 11
    got = namesrv.ask(Code.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
    assert (got.fields or {})["value"] == "v" * 1000


def test_a35_what_is_no_address_is_refused(namesrv: OpenNamesrv) -> None:
    for address in ("x\n:1", "x", "a b:1", "", "x:1;y:2", "x:1\n", "x" * 5000 + ":1"):
        assert namesrv.register("broker-a", address).code == 1
    for name in ("b" * 2000,):
        assert namesrv.register(name, "10.0.0.1:10911").code == 1
    assert namesrv.brokers() == {} and namesrv.topics() == []


def test_a35_a_second_broker_of_a_name_is_told(namesrv: OpenNamesrv) -> None:
    """Without accounts nobody knows which of two is the right one: the log says so."""
    assert namesrv.register("broker-a", "10.0.0.1:10911").code == 0
    with capture_logs() as logs:
        namesrv.register("broker-a", "10.0.0.2:10911")
    assert any("two brokers have one name" in str(each["event"]) for each in logs)


def test_a35_administration_only_from_named_addresses() -> None:
    made = OpenNamesrv(admin_allowed_addresses="10.0.0.7")
    assert made.put("n", "k", "v") == ResponseCode.NO_PERMISSION
    assert made.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"}).code == 16
    assert made.register("broker-a", "10.0.0.1:10911").code == 0
    made.peer = made.client("10.0.0.7")
    assert made.put("n", "k", "v") == 0
    assert made.system.stop(30)


def test_a36_one_connection_invents_only_so_many_brokers(namesrv: OpenNamesrv) -> None:
    codes = [namesrv.register(f"b{n}", f"10.0.0.1:{n}").code for n in range(1, 300)]
    assert codes.count(0) == ceilings.BROKERS_OF_PEER_MAX
    names = [namesrv.register(f"other-{n}", "10.0.0.1:1").code for n in range(300)]
    assert names.count(0) < ceilings.BROKERS_OF_PEER_MAX
    assert len(namesrv.brokers()) < 2 * ceilings.BROKERS_OF_PEER_MAX
    namesrv.peer.close()
    namesrv.system.drain()
    namesrv.peer = namesrv.client()
    assert namesrv.brokers() == {}, "they go with it"


def test_a36_there_are_so_many_brokers_in_all(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "BROKERS_MAX", 30)
    codes = []
    for number in range(50):
        namesrv.peer = namesrv.client(f"198.51.100.{number}")
        codes.append(namesrv.register(f"b{number}", f"10.0.0.1:{number + 1}").code)
    assert codes == [0] * 30 + [1] * 20
    namesrv.peer = namesrv.client("198.51.100.3")
    assert namesrv.register("b3", "10.0.0.1:4").code == 0, "those that are there go on"


def test_a36_topics_have_a_ceiling(namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "TOPICS_MAX", 500)
    monkeypatch.setattr(ceilings, "TOPICS_OF_BROKER_MAX", 2000)
    assert namesrv.register("a", "10.0.0.1:1", topics(*(f"a{n}" for n in range(300)))).code == 0
    namesrv.register("b", "10.0.0.2:1", topics(*(f"b{n}" for n in range(1000))))
    assert len(namesrv.topics()) == 500
    many = namesrv.register("c", "10.0.0.3:1", topics(*(f"c{n}" for n in range(3000))))
    assert (many.code, many.remark) == (1, "a broker with 3000 topics: at most 2000")
    assert "c" not in namesrv.brokers()
    assert namesrv.register("d", "10.0.0.4:1").code == 0


def test_a36_what_waits_to_be_read_has_a_limit(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(namesrv_module, "READING_BYTES_MAX", 1 << 20)
    body = topics(*(f"topic-{n:0200}" for n in range(1000)))
    codes: list[int] = []
    for number in range(10):
        header = RegisterBrokerHeader(f"b{number}", "10.0.0.1:1", "C", "10.0.0.1:1", 0)
        command = RemotingCommand(Code.REGISTER_BROKER, header.encode(), body, version=407)
        namesrv.client(f"198.51.100.{number}").start(
            command, lambda answer: codes.append(answer.code)
        )
    namesrv.system.drain()
    namesrv.system.advance(60_000)
    assert len(codes) == 10
    assert 0 < codes.count(ResponseCode.SYSTEM_BUSY) < 10
    assert namesrv.register("last", "10.0.0.9:1", body).code == 0, "there is room again"


def test_a36_a_registration_that_unfolds_without_end_is_refused(namesrv: OpenNamesrv) -> None:
    bomb = compress(bytes((64 << 20) + 1), 1)
    assert namesrv.register("a", "10.0.0.1:1", bomb, compressed=True).code == 1
    assert namesrv.brokers() == {}


def test_a36_a_compressed_registration_of_millions_is_refused_before_it_is_read(
    namesrv: OpenNamesrv,
) -> None:
    """Of 4 MiB, it took 25 s of processor and 250 MiB."""
    lines = compress(b"\0\0\0\x02{}" + (2_000_000).to_bytes(4) + bytes(8 << 20), 1)
    worked_s = process_time()
    answer = namesrv.register("a", "10.0.0.1:1", lines, compressed=True)
    assert (answer.code, answer.remark) == (1, "a broker with 2000000 topics: at most 500000")
    assert process_time() - worked_s < 1
    assert namesrv.brokers() == {}


def test_a36_what_is_refused_or_over_is_not_kept(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times as many brokers and topics as there are places, and they take no more."""
    monkeypatch.setattr(ceilings, "BROKERS_MAX", 6)
    monkeypatch.setattr(route_table, "TOPICS_MAX", 100)

    def invent(turn: int) -> None:
        for number in range(8):
            name = f"{turn}-{number}"
            namesrv.register(name, f"10.0.0.1:{number + 1}", topics(*map(name.__add__, LETTERS)))
        namesrv.peer.close()
        namesrv.system.drain()
        namesrv.peer = namesrv.client()

    with capture_logs() as logs:
        for turn in range(3):
            invent(turn)
        logs.clear()
        tracemalloc.start()
        try:
            for turn in range(3, 13):
                invent(turn)
                logs.clear()
            collect()
            more_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert more_bytes < 1 << 18
    assert namesrv.brokers() == {}


# --- A37: the port of replication


class Slave:
    """A stranger at the HA port of a simulated master."""

    def __init__(self, made: SimulatedBroker, host: str) -> None:
        self._made = made
        self.line, self._far = socketpair()
        self._far.setblocking(False)
        self.line.setblocking(False)
        accepted = Accepted(self._far, (host, 1), Service({}))
        made.system.address("ha_master").tell(accepted)
        made.system.drain()

    def say(self, data: bytes) -> None:
        if self.is_open:
            self.line.send(data)
            self._made.system.loop.make_ready(self._far, EPOLLIN | EPOLLOUT)
            self._made.system.drain()

    @property
    def is_open(self) -> bool:
        return self._far.fileno() != -1

    def read(self) -> bytes:
        try:
            return self.line.recv(1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def slaves() -> Iterator[list[Slave]]:
    made: list[Slave] = []
    yield made
    for each in made:
        each.line.close()


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 1, -(1 << 63), 1 << 40])
def test_a37_who_asks_for_what_is_not_there_gets_nothing(slaves: list[Slave], offset: int) -> None:
    made = SimulatedBroker(1)
    made.send(b"secret")
    slaves.append(Slave(made, "198.51.100.1"))
    slaves[0].say(encode_report(offset))
    assert not slaves[0].is_open
    assert b"secret" not in slaves[0].read()
    assert made.broker.replicas.link_count == 0
    made.stop()


def test_a37_nobody_has_more_than_he_was_given(slaves: list[Slave]) -> None:
    """4.9.7's master believes any number: a stranger would confirm what he has not."""
    made = SimulatedBroker(1)
    made.send(b"one")
    slaves.append(Slave(made, "198.51.100.1"))
    slaves[0].say(encode_report(0))
    acked = made.broker.replicas.acked_offset
    slaves[0].say(encode_report(made.broker.store.commit_log.end_offset + 1))
    assert not slaves[0].is_open
    assert made.broker.replicas.acked_offset == acked
    made.stop()


def test_a37_strangers_have_a_limit_and_cost_one_line_each(slaves: list[Slave]) -> None:
    made = SimulatedBroker(1)
    with capture_logs() as logs:
        slaves += [Slave(made, "198.51.100.1") for _ in range(100)]
    assert [each.is_open for each in slaves] == [True] * 64 + [False] * 36
    assert len([each for each in logs if each["event"] == "too many slaves"]) == 1
    made.system.advance(60_000)
    assert not any(each.is_open for each in slaves), "who says nothing is no slave"
    made.stop()


def test_a37_only_allowed_addresses_follow(slaves: list[Slave]) -> None:

    config = replace(BROKER, ha_allowed_addresses="10.0.0.7;10.1.0.*")
    made = SimulatedBroker(1, config=config)
    with capture_logs() as logs:
        slaves += [Slave(made, "198.51.100.1") for _ in range(50)]
        slaves += [Slave(made, host) for host in ("10.0.0.7", "10.1.0.9")]
    assert [each.is_open for each in slaves] == [False] * 50 + [True] * 2
    assert len([each for each in logs if each["event"] == "no slave is allowed from there"]) == 1
    made.stop()


# --- A50: a store that somebody has prepared


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(10**12)


def circle(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path)


FIRST = f"{0:020}"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (pipe, "config/topics.json"),
        (device, "config/topics.json"),
        (endless, "config/subscriptionGroup.json"),
        (circle, "config/consumerOffset.json"),
        (pipe, f"commitlog/{FIRST}"),
        (device, f"commitlog/{FIRST}"),
        (endless, f"commitlog/{FIRST}"),
        (pipe, f"consumequeue/T/0/{FIRST}"),
        (device, f"consumequeue/T/0/{FIRST}"),
        (pipe, "index/20260101000000000"),
        (pipe, "checkpoint"),
        (pipe, "abort"),
    ],
)
def test_a50_a_store_that_a_stranger_has_prepared_is_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises((StoreError, StartFailed)) as refused, serving_broker(tmp_path):
        pass
    text = str(refused.value)
    assert path.name in text and text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    "text", ['{"topicConfigTable":' + "[" * 100_000, "{'a':1}" * 10, "\0" * 99]
)
def test_a50_a_table_that_is_none_is_told_and_left_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(text)
    with (
        capture_logs() as logs,
        serving_broker(tmp_path) as running,
        Line.to(running.ports.main) as line,
    ):
        assert line.ask(send_command()).code == 0
    assert "config file damaged" in [each["event"] for each in logs]
