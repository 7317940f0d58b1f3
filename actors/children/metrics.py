"""The making of the actors that serve metrics: of a broker, and of a name server."""

from collections.abc import Callable, Mapping
from socket import socket

from structlog import get_logger

from actors.engine.address import Address
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.broker_metrics import (
    BROKER_PATH,
    CLIENTS,
    EXPORTER_PATH,
    BrokerMetrics,
)
from actors.metrics.client_figures import ClientFigures
from actors.metrics.exposition import Exposition, Write
from actors.metrics.metrics_port import MetricsPort, Pages
from actors.metrics.namesrv_page import NamesrvMetrics
from actors.metrics.process_page import missing_library
from actors.metrics.sources import open_halves
from actors.network.connections import Acceptor, Listener, open_listener
from actors.network.service import Service
from actors.parts import Parts, physical_memory_bytes
from actors.settings.metrics_settings import MetricsSettings

log = get_logger(__name__)

PORT_NAME = "metricsPromExporterPort"
HOST_NAME = "metricsPromExporterHost"


def open_metrics_port(config: MetricsSettings) -> socket | None:
    """The socket, if metrics are wanted and can be had. Raises PortTaken.

    Without the library the server starts all the same, and its log says what to install.
    """
    if not config.serves_metrics:
        return None
    if (missing := missing_library()) is not None:
        log.error(missing)
        return None
    return open_listener(config.metrics_host, config.metrics_port, PORT_NAME, HOST_NAME)


def broker_metrics_children(parts: Parts, sock: socket) -> list[ChildSpec]:
    """Started when all else is there."""
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
    serving = _serving(system, sock, pages, by_path, families, lambda: open_halves(parts.store))
    return [clients, *serving]


def namesrv_metrics_children(system: ActorSystem, sock: socket) -> list[ChildSpec]:
    """The same of a name server."""
    families = ActorFamilies(system)
    by_path = {BROKER_PATH: {"": system.address("exposition")}}
    return _serving(
        system,
        sock,
        lambda: {BROKER_PATH: NamesrvMetrics(system, families).write},
        by_path,
        families,
        lambda: None,
    )


def _serving(
    system: ActorSystem,
    sock: socket,
    pages: Callable[[], Mapping[str, Write]],
    by_path: Pages,
    families: ActorFamilies,
    read: Callable[[], object],
) -> list[ChildSpec]:
    port: Address = system.address("metrics_port")
    host, number = sock.getsockname()[:2]
    listener = Listener(PORT_NAME, host, number, Service({}))

    def exposition(_: System) -> Exposition:
        return Exposition(pages(), families, port)

    return [
        ChildSpec("exposition", exposition),
        ChildSpec("metrics_port", lambda _: MetricsPort(by_path, read, families.loop_waits)),
        ChildSpec("metrics_acceptor", lambda _: Acceptor([(listener, sock)], port)),
    ]
