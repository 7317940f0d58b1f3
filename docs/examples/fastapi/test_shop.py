"""Tests of the shop, with a broker of their own."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from shop import shop

from troupemq.testing import LocalBroker

pytestmark = pytest.mark.troupemq(topics={"Orders": 4})

ORDER = {"number": "17", "cents": 4200}


@pytest.fixture
def client(troupemq_broker: LocalBroker) -> Iterator[TestClient]:
    with TestClient(shop(troupemq_broker.namesrv)) as client:
        yield client


def test_order_is_shipped(troupemq_broker: LocalBroker, client: TestClient) -> None:
    answer = client.post("/orders", json=ORDER)
    assert answer.status_code == 202
    (message,) = troupemq_broker.expect("Orders", keys="17")
    assert answer.json() == {"message_id": message.message_id}
    troupemq_broker.join("shipping")
    assert client.get("/shipped").json() == ["17"]


def test_order_is_placed_although_the_first_try_fails(
    troupemq_broker: LocalBroker, client: TestClient
) -> None:
    fault = troupemq_broker.fail("send", times=1)
    assert client.post("/orders", json=ORDER).status_code == 202
    assert fault.hits == 1
