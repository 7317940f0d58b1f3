"""Master and slave on two machines, the cable between them pulled and plugged in under load.

A SYNC_MASTER with SYNC_FLUSH on both: at every moment the slave's log begins as its master's does,
and nothing acknowledged is missing in it. Three partitions for each seed; ten seeds in the trials.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from protocol.codes import ResponseCode
from tests.compat.patience import wait_until
from tests.compat.servers import HOST, SMALL_FILES, NameServer, OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.namespaces import OtherMachine, skip_without_namespaces
from tests.support.wire import Wire

PARTITIONS = 3
PRODUCERS = 4
SEND_EVERY_S = 0.002
"""More would say nothing more, and all of it is read at each pull of the cable."""
HEALED_S = 60.0
SETTINGS = {
    **SMALL_FILES,
    "mappedFileSizeCommitLog": str(1 << 20),
    "flushDiskType": "SYNC_FLUSH",
    "haSendHeartbeatInterval": "500",
    "haHousekeepingInterval": "3000",
    "slaveTimeout": "1000",
    "bindAddress": "0.0.0.0",
}
_BODY = re.compile(rb"body-\d+-\d+;")


class BrokerOn(OurBroker):
    """A broker that listens at an address of its machine, perhaps another machine."""

    def __init__(
        self,
        scratch: Path,
        name_server: NameServer,
        settings: Mapping[str, str],
        host: str,
        enter: tuple[str, ...] = (),
    ) -> None:
        own = {**SETTINGS, "brokerIP1": host, "brokerIP2": host, **settings}
        super().__init__(scratch, name_server, own)
        self.host = host
        self.wrapped_in = enter

    def _read_address(self) -> bool:
        if not self.address and self._ready.exists() and self._ready.read_text().strip():
            self.address = f"{self.host}:{json.loads(self._ready.read_text())['broker']}"
        return bool(self.address)

    def log(self) -> bytes:
        """The log as it lies on the disk; all of it is there in these tests."""
        files = sorted((self.store / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)


class Producer(Thread):
    """Sends until it is told to end; keeps what was acknowledged."""

    def __init__(self, address: str, number: int, over: Event) -> None:
        super().__init__()
        self._address, self._number, self._over = address, number, over
        self.acknowledged: list[bytes] = []
        self.others: set[int] = set()

    def run(self) -> None:
        count = 0
        with Wire(self._address) as wire:
            while not self._over.is_set():
                body = b"body-%d-%d;" % (self._number, count) + b"x" * (count % 700)
                answer = wire.ask(send_command(body, topic="T", queue_id=self._number))
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body[: body.index(b";") + 1])
                else:
                    self.others.add(answer.code)
                count += 1
                self._over.wait(SEND_EVERY_S)


@pytest.mark.slow(seconds=20)
@pytest.mark.trial(short=1, long=10)
def test_acknowledged_messages_survive_every_partition(seed: int, tmp_path: Path) -> None:
    skip_without_namespaces()
    random, over = Random(seed), Event()
    with (
        OtherMachine(seed) as other,
        _NameServerFor(other, tmp_path / "names") as names,
        BrokerOn(
            tmp_path / "master", names, {"brokerRole": "SYNC_MASTER"}, other.near_address
        ) as master,
        BrokerOn(
            tmp_path / "slave",
            names,
            {"brokerRole": "SLAVE", "brokerId": "1"},
            other.address,
            other.enter,
        ) as slave,
    ):
        with Wire(master.address) as wire:
            followed = send_command(b"first", topic="T")
            wait_until(lambda: wire.ask(followed).code == 0, "a slave that follows", HEALED_S)
        producers = [Producer(master.address, number, over) for number in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        try:
            for _ in range(PARTITIONS):
                over.wait(random.uniform(0.5, 2))
                other.pull_the_cable()
                over.wait(random.choice((0.3, 1.5, 5)))
                _assert_follows(slave, master, producers)
                other.plug_it_in()
                _wait_for_more(producers)
        finally:
            over.set()
            for producer in producers:
                producer.join()
        wait_until(lambda: slave.log() == master.log(), "equal logs", HEALED_S)
        _assert_follows(slave, master, producers)
        others = set().union(*(producer.others for producer in producers))
        assert others <= {ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}


class _NameServerFor(OurNameServer):
    """A name server that both machines reach."""

    def __init__(self, other: OtherMachine, scratch: Path) -> None:
        super().__init__(scratch)
        self.settings = {"bindAddress": "0.0.0.0"}
        self._host = other.near_address

    def _serves(self) -> bool:
        serves = super()._serves()
        self.address = self.address.replace(HOST, self._host)
        return serves


def _assert_follows(slave: BrokerOn, master: BrokerOn, producers: list[Producer]) -> None:
    acknowledged = {body for producer in producers for body in list(producer.acknowledged)}
    replica = slave.log().rstrip(b"\0")
    assert master.log().startswith(replica)
    missing = acknowledged - set(_BODY.findall(replica))
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged messages are missing"


def _wait_for_more(producers: list[Producer]) -> None:
    """Until every producer is told OK again."""
    before = [len(producer.acknowledged) for producer in producers]

    def have_more() -> bool:
        now = [len(producer.acknowledged) for producer in producers]
        return all(more > less for less, more in zip(before, now, strict=True))

    wait_until(have_more, "acknowledged messages again", HEALED_S)
