"""Tables of a slave beside its master's, and a client of the master in a simulated pair."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from actors.broker import Broker
from actors.engine.actor import Actor
from actors.engine.interfaces import SnapshotRef
from actors.naming.messages import MasterClientAddress
from actors.replication.ha_slave import HaSlave
from actors.replication.slave_sync import SlaveSync
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UpdateConsumerOffsetHeader
from protocol.signature import Credentials
from remoting.sync_connection import ConnectionBroken
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.replication import Pair

MASTER = "192.0.2.1:10911"
TABLES = ("topics", "consumer_offsets", "delay_offsets", "groups", "request_modes")
OTHERS = ("clean_files", "flusher")


@dataclass
class ToMaster:
    """Client of a simulated master."""

    master: SimulatedBroker | None = None
    address: str = MASTER
    connection_count: int = 1
    asked: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    """Codes that an older master does not know."""
    down: bool = False
    closed: bool = False

    def is_connected(self) -> bool:
        return not self.down

    def call(self, request: RemotingCommand, **_: Any) -> RemotingCommand:
        if self.down:
            raise ConnectionBroken(self.address, "connection refused")
        self.asked.append(request.code)
        assert self.master is not None
        if request.code in self.unknown:
            return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return self.master.ask(request)

    def send(self, request: RemotingCommand, **_: Any) -> None:
        raise AssertionError("never one-way")

    def close(self) -> None:
        self.closed = True


def slave_sync(
    client: ToMaster, agrees: SnapshotRef[bool], credentials: Credentials | None = None
) -> dict[str, Callable[[Broker], Actor]]:
    def make(made: Broker) -> SlaveSync:
        return SlaveSync(
            "192.0.2.2:10911",
            commit_log=made.store.commit_log,
            agrees=agrees,
            addresses={name: made.system.address(name) for name in (*TABLES, *OTHERS)},
            credentials=credentials,
            connect=lambda _: client,
        )

    return {"slave_sync": make}


@contextmanager
def following(**options: Any) -> Iterator[tuple[Pair, ToMaster]]:
    """A slave that follows its master's log and takes its tables."""
    agrees = SnapshotRef(False)
    client = ToMaster()

    def ha_slave(made: Broker) -> HaSlave:
        names = ("ha_dial", "put_message", "flusher")
        return HaSlave(
            made.config,
            made.store.commit_log,
            made.replica_log,
            agrees=agrees,
            addresses={name: made.system.address(name) for name in names},
        )

    own = {**slave_sync(client, agrees), "ha_slave": ha_slave}
    pair = Pair(3, slave_actors=own, **options)
    client.master = pair.master
    pair.slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))
    yield pair, client
    pair.close()


@contextmanager
def synced(
    *, agrees: bool = True, credentials: Credentials | None = None
) -> Iterator[tuple[SimulatedBroker, SimulatedBroker, ToMaster]]:
    master = SimulatedBroker(3)
    client = ToMaster(master)

    config = replace(BROKER, broker_role="SLAVE", broker_id=1)
    instead = slave_sync(client, SnapshotRef(agrees), credentials)
    slave = SimulatedBroker(4, config=config, instead=instead)
    slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))
    yield master, slave, client
    slave.stop()
    master.stop()


def text_of(made: SimulatedBroker, name: str) -> bytes:
    return made.disk.read_bytes(f"/store/config/{name}.json")


def commit(made: SimulatedBroker, group: str, offset: int) -> None:
    header = UpdateConsumerOffsetHeader(group, "Topic", 0, offset)
    made.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()))
