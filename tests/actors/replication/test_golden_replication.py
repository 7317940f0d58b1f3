"""Recorded replication: TroupeMQ's master sends official slaves the original's bytes."""

from socket import socketpair

import pytest

from actors.network.connections import Accepted
from actors.network.request import Service
from protocol.ha import Transfer, TransferBuffer, encode_report
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.golden import replication, transfers
from tests.support.replication import SLAVE_ADDRESS, ready
from troupemq.testing.fake_disk import FakeDisk

A, B, C = "a-fresh-slave", "b-reconnect-nonzero-offset", "c-wiped-slave-joins-late"


def data_of(name: str) -> list[Transfer]:
    """Return the original's transfers without heartbeats."""
    return [transfer for transfer in transfers(name) if transfer[1]]


def disk_with(parts: list[Transfer]) -> FakeDisk:
    """A disk with the log that has these parts."""
    disk = FakeDisk()
    directory = f"{STORE.root}/commitlog"
    disk.make_dirs(directory)
    for offset, body in parts:
        begin = offset - offset % STORE.commit_log_file_bytes
        file = disk.open(f"{directory}/{begin:020d}", create=True)
        file.allocate(STORE.commit_log_file_bytes)
        file.pwrite(body, offset - begin)
        file.sync()
    disk.sync_directory(directory)
    return disk


@pytest.mark.parametrize(
    ("name", "log"), [(A, (A,)), (B, (A, B)), (C, (C,))], ids=["fresh", "reconnect", "wiped"]
)
def test_a_recorded_slave_gets_the_bytes_of_the_original(name: str, log: tuple[str, ...]) -> None:
    made = SimulatedBroker(5, disk_with([transfer for each in log for transfer in data_of(each)]))
    slave, end = socketpair()
    slave.settimeout(1)
    end.setblocking(False)
    made.system.address("ha_master").tell(Accepted(end, SLAVE_ADDRESS, Service({})))
    reports = [line["reportOffset"] for line in replication(name) if "reportOffset" in line]
    found: list[Transfer] = []
    buffer = TransferBuffer()
    for offset in reports:
        slave.sendall(encode_report(offset))
        ready(made, end, 1)
        made.system.advance(5_001)
        found += buffer.receive(slave.recv(1 << 20))
    recorded, mine = data_of(name), b"".join(body for _, body in found)
    theirs = b"".join(body for _, body in recorded)
    assert found[0][0] == recorded[0][0]
    assert mine[: len(theirs)] == theirs  # this master also delivers what was delayed
    assert not all(body for _, body in found), "no sign of life"
    assert made.broker.replicas.acked_offset == reports[-1]
    assert made.broker.replicas.link_count == 1
    made.stop()
    slave.close()
