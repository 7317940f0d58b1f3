"""Name servers that are not there, and a broker that registers at them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from actors.config import BrokerConfig
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.naming.messages import Listening
from actors.naming.namesrv_link import NamesrvLink
from actors.naming.registration import Registration
from protocol.bodies_tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.message import body_crc
from remoting.sync_connection import ConnectionBroken, ConnectionLost
from tests.support.brokers import SimulatedBroker
from tests.support.peers import Told, simulated
from troupemq.testing.simulation import SimulatedSystem

REGISTER = RequestCode.REGISTER_BROKER
QUERY = RequestCode.QUERY_DATA_VERSION
UNREGISTER = RequestCode.UNREGISTER_BROKER

Answer = Callable[[RemotingCommand], RemotingCommand]


@dataclass
class FakeNamesrv:
    """A name server that writes down what it is asked."""

    address: str
    asked: list[RemotingCommand] = field(default_factory=list)
    answer: Answer = lambda request: request.answer(fields={})
    down: bool = False
    closed: bool = False
    connected: bool = True
    babbles: bool = False
    """Sends what is no frame."""
    connection_count: int = 1

    def is_connected(self) -> bool:
        if self.babbles:
            raise ConnectionBroken(self.address, "no frame")
        return self.connected

    def call(
        self, request: RemotingCommand, *, over: int | None = None, **_: Any
    ) -> RemotingCommand:
        if over is not None and over != self.connection_count:
            raise ConnectionLost(self.address, "the connection was closed")
        self.send(request)
        return self.answer(request)

    def send(self, request: RemotingCommand, **_: Any) -> None:
        self.connected = not self.down
        if self.down:
            raise ConnectionBroken(self.address, "connection refused")
        self.asked.append(request)

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[int]:
        """The codes of what it was asked since the last call."""
        codes, self.asked = [request.code for request in self.asked], []
        return codes


@dataclass
class Bench:
    """A registration, its name servers and its table."""

    system: SimulatedSystem
    namesrvs: list[FakeNamesrv]
    table: SnapshotRef[TopicConfigTable]
    topics: Told
    master: Told
    """HaSlave and SlaveSync: what they are told of the master."""

    def listen(self, port: int = 10911) -> None:
        self.tell(Listening(port, port + 1))

    def tell(self, message: object) -> None:
        self.system.address("registration").tell(message)
        self.system.drain()


@contextmanager
def registration(count: int = 2, **settings: Any) -> Iterator[Bench]:
    namesrvs = {f"n{number}:9876": FakeNamesrv(f"n{number}:9876") for number in range(count)}
    config = BrokerConfig(
        broker_name="broker-a",
        broker_ip1="10.0.0.1",
        broker_ip2="10.9.0.1",
        namesrv_address=";".join(namesrvs),
        **settings,
    )
    configs = {"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 2, 2)}
    table, topics = SnapshotRef(TopicConfigTable(configs, DataVersion(1000, 3))), Told("topics")
    master = Told("master")
    with simulated() as system:
        links = [
            ChildSpec(
                address,
                lambda _, address=address: NamesrvLink(  # type: ignore[misc]
                    config,
                    address,
                    table=table,
                    registration=system.address("registration"),
                    connect=namesrvs.__getitem__,
                ),
            )
            for address in config.namesrv_addresses
        ]
        system.start(
            *links,
            ChildSpec(
                "registration",
                lambda _: Registration(
                    config,
                    links=[system.address(address) for address in config.namesrv_addresses],
                    leaving=SnapshotRef(False),
                    addresses={
                        "topics": topics.address,
                        "ha_slave": master.address,
                        "slave_sync": master.address,
                    },
                ),
            ),
        )
        yield Bench(system, list(namesrvs.values()), table, topics, master)
    assert all(namesrv.closed for namesrv in namesrvs.values())


def registered(request: RemotingCommand) -> RegisterBrokerBody:
    """Check the header of a registration and return its body."""
    header = RegisterBrokerHeader.decode(request.fields)
    body = bytes(request.body or b"")
    assert header.body_crc == body_crc(body)
    return RegisterBrokerBody.decode(body, compressed=header.compressed)


def register_at(made: SimulatedBroker, link: ChildSpec) -> None:
    """Starts what keeps this broker registered, with this link."""
    system = made.system
    registration = Registration(
        made.config,
        links=[system.address(link.name)],
        leaving=SnapshotRef(False),
        addresses={name: system.address(name) for name in ("topics", "ha_slave", "slave_sync")},
    )
    system.start(link, ChildSpec("registration", lambda _: registration))
    system.address(link.name).tell(Listening(10911, 10912))
    system.drain()
