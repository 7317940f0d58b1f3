"""Attempts on the replication port, A37.

A connected slave gets every message and may confirm its receipt (H16).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from select import EPOLLIN, EPOLLOUT
from socket import socket, socketpair
from typing import cast

import pytest
from structlog.testing import capture_logs

from actors.engine import server_log
from actors.network.connections import Accepted
from actors.network.request import Service
from protocol.codes import ResponseCode
from protocol.ha import encode_report
from tests.support.brokers import BROKER, STORE, SimulatedBroker, send_command
from tests.support.guarded import GUARDED, GuardedBroker
from tests.support.told import times


class Slave:
    """A stranger at the HA port of a simulated master."""

    def __init__(self, made: SimulatedBroker, host: str) -> None:
        self._made = made
        self.line, self._far = socketpair()
        self._far.setblocking(False)
        self.line.setblocking(False)
        accepted = Accepted(self._far, (host, 1), Service({}))
        made.system.address("ha_master").tell(accepted)
        made.system.drain()

    def say(self, data: bytes) -> None:
        if self.is_open:
            self.line.send(data)
            self._made.system.loop.make_ready(self._far, EPOLLIN | EPOLLOUT)
            self._made.system.drain()

    @property
    def is_open(self) -> bool:
        return self._far.fileno() != -1

    def read(self) -> bytes:
        try:
            return self.line.recv(1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def slaves() -> Iterator[list[Slave]]:
    made: list[Slave] = []
    yield made
    for each in made:
        each.line.close()


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 1, -(1 << 63), 1 << 40])
def test_a37_an_offset_out_of_range_gets_nothing(slaves: list[Slave], offset: int) -> None:
    made = SimulatedBroker(1)
    made.send(b"secret")
    slaves.append(Slave(made, "198.51.100.1"))
    slaves[0].say(encode_report(offset))
    assert not slaves[0].is_open
    assert b"secret" not in slaves[0].read()
    assert made.broker.replicas.link_count == 0


def test_a37_a_slave_cannot_confirm_more_than_it_was_sent(slaves: list[Slave]) -> None:
    """4.9.7's master believes any number, so a stranger would confirm missing bytes."""
    made = SimulatedBroker(1)
    made.send(b"one")
    slaves.append(Slave(made, "198.51.100.1"))
    slaves[0].say(encode_report(0))
    acked = made.broker.replicas.acked_offset
    slaves[0].say(encode_report(made.broker.store.commit_log.end_offset + 1))
    assert not slaves[0].is_open
    assert made.broker.replicas.acked_offset == acked


def test_a37_unauthenticated_slaves_are_limited_and_log_one_line_each(slaves: list[Slave]) -> None:
    made = SimulatedBroker(1)
    with capture_logs() as logs:
        slaves += [Slave(made, "198.51.100.1") for _ in range(100)]
    assert [each.is_open for each in slaves] == [True] * 64 + [False] * 36
    assert len([each for each in logs if each["event"] == "slave limit reached"]) == 1
    made.system.advance(60_000)
    assert not any(each.is_open for each in slaves), "who says nothing is no slave"


def test_a37_slaves_that_reconnect_often_log_few_lines(
    slaves: list[Slave], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_log, "LINES_MAX", 10)
    made = SimulatedBroker(1)
    with capture_logs() as logs:
        for number in range(40):
            host = f"198.51.100.{number}"
            slaves += [came := Slave(made, host), missed := Slave(made, host)]
            came.say(encode_report(0))
            came.say(encode_report(1 << 40))
            missed.say(encode_report((1 << 40) + number))
        assert not any(each.is_open for each in slaves)
        made.system.advance(60_000)
        slaves.append(Slave(made, "10.0.0.1"))
        slaves[-1].say(encode_report(0))
    told = [str(each["event"]) for each in logs]
    told = [each for each in told if "slave" in each]
    assert len(told) == 13 and told[-1] == "slave connected"
    assert times(logs, "slave changes suppressed") == [1, 40 * 3 - 10 - 1], "at once, and the rest"


