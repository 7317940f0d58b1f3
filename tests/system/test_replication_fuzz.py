"""Invalid bytes at the replication port, and from a false master.

No server ends, no such byte reaches a log, and real slaves continue.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from select import EPOLLIN
from socket import socket, socketpair

import pytest
from structlog.testing import capture_logs

from actors.network.connections import Accepted
from actors.network.messages import Dialed
from actors.network.request import Service
from protocol.ha import encode_report, encode_transfer_head
from tests.support.brokers import SimulatedBroker
from tests.support.replication import Pair, end_of, fill, following, ready

TRIES = 25
HUGE = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1)
FAILURES = (
    "actor failed",
    "request handler failed",
    "actor restart scheduled",
    "supervisor gave up",
)


@contextmanager
def nobody_fails() -> Iterator[None]:
    with capture_logs() as lines:
        yield
    assert [line for line in lines if line["event"] in FAILURES] == []


def connected() -> tuple[socket, socket]:
    ends = socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


def say(pair: Pair, random: Random, made: SimulatedBroker, end: socket, far: socket) -> None:
    """Up to three pieces of this seed's nonsense, in parts as they like; then perhaps an end."""
    speaks_as_slave = made is pair.master
    for _ in range(random.randrange(4)):
        data = random.randbytes(random.randrange(40))
        if random.random() < 0.7:
            own_end = end_of(made)
            offset = random.choice((*HUGE, own_end - 5000, own_end + 1, own_end + 70_000))
            data = encode_report(offset)
            if not speaks_as_slave:
                size = random.choice((0, 0, 1, 50, 4096, -1, 2**31 - 1, 5 << 20))
                data = encode_transfer_head(offset, size) + random.randbytes(min(max(size, 0), 60))
        cut = random.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            if end.fileno() >= 0 and part:
                far.send(part)
                ready(made, end, EPOLLIN)
                pair.settle()
    if random.random() < 0.5:
        far.close()
        ready(made, end, EPOLLIN)
    pair.advance(random.choice((0, 50, 3000)))


@pytest.mark.trial(short=3, long=300)
def test_invalid_bytes_from_slaves_do_not_affect_a_master(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    fars = []
    with following() as pair, nobody_fails():
        fill(pair, 10)
        for number in range(TRIES):
            end, far = connected()
            fars.append(far)
            accepted = Accepted(end, ("192.0.2.66", 1000 + number), Service({}))
            pair.master.system.address("ha_master").tell(accepted)
            pair.settle()
            say(pair, random, pair.master, end, far)
        fill(pair, 10)
        pair.advance(1000)
        pair.assert_equal()
        for far in fars:
            far.close()


@pytest.mark.trial(short=1, long=300)
def test_a_slave_refuses_invalid_bytes_from_a_master(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    ends: list[tuple[socket, socket]] = []

    def dial_nonsense() -> Dialed:
        ends.append(connected())
        return Dialed(ends[-1][0])

    with following() as pair, nobody_fails():
        fill(pair, 10)
        pair.advance(1000)
        before = end_of(pair.slave)
        connect: Callable[[], Dialed] = pair.connect
        monkeypatch.setattr(pair, "connect", dial_nonsense)
        for line in pair.lines:
            line.close_end(pair.master)
        for _ in range(TRIES):
            pair.advance(5100)
            if ends:
                say(pair, random, pair.slave, *ends[-1])
        assert len(ends) > 3, "it tries again and again"
        assert end_of(pair.slave) == before
        monkeypatch.setattr(pair, "connect", connect)
        for _, far in ends:
            far.close()
        if ends[-1][0].fileno() >= 0:
            ready(pair.slave, ends[-1][0], EPOLLIN)
        fill(pair, 10)
        pair.advance(30_000)
        pair.assert_equal()
