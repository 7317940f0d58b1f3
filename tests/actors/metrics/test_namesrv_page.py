"""Tests of actors/metrics/namesrv_page.py: metrics of a name server."""

from http.client import HTTPConnection
from pathlib import Path

from actors.config import NamesrvConfig
from actors.engine.system import ActorSystem
from actors.namesrv_server import start_namesrv
from storage.files.disk import RealDisk
from tests.support.metrics import samples, value


def test_a_name_server_serves_its_metrics(tmp_path: Path) -> None:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
        metrics_type="PROM",
        metrics_port=0,
    )
    running = start_namesrv(config, system=ActorSystem.real(disk=RealDisk()))
    try:
        connection = HTTPConnection("127.0.0.1", running.metrics_port, timeout=30)
        connection.request("GET", "/metrics")
        found = samples(connection.getresponse().read().decode())
        connection.close()
    finally:
        assert running.stop(30)
    assert value(found, "rocketmq_namesrv_brokers") == 0
    assert value(found, "rocketmq_namesrv_registrations_total", node_type="namesrv") == 0
    assert value(found, "troupemq_actor_restarts_total", actor="namesrv") == 0
    assert "process_cpu_seconds_total" in found
