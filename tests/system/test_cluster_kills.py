"""kill -9 of master, slave and name server in turn, while producers and readers go on.

Master A (SYNC_MASTER) and its slave, master B beside it, all with SYNC_FLUSH. Our client sends,
and when A is gone goes on with B. A's slave is read meanwhile. At the end nothing acknowledged is
missing, every queue is in the order in which it was sent, and the slave has all that A has.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TypeVar

import pytest

from protocol.message import MessageRecord
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import (
    BROKER_NAME,
    SMALL_FILES,
    OurBroker,
    OurNameServer,
    Server,
    free_port,
)
from tests.support.brokers import send_command
from tests.support.wire import Wire
from troupemq import ClientError, Message, Producer
from troupemq.client.message import SendStatus

PRODUCERS = 3
QUEUES = 4
TOPIC = "T"
BACK_S = 60.0
SEND_EVERY_S = 0.002
"""More would say nothing more, and all of it is read at the end."""
A, OTHER = BROKER_NAME, "broker-b"
S = TypeVar("S", bound=Server)
SETTINGS = {
    **SMALL_FILES,
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
    "haSendHeartbeatInterval": "500",
    "registerNameServerPeriod": "10000",
}


class Sender(Thread):
    """Sends numbered messages, one after the other, until it is told to end."""

    def __init__(self, namesrv: str, number: int, over: Event) -> None:
        super().__init__()
        self._namesrv, self._number, self._over = namesrv, number, over
        self.acknowledged: list[tuple[str, bytes]] = []
        """Broker and body of each acknowledged message."""

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def run(self) -> None:
        count = 0
        with Producer(f"producers-{self._number}", namesrv=self._namesrv) as producer:
            while not self._over.is_set():
                body = b"%d/%d" % (self._number, count)
                count += 1
                try:
                    result = producer.send(Message(TOPIC, body))
                except ClientError:
                    continue
                if result.status is SendStatus.OK:
                    self.acknowledged.append((result.queue.broker_name, body))
                self._over.wait(SEND_EVERY_S)


def at_a_port_of_its_own(server: S) -> S:
    """Choose a fixed port, so that a restarted server keeps it like a real one."""
    server.settings["listenPort"] = str(free_port())
    return server


def kill(server: Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert server.child.wait(10) == -signal.SIGKILL
    server.stop()


def found_at(broker: OurBroker) -> list[list[MessageRecord]]:
    """Every queue of the topic, as a consumer gets it."""
    with Wire(broker.address) as wire:
        return [wire.messages(TOPIC, queue_id) for queue_id in range(QUEUES)]


def bodies(queues: Sequence[Sequence[MessageRecord]]) -> set[bytes]:
    return {record.body for records in queues for record in records}


def assert_in_order(queues: Sequence[Sequence[MessageRecord]]) -> None:
    """Check that each queue has one producer's messages in the order of sends."""
    for records in queues:
        last: dict[bytes, int] = {}
        for record in records:
            sender, _, number = record.body.partition(b"/")
            if number:
                assert int(number) >= last.get(sender, -1)
                last[sender] = int(number)


def start_cluster(
    stack: ExitStack, scratch: Path
) -> tuple[OurNameServer, OurBroker, OurBroker, OurBroker]:
    """Name server, master A, its slave, master B; the topic is on both masters."""
    names = at_a_port_of_its_own(OurNameServer(scratch / "names"))
    stack.enter_context(names)
    brokers = []
    for name, more in (
        ("master", {"brokerRole": "SYNC_MASTER"}),
        ("slave", {"brokerRole": "SLAVE", "brokerId": "1"}),
        ("other", {"brokerName": OTHER}),
    ):
        broker = OurBroker(scratch / name, names, SETTINGS | more)
        brokers.append(stack.enter_context(at_a_port_of_its_own(broker)))
    master, slave, other = brokers
    with Wire(master.address) as at_master, Wire(other.address) as at_other:
        first = send_command(b"first", topic=TOPIC)
        wait_until(lambda: at_master.ask(first).code == 0, "a slave that follows", BACK_S)
        assert at_other.ask(first).code == 0
    wait_until(lambda: has_route(names.address, TOPIC), "a route", BACK_S)
    wait_until(lambda: bodies(found_at(slave)) > set(), "the topic at the slave", BACK_S)
    return names, master, slave, other


@pytest.mark.slow(seconds=20)
@pytest.mark.trial(short=0, long=32)
def test_a_cluster_continues_whichever_process_is_killed(seed: int, tmp_path: Path) -> None:
    random, over = Random(seed), Event()
    with ExitStack() as stack:
        names, master, slave, other = start_cluster(stack, tmp_path)
        senders = [Sender(names.address, number, over) for number in range(PRODUCERS)]
        for sender in senders:
            sender.start()
        try:
            for killed in random.sample([names, master, slave], 3):
                over.wait(random.uniform(1, 3))
                kill(killed)
                if killed is master:
                    wait_for_more(senders, "sends to the other master")
                    wait_for_all_at(slave, acknowledged(senders, A))
                over.wait(random.uniform(0, 2))
                killed.start()
                wait_for_more(senders, "sends again")
        finally:
            over.set()
            for sender in senders:
                sender.join()
        at_master, at_other = found_at(master), found_at(other)
        wait_until(lambda: bodies(found_at(slave)) == bodies(at_master), "an equal slave", BACK_S)
        assert acknowledged(senders, A) <= bodies(at_master)
        assert acknowledged(senders, OTHER) <= bodies(at_other)
        for queues in (at_master, at_other, found_at(slave)):
            assert_in_order(queues)


def wait_for_all_at(broker: OurBroker, wanted: set[bytes]) -> None:
    """Until all of it is found there; a broker that has just been started may take a moment."""
    wait_until(lambda: wanted <= bodies(found_at(broker)), "all at the slave", BACK_S)


def wait_for_more(senders: Sequence[Sender], what: str) -> None:
    """Until every producer has been told SEND_OK once more."""
    before = {sender: sender.count for sender in senders}

    def all_have() -> bool:
        return all(sender.count > count for sender, count in before.items())

    wait_until(all_have, what, BACK_S)


def acknowledged(senders: Sequence[Sender], broker_name: str) -> set[bytes]:
    """Return the messages that this master answered with SEND_OK."""
    return {
        body
        for sender in senders
        for name, body in list(sender.acknowledged)
        if name == broker_name
    }
