"""A name server without access control and sockets, and registrations of brokers."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from select import EPOLLIN, EPOLLOUT
from socket import socket, socketpair
from typing import Any

from actors.config import NamesrvConfig
from actors.namesrv_server import children, service
from actors.network.connections import Accepted
from protocol.bodies import ClusterInfo
from protocol.bodies_tables import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import PutKvConfigHeader, RegisterBrokerHeader
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem
from troupemq.testing.virtual_broker import LocalClient

_ports = count(1)


class OpenNamesrv:
    """A name server without access control and without sockets."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        config = NamesrvConfig(kv_config_path="/n/kv.json", **settings)
        self.system = SimulatedSystem(seed, FakeDisk(), 1_700_000_000_000)
        self._service = service(self.system, config)
        specs = children(self.system, config, [])
        self.system.start(*(each for each in specs if each.name != "namesrv_acceptor"))
        self.peer = self.client()

    def client(self, host: str = "198.51.100.1") -> LocalClient:
        return LocalClient(self.system, self._service, host=host)

    @contextmanager
    def socket(self, host: str = "198.51.100.1") -> Iterator["OpenSocket"]:
        """The client's end of a connection with a socket."""
        near, far = socketpair()
        near.setblocking(False)
        far.setblocking(False)
        accepted = Accepted(far, (host, next(_ports)), self._service)
        self.system.address("namesrv_connections").tell(accepted)
        self.system.drain()
        with near:
            yield OpenSocket(self.system, near, far)

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


class OpenSocket:
    """Sends and receives; the name server reads as often as it takes."""

    def __init__(self, system: SimulatedSystem, near: socket, far: socket) -> None:
        self._system, self._near, self._far = system, near, far

    def _wind(self) -> None:
        self._system.loop.make_ready(self._far, EPOLLIN | EPOLLOUT)
        self._system.drain()

    def send(self, data: bytes) -> None:
        while data:
            data = data[self._near.send(data[: 64 << 10]) :]
            self._wind()

    def received(self) -> bytes | None:
        """Return the received bytes: None without any, empty once it is closed."""
        try:
            return self._near.recv(64 << 10)
        except BlockingIOError:
            return None


def topics(*names: str, compressed: bool = False, servers: Sequence[str] = ()) -> bytes:
    table = TopicConfigTable({name: TopicConfig(name) for name in names})
    return RegisterBrokerBody(table, list(servers)).encode(compressed=compressed)
