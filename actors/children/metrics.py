"""Construction of the actors that serve metrics of a broker or a name server."""

from collections.abc import Callable, Mapping, Sequence

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.broker_metrics import CLIENTS, BrokerMetrics
from actors.metrics.client_figures import ClientFigures
from actors.metrics.metrics_port import Makers, MetricsPort, page_of
from actors.metrics.metrics_renderer import MetricsRenderer, Write
from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH, PageServer
from actors.metrics.server_page import NamesrvMetrics
from actors.network.tls_contexts import TlsContexts
from actors.parts import Parts, physical_memory_bytes

WITH_FIGURES: Mapping[str, Sequence[str]] = {
    BROKER_PATH: (
        *("clients", "connections", "group_commit", "ha_master", "ha_slave"),
        *("open_transactions", "pull_hold", "registration", "spark_jobs"),
    ),
    EXPORTER_PATH: ("broker_info",),
}
"""Actors of a broker on the loop that are asked for their figures, by page."""


def broker_metrics_children(parts: Parts, at: PageServer) -> list[ChildSpec]:
    """Return the children for metrics of a broker, which start last."""
    system, address = parts.system, parts.system.address
    families = ActorFamilies(system)

    def pages() -> Mapping[str, Write]:
        recent_bytes = physical_memory_bytes() // 10
        return BrokerMetrics(parts, families, parts.ports.main, recent_bytes).pages

    to = {"": address("exposition")}
    clients = ChildSpec(
        "client_figures",
        lambda _: ClientFigures(
            parts.tables.consumers, address("client_calls"), address("exposition")
        ),
    )
    by_path = {BROKER_PATH: to, EXPORTER_PATH: {**to, CLIENTS: address("client_figures")}}
    serving = _serving(system, at, pages, by_path, families, WITH_FIGURES)
    return [clients, *serving]


def namesrv_metrics_children(
    system: ActorSystem, at: PageServer, tls: TlsContexts | None
) -> list[ChildSpec]:
    families = ActorFamilies(system)
    by_path = {BROKER_PATH: {"": system.address("exposition")}}
    return _serving(
        system,
        at,
        lambda: {BROKER_PATH: NamesrvMetrics(system, families, tls).write},
        by_path,
        families,
        {BROKER_PATH: ("namesrv", "namesrv_connections")},
    )


def _serving(
    system: ActorSystem,
    at: PageServer,
    pages: Callable[[], Mapping[str, Write]],
    by_path: Makers,
    families: ActorFamilies,
    asked: Mapping[str, Sequence[str]],
) -> list[ChildSpec]:
    port: ActorAddress = system.address("metrics_port")

    def exposition(_: System) -> MetricsRenderer:
        return MetricsRenderer(pages(), families, port)

    def metrics_port(_: System) -> MetricsPort:
        at.add(dict.fromkeys(by_path, page_of(port)))
        return MetricsPort(by_path, asked, families.loop_waits)

    return [ChildSpec("exposition", exposition), ChildSpec("metrics_port", metrics_port)]
