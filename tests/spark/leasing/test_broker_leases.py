"""Leases asked of brokers: taken, renewed, taken again when forgotten; and brokers without any."""

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.bodies_own import LeasedQueues
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import LeaseHeader
from spark.leasing.broker_leases import BrokerLease, Renewing
from tests.troupemq.fake_server import FakeServer

QUEUES = {("Orders", 0): 5, ("Orders", 1): 7}


@pytest.fixture
def broker() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


class Answering:
    """Answers leases with a success until it is told otherwise; keeps what was asked."""

    def __init__(self, broker: FakeServer) -> None:
        self.asked: list[tuple[str, dict[tuple[str, int], int]]] = []
        self.codes: dict[str, int] = {}
        broker.on(RequestCode.LEASE_LOG, self)

    def __call__(self, command: RemotingCommand) -> Any:
        header = LeaseHeader.decode(command.fields)
        queues = LeasedQueues.decode(command.body).queues if command.body else []
        wanted = {(each.topic, each.queue_id): each.queue_offset for each in queues}
        self.asked.append((header.action, wanted))
        return command.answer(self.codes.get(header.action, 0), remark="so it is")


def test_a_lease_is_taken_renewed_and_released(broker: FakeServer) -> None:
    answering = Answering(broker)
    lease = BrokerLease(broker.address, "a read", QUEUES)
    assert lease.acquire() and lease.renew()
    lease.release()
    assert answering.asked == [("take", QUEUES), ("renew", {}), ("release", {})]


def test_an_expired_lease_is_acquired_again(broker: FakeServer) -> None:
    answering = Answering(broker)
    answering.codes["renew"] = ResponseCode.QUERY_NOT_FOUND
    lease = BrokerLease.from_json(BrokerLease(broker.address, "a read", QUEUES).as_json())
    assert lease.renew()
    lease.close()
    assert answering.asked == [("renew", {}), ("take", QUEUES)]


def test_an_official_broker_is_asked_once_and_logged(
    broker: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    answering = Answering(broker)
    answering.codes["take"] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    lease = BrokerLease(broker.address, "a read", QUEUES)
    assert not lease.acquire() and not lease.acquire() and not lease.renew()
    lease.close()
    assert len(answering.asked) == 1
    assert capfd.readouterr().err.count("no lease, so this broker may delete files") == 1


def test_an_unreachable_broker_does_not_stop_the_reader(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        address = server.address
    lease = BrokerLease(address, "a read", QUEUES)
    assert not lease.acquire() and not lease.renew()
    assert capfd.readouterr().err.count("no lease") == 1


def test_leases_at_several_brokers_move_and_end_together(broker: FakeServer) -> None:
    answering = Answering(broker)
    renewing = Renewing("a stream")
    renewing.move({broker.address: QUEUES})
    moved = {("Orders", 0): 9}
    renewing.move({broker.address: moved})
    renewing.release()
    assert answering.asked == [("take", QUEUES), ("take", moved), ("release", {})]
