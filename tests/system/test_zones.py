"""The loss of a zone, line by line as docs/losses.md has it: two zones in network namespaces.

Each zone has a name server, a master and the other master's slave, all with SYNC_MASTER and
SYNC_FLUSH; clients are in the first. The second one's cable is pulled while they send, its master's
slave here takes over, the cable is plugged in again. What was answered SEND_OK is never missing.
"""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from tests.compat.patience import wait_until
from tests.compat.servers import HOST, OurNameServer, free_port
from tests.support.brokers import send_command
from tests.support.namespaces import OtherMachine, skip_without_namespaces
from tests.support.wire import Wire
from tests.system.test_cluster_kills import BACK_S, TOPIC, bodies, found_at
from tests.system.test_partitions import BrokerOn
from troupemq import ClientError, Message, Producer, ProducerSettings
from troupemq.client.message import SendStatus

A, B = "broker-a", "broker-b"
OK = SendStatus.OK
SENDERS = 2
TRY_MS = 1000
STORED = {OK, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE}


class NameServerOn(OurNameServer):
    """A name server of a zone."""

    def __init__(self, scratch: Path, host: str, enter: tuple[str, ...] = ()) -> None:
        super().__init__(scratch)
        self.settings = {"bindAddress": "0.0.0.0"}
        self._host, self.wrapped_in = host, enter

    def _serves(self) -> bool:
        self._read_address()
        self.address = self.address.replace(HOST, self._host)
        return bool(self.address) and super()._serves()


class BrokerOfBoth(BrokerOn):
    """Registers at the name servers of both zones; is ready when that of its own knows it."""

    both = ""

    def launch(self) -> None:
        self._run("broker", self._write_config(self._config(0)), "-n", self.both)


class Sender(Thread):
    """Sends numbered messages until it is told to end; keeps what was answered."""

    def __init__(self, namesrv: str, number: int, over: Event) -> None:
        super().__init__()
        self._namesrv, self._number, self._over = namesrv, number, over
        self.answered: list[tuple[str, SendStatus, bytes]] = []

    def run(self) -> None:
        settings = ProducerSettings(try_timeout_ms=TRY_MS)
        count = 0
        with Producer(f"shop-{self._number}", self._namesrv, settings=settings) as producer:
            while not self._over.is_set():
                body = b"%d/%d" % (self._number, count)
                count += 1
                try:
                    result = producer.send(Message(TOPIC, body))
                except ClientError:
                    continue
                self.answered.append((result.queue.broker_name, result.status, body))
                self._over.wait(0.002)


class Zones:
    """The cluster, who sends to it, and the cable between its halves."""

    def __init__(self, stack: ExitStack, other: OtherMachine, scratch: Path) -> None:
        self._stack, self._other, self._scratch = stack, other, scratch
        here, there = (other.near_address, ()), (other.address, other.enter)
        self.names = [
            stack.enter_context(NameServerOn(scratch / f"names-{number}", host, enter))
            for number, (host, enter) in enumerate((here, there))
        ]
        self.both = ";".join(each.address for each in self.names)
        master, slave = {"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": "1"}
        self.a = self._broker(A, 0, here, master)
        self.b = self._broker(B, 1, there, master)
        self.slave_of_a = self._broker(A, 1, there, slave)
        self.slave_of_b = self._broker(B, 0, here, slave)
        self.over = Event()
        self.senders = [Sender(self.both, number, self.over) for number in range(SENDERS)]

    def _broker(
        self, name: str, zone: int, at: tuple[str, tuple[str, ...]], more: Mapping[str, str]
    ) -> BrokerOfBoth:
        settings = {"brokerName": name, "listenPort": str(free_port()), **more}
        scratch = self._scratch / f"{name}-{zone}"
        broker = BrokerOfBoth(scratch, self.names[zone], settings, *at)
        broker.both = self.both
        return self._stack.enter_context(broker)

    def send(self) -> None:
        """From now on; until the end of the test."""
        for broker in (self.a, self.b):
            with Wire(broker.address) as wire:
                first = send_command(b"first", topic=TOPIC)
                wait_until(lambda: wire.ask(first).code == 0, "a slave that follows", BACK_S)  # noqa: B023
        for sender in self.senders:
            sender.start()
        self._stack.callback(self.end)

    def end(self) -> None:
        self.over.set()
        for sender in self.senders:
            sender.join()

    def answered(self, name: str, *statuses: SendStatus) -> set[bytes]:
        """Return the requests that a master has answered with one of these codes by now."""
        return {
            body
            for sender in self.senders
            for broker, status, body in list(sender.answered)
            if broker == name and status in statuses
        }

    def wait_for_more(self, name: str, *statuses: SendStatus) -> None:
        before = len(self.answered(name, *statuses))
        what = f"{name} answers {', '.join(map(str, statuses))}"
        wait_until(lambda: len(self.answered(name, *statuses)) > before + 5, what, BACK_S)


@pytest.mark.slow(seconds=25)
@pytest.mark.trial(short=0, long=6, every=3, turn=1)
def test_a_lost_zone_loses_no_acknowledged_message(seed: int, tmp_path: Path) -> None:
    skip_without_namespaces()
    random = Random(seed)
    with ExitStack() as stack:
        other = stack.enter_context(OtherMachine(seed))
        zones = Zones(stack, other, tmp_path)
        zones.send()
        for name in (A, B):
            zones.wait_for_more(name, OK)
        zones.over.wait(random.uniform(0, 1))
        other.pull_the_cable()

        # 1. Producers go on with the master of the zone that is left; it stores, without a slave.
        zones.wait_for_more(A, SendStatus.SLAVE_NOT_AVAILABLE)
        # 2. What the lost master has answered OK can be read from its slave here.
        at_lost = zones.answered(B, OK)
        assert at_lost <= bodies(found_at(zones.slave_of_b))
        # 3. The slave takes over.
        assert zones.slave_of_b.stop() == 0
        zones.slave_of_b.settings |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        zones.slave_of_b.start()
        zones.wait_for_more(B, OK)
        # 4. Before the zone is back: its old master is down, its store moved away.
        assert zones.b.stop() == 0
        shutil.move(zones.b.store, tmp_path / "moved-away")
        zones.over.wait(random.uniform(0, 1))
        other.plug_it_in()
        # 5. The old master is the slave of the new one; the other slave follows by itself.
        zones.b.settings |= {"brokerRole": "SLAVE", "brokerId": "1"}
        zones.b.start()
        zones.wait_for_more(A, OK)
        zones.end()

        at_a, at_b = bodies(found_at(zones.a)), bodies(found_at(zones.slave_of_b))
        assert zones.answered(A, *STORED) <= at_a
        assert at_lost | zones.answered(B, OK) <= at_b
        wait_until(lambda: bodies(found_at(zones.slave_of_a)) == at_a, "an equal slave", BACK_S)
        newest = zones.slave_of_b.log().rstrip(b"\0")[-200:]
        wait_until(lambda: newest in zones.b.log(), "the new slave has the newest", BACK_S)
