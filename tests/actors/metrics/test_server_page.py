"""Tests of actors/metrics/server_page.py: metrics of a name server."""

from http.client import HTTPConnection
from pathlib import Path

from actors.config import NamesrvConfig
from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.server_page import NamesrvMetrics
from actors.metrics.sources import FigureSet
from actors.namesrv_server import start_namesrv
from actors.naming.messages import RouteFigures
from actors.network.messages import ConnectionFigures
from storage.files.disk import RealDisk
from tests.support.metrics import samples, text_of, value


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


def test_figures_of_the_actors_have_exactly_this_text(any_system: ActorSystem) -> None:
    figures = RouteFigures(1, 2, 3, 4, 5, 6), ConnectionFigures({(False, True): 7}, unsent_bytes=8)
    reading = FigureSet({type(each): each for each in figures})
    page = NamesrvMetrics(any_system, ActorFamilies(any_system)).write("", reading)
    lines = [line for line in text_of(page).splitlines() if not line.startswith("#")]
    assert [line.replace('node_type="namesrv"', "") for line in lines[:8]] == [
        *("rocketmq_namesrv_topics{} 1", "rocketmq_namesrv_brokers{} 2"),
        *("rocketmq_namesrv_clusters{} 3", "rocketmq_namesrv_registrations_total{} 4"),
        *("rocketmq_namesrv_expiries_total{} 5", "rocketmq_namesrv_disconnections_total{} 6"),
        *('troupemq_connections{,port="main",tls="false"} 0',),
        *('troupemq_connections{,port="main",tls="true"} 7',),
    ]
