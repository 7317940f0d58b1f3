"""kill -9 of one of several masters under one process, while producers go on.

The others take what is sent meanwhile, the one that was killed comes back by itself with the same
name, port and store, and at the end nothing acknowledged is missing.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic

import pytest

from tests.bench.process_figures import cpu_seconds
from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, OurMasters, OurNameServer, free_port
from tests.support.metrics import samples, value
from tests.support.wire import Wire
from tests.system.test_cluster_kills import (
    BACK_S,
    PRODUCERS,
    QUEUES,
    TOPIC,
    Sender,
    acknowledged,
    wait_for_more,
)
from troupemq import Admin, Message, Producer
from troupemq.client.connection import client
from troupemq.masters.monitoring import asked

MASTERS, KILLS = 3, 2


@pytest.mark.slow(seconds=15)
@pytest.mark.trial(short=1, long=24, every=3, turn=0)
def test_a_killed_master_returns_with_its_messages_while_others_continue(
    seed: int, tmp_path: Path, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ROUTE_INTERVAL_MS", 1000)
    random, over = Random(seed), Event()
    with (
        OurNameServer(tmp_path / "names") as names,
        OurMasters(tmp_path / "masters", names, MASTERS, SMALL_FILES) as masters,
        Admin(names.address) as admin,
    ):
        admin.create_topic(TOPIC, QUEUES)
        senders = [Sender(names.address, number, over) for number in range(PRODUCERS)]
        for sender in senders:
            sender.start()
        away_s, used_s = [], []
        try:
            for killed in random.choices(sorted(masters.pids()), k=KILLS):
                wait_for_each(senders, masters)
                over.wait(random.uniform(0, 1))
                pids, began_s = masters.pids(), monotonic()
                os.kill(pids[killed], signal.SIGKILL)
                wait_for_more(senders, "sends to the others")
                wait_until(partial(is_back, masters, pids), "it is back", BACK_S)
                away_s.append(monotonic() - began_s)
                now = masters.pids()
                used_s.append(cpu_seconds(now[killed]))
                assert {name for name in pids if now[name] != pids[name]} == {killed}
            wait_for_each(senders, masters)
        finally:
            over.set()
            for sender in senders:
                sender.join()
        for name, address in masters.addresses().items():
            assert acknowledged(senders, name) <= found_at(address)
        assert masters.stop() == 0
    tell(
        f"a master killed under load was away for {away_s[0]:.1f} s, one killed soon after for"
        f" {away_s[1]:.1f} s; {max(used_s):.1f} s of processor time with what the spare had used"
    )


@pytest.mark.slow(seconds=10)
def test_slaves_follow_masters_by_number_and_one_port_shows_all_masters(
    tmp_path: Path,
) -> None:
    port = free_port()
    shown = {"metricsExporterType": "PROM", "monitoringPort": str(port)}
    shown["metricsPromExporterPort"] = str(free_port(2))
    master = SMALL_FILES | {"registerNameServerPeriod": "10000"}
    slave = master | {"brokerRole": "SLAVE", "brokerId": "1"}
    with (
        OurNameServer(tmp_path / "names") as names,
        OurMasters(tmp_path / "masters", names, 2, master | shown) as masters,
        OurMasters(tmp_path / "slaves", names, 2, slave) as slaves,
        Producer("producers", names.address) as producer,
        Admin(names.address) as admin,
    ):
        admin.create_topic(TOPIC, QUEUES)
        sent: dict[str, set[bytes]] = {name: set() for name in masters.addresses()}
        for number in range(50):
            body = b"%d" % number
            sent[producer.send(Message(TOPIC, body)).queue.broker_name].add(body)
        assert all(sent.values())
        for name, address in slaves.addresses().items():
            wait_until(partial(has, address, sent[name]), f"all at the slave {name}", BACK_S)
        status, text = asked("127.0.0.1", port, "/metrics", BACK_S)
        found = samples(text.decode())
        for name, bodies in sent.items():
            assert value(found, "troupemq_master_up", node_id=name) == 1
            taken = value(found, "rocketmq_messages_in_total", node_id=name, topic=TOPIC)
            assert taken == len(bodies)
        assert (status, len(found["troupemq_master_up"])) == (200, 2)
        status, text = asked("127.0.0.1", port, "/health/ready?verbose", BACK_S)
        assert status == 200 and all(name.encode() in text for name in sent), text


def wait_for_each(senders: Sequence[Sender], masters: OurMasters) -> None:
    """Until every master has acknowledged something more."""
    before = {name: len(acknowledged(senders, name)) for name in masters.pids()}
    wait_until(
        lambda: all(len(acknowledged(senders, each)) > count for each, count in before.items()),
        "sends to every master",
        BACK_S,
    )


def is_back(masters: OurMasters, before: Mapping[str, int]) -> bool:
    """Whether all serve again, one of them as a new process."""
    return masters.pids() != before


def has(address: str, bodies: set[bytes]) -> bool:
    """Whether the broker has these of the topic, and nothing else."""
    return found_at(address) == bodies


def found_at(address: str) -> set[bytes]:
    with Wire(address) as wire:
        return {record.body for queue in range(QUEUES) for record in wire.messages(TOPIC, queue)}
