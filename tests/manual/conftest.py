"""Servers and folders for the pages of the manual that the tests follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from tests.manual.following import HOST, wait_for_registration
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Start the servers of `troupemq run` on free ports, and wait for the broker's registration."""
    monkeypatch.chdir(tmp_path)
    servers = Servers(lambda reason: None)
    config, _ = parse_namesrv_config("", {"listenPort": "0", "bindAddress": HOST})
    servers.start_namesrv(config)
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    own = {"listenPort": "0", "bindAddress": HOST, "brokerIP1": HOST, "namesrvAddr": namesrv}
    broker, store, _ = parse_broker_config(
        "", {**own, "brokerName": "broker-a", "storePathRootDir": "data/store", **SMALL_FILES}
    )
    servers.start_broker(broker, store)
    wait_for_registration(servers)
    yield servers
    servers.stop(20)
