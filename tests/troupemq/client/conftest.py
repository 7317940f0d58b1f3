"""Shared fixtures of the client's tests."""

from collections.abc import Iterator

import pytest

from protocol.codes import RequestCode
from tests.troupemq.client.cluster import BATCH, SEND, Cluster, stored
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq.testing import LocalBroker, running_broker


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with FakeServer() as namesrv, FakeServer() as a, FakeServer() as b:
        serve_routes(namesrv, {"a": a, "b": b}, {"T": 2, "TBW102": 8})
        for broker in (a, b):
            broker.on(SEND, stored)
            broker.on(BATCH, stored)
            broker.succeed(RequestCode.UNREGISTER_CLIENT)
            broker.succeed(RequestCode.HEART_BEAT)
        yield Cluster(namesrv=namesrv, a=a, b=b)


@pytest.fixture
def local_broker() -> Iterator[LocalBroker]:
    """A broker that knows one delay level, of no time at all."""
    with running_broker(settings={"messageDelayLevel": "0s"}) as broker:
        yield broker


@pytest.fixture
def namesrv(local_broker: LocalBroker) -> str:
    """Address of the name server of `local_broker`."""
    return local_broker.namesrv
