"""Shared fixtures of the client's tests."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actors.config import BrokerConfig, NamesrvConfig
from protocol.codes import RequestCode
from storage.config import StoreConfig
from tests.compat.patience import wait_until
from tests.troupemq.client.cluster import BATCH, SEND, Cluster, stored
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.admin import Admin
from troupemq.client.errors import RouteNotFound
from troupemq.servers import Servers


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


def given_up(reason: str) -> None:
    pytest.fail(reason)


def is_registered(admin: Admin) -> bool:
    with suppress(RouteNotFound):
        return bool(admin.masters())
    return False


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Our name server and our broker, which know one delay level, of no time at all."""
    made = Servers(given_up)
    made.start_namesrv(NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
    namesrv = f"127.0.0.1:{made.ports['namesrv']}"
    store = StoreConfig(
        root=str(tmp_path / "store"),
        commit_log_file_bytes=1 << 20,
        message_delay_level="0s",
        max_hash_slots=100,
        max_index_entries=400,
    )
    made.start_broker(
        BrokerConfig(listen_port=0, broker_ip1="127.0.0.1", namesrv_address=namesrv), store
    )
    with Admin(namesrv) as admin:
        wait_until(lambda: is_registered(admin), "the broker's registration", WAIT_S)
    yield made
    assert made.stop(20)
