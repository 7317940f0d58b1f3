"""Tests of the warehouse, with a broker of their own and its clock."""

import json
from collections.abc import Iterator

import pytest
from warehouse import PACKED, PAID, Warehouse

from troupemq import BrokerError, ConsumeFrom, Message, Producer, SimpleConsumer
from troupemq.testing import LocalBroker

pytestmark = pytest.mark.troupemq(topics={PAID: 4, PACKED: 4})


@pytest.fixture
def warehouse(troupemq_broker: LocalBroker, producer: Producer) -> Iterator[Warehouse]:
    namesrv = troupemq_broker.namesrv
    with SimpleConsumer("warehouse", namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe(PAID)
        yield Warehouse(consumer, producer, {"book": 1})


def pay(producer: Producer, number: str) -> None:
    body = json.dumps({"number": number, "article": "book"}).encode()
    producer.send(Message(PAID, body, keys=number))


def test_paid_order_is_packed(
    troupemq_broker: LocalBroker, warehouse: Warehouse, producer: Producer
) -> None:
    pay(producer, "17")
    assert warehouse.work() == 1
    troupemq_broker.expect(PACKED, keys="17")
    troupemq_broker.join("warehouse")


def test_order_waits_for_stock(
    troupemq_broker: LocalBroker, warehouse: Warehouse, producer: Producer
) -> None:
    warehouse.stock["book"] = 0
    pay(producer, "17")
    assert warehouse.work() == 0
    warehouse.stock["book"] = 1
    troupemq_broker.advance("1m")
    assert warehouse.work() == 1
    troupemq_broker.expect(PACKED, keys="17")


def test_order_that_cannot_be_announced_comes_again(
    troupemq_broker: LocalBroker, warehouse: Warehouse, producer: Producer
) -> None:
    pay(producer, "17")
    fault = troupemq_broker.fail("send")
    with pytest.raises(BrokerError):
        warehouse.work()
    fault.is_ended = True
    warehouse.stock["book"] = 1
    troupemq_broker.advance("2h")
    assert warehouse.work() == 1
    troupemq_broker.expect(PACKED, keys="17")
