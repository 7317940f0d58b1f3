"""What the tests of the client share."""

from collections.abc import Iterator

import pytest

from protocol.codes import RequestCode
from tests.troupemq.client.cluster import BATCH, SEND, Cluster, stored
from tests.troupemq.fake_server import FakeServer, serve_routes


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
