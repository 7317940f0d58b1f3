"""A name server that serves everybody, without sockets, and what brokers register at it."""

import json
from collections.abc import Sequence

from actors.config import NamesrvConfig
from actors.namesrv_server import children, service
from protocol.bodies import ClusterInfo, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.headers.namesrv import PutKvConfigHeader, RegisterBrokerHeader
from tests.support.fake_disk import FakeDisk
from tests.support.local_client import LocalClient
from tests.support.simulation import SimulatedSystem


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


def topics(*names: str, compressed: bool = False, servers: Sequence[str] = ()) -> bytes:
    table = TopicConfigTable({name: TopicConfig(name) for name in names})
    return RegisterBrokerBody(table, list(servers)).encode(compressed=compressed)
