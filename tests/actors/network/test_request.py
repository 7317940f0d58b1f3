"""Tests of actors/network/request.py: writes to the peer for the sends of one read."""

import pytest

from actors.network.connection import Transport
from tests.support.brokers import SimulatedBroker, send_command
from tests.support.sockets import paired_lines


def test_one_way_sends_cause_no_socket_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimulatedBroker(3)
    made.make_topic()
    queued: list[bytes] = []
    monkeypatch.setattr(Transport, "queue", lambda _, buffers: queued.extend(buffers))
    with paired_lines(made, lines=1) as (line,):
        line.send(*[send_command(oneway=True) for _ in range(20)])
        assert len(made.messages()) == 20
        assert queued == []