def test_a37_with_accounts_unauthenticated_slaves_get_and_confirm_nothing(
    slaves: list[Slave],
) -> None:
    made = GuardedBroker(1, config=replace(GUARDED, broker_role="SYNC_MASTER"))
    made.make_topic()
    end = made.broker.store.commit_log.end_offset
    with capture_logs() as logs:
        slaves += [Slave(made, f"198.51.100.{number}") for number in range(100)]
        for each, offset in zip(slaves, [0, end, -1, (1 << 63) - 1] * 25, strict=True):
            each.say(encode_report(offset))
        answer = made.ask(send_command(b"secret"))
        made.system.advance(1000)
    assert not any(each.is_open or each.read() for each in slaves)
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert made.broker.replicas.link_count == made.broker.replicas.acked_offset == 0
    assert len([each for each in logs if each["event"] == "slave address rejected"]) == 1


def test_a37_bytes_not_sent_are_not_confirmed(slaves: list[Slave]) -> None:
    """Without accounts any client can be a slave; it can confirm only the bytes sent to it."""
    made = SimulatedBroker(1, config=replace(BROKER, broker_role="SYNC_MASTER"))
    slaves.append(Slave(made, "198.51.100.1"))
    slaves[0].say(encode_report(0))
    waiting = [made.start_send(bytes(50_000)) for _ in range(20)]
    made.system.drain()
    end = made.broker.store.commit_log.end_offset
    slaves[0].say(encode_report(end))
    assert not slaves[0].is_open, "most bytes wait until the slave reads"
    assert made.broker.replicas.acked_offset == 0
    made.system.advance(made.config.slave_timeout_ms + 1000)
    assert all(answers[0].code != 0 for answers in waiting)


def test_a37_only_allowed_addresses_follow(slaves: list[Slave]) -> None:

    config = replace(BROKER, ha_allowed_addresses="10.0.0.7;10.1.0.*")
    made = SimulatedBroker(1, config=config)
    with capture_logs() as logs:
        slaves += [Slave(made, "198.51.100.1") for _ in range(50)]
        slaves += [Slave(made, host) for host in ("10.0.0.7", "10.1.0.9")]
    assert [each.is_open for each in slaves] == [False] * 50 + [True] * 2
    assert len([each for each in logs if each["event"] == "slave address rejected"]) == 1


class Reader:
    """Socket of a slave that wants the whole log and takes all of it."""

    def __init__(self) -> None:
        self._end, self._other = socketpair()
        self._said = [encode_report(1)]
        self.taken_bytes = 0

    def fileno(self) -> int:
        return self._end.fileno()

    def recv(self, _: int) -> bytes:
        if not self._said:
            raise BlockingIOError
        return self._said.pop()

    def sendmsg(self, buffers: Sequence[bytes | memoryview]) -> int:
        size = sum(map(len, buffers))
        self.taken_bytes += size
        return size

    def close(self) -> None:
        self._end.close()
        self._other.close()


def test_a37_many_slaves_get_the_log_in_turns() -> None:
    """With 64 slaves that were behind, one turn sent 64 MiB: 25 ms, with TLS 90 ms."""
    store = replace(STORE, commit_log_file_bytes=1 << 20)
    made = SimulatedBroker(3, store_config=store)
    made.make_topic()
    for _ in range(12):
        made.send(bytes(60_000))
    readers = [Reader() for _ in range(32)]
    for number, each in enumerate(readers):
        accepted = Accepted(cast(socket, each), ("192.0.2.1", number + 1), Service({}))
        made.system.address("ha_master").tell(accepted)
    made.system.drain()
    for each in readers:
        made.system.loop.make_ready(each, EPOLLIN)
    most, before = 0, [0] * len(readers)
    while made.system.loop.step():
        taken = [each.taken_bytes for each in readers]
        most = max(most, *(now - then for now, then in zip(taken, before, strict=True)))
        before = taken
    assert all(each.taken_bytes > 700_000 for each in readers)
    assert most < 200_000
