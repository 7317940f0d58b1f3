"""The making of the actors that serve metrics: of a broker, and of a name server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from structlog import get_logger

from actors.config import BrokerConfig, NamesrvConfig
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
from actors.metrics.metrics_port import Makers, MetricsPort, page_of
from actors.metrics.namesrv_page import NamesrvMetrics
from actors.metrics.page_server import PageServer, PageTls
from actors.metrics.process_page import missing_library
from actors.metrics.sources import open_halves
from actors.network.connections import open_listener
from actors.network.tls_contexts import TlsContexts
from actors.parts import Parts, physical_memory_bytes
from actors.settings.tls_settings import DISABLED, PERMISSIVE

log = get_logger(__name__)

PORT_NAME = "metricsPromExporterPort"
HOST_NAME = "metricsPromExporterHost"


@dataclass
class MetricsServer:
    """Where the pages of metrics are answered."""

    server: PageServer
    is_shared: bool
    """With health, which closes it."""

    def close(self) -> None:
        """They are there no more."""
        if self.is_shared:
            self.server.remove([BROKER_PATH, EXPORTER_PATH])
        else:
            self.server.close()


def page_server(
    config: BrokerConfig | NamesrvConfig, port: int | None = None, name: str = PORT_NAME
) -> PageServer:
    """One without pages yet, at the port of metrics, or at `port`, which `name` is the setting of.

    Raises PortTaken, StoreError.
    """
    tls: PageTls | None = None
    mode = config.metrics_port_mode
    if mode != DISABLED:
        tls = PageTls(TlsContexts(config), takes_plain=mode == PERMISSIVE)
    at = config.metrics_port if port is None else port
    sock = open_listener(config.metrics_host, at, name, HOST_NAME)
    return PageServer(sock, tls)


def open_metrics(
    config: BrokerConfig | NamesrvConfig, shared: PageServer | None = None
) -> MetricsServer | None:
    """If metrics are wanted and can be had. Raises PortTaken, StoreError.

    Without the library the server starts all the same, and its log says what to install. `shared`:
    the one of health, where both settings name one port.
    """
    if not config.serves_metrics:
        return None
    if (missing := missing_library()) is not None:
        log.error(missing)
        return None
    return MetricsServer(shared or page_server(config), shared is not None)


def broker_metrics_children(parts: Parts, at: PageServer) -> list[ChildSpec]:
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
    serving = _serving(system, at, pages, by_path, families, lambda: open_halves(parts.store))
    return [clients, *serving]


def namesrv_metrics_children(
    system: ActorSystem, at: PageServer, tls: TlsContexts | None
) -> list[ChildSpec]:
    """The same of a name server."""
    families = ActorFamilies(system)
    by_path = {BROKER_PATH: {"": system.address("exposition")}}
    return _serving(
        system,
        at,
        lambda: {BROKER_PATH: NamesrvMetrics(system, families, tls).write},
        by_path,
        families,
        lambda: None,
    )


def _serving(
    system: ActorSystem,
    at: PageServer,
    pages: Callable[[], Mapping[str, Write]],
    by_path: Makers,
    families: ActorFamilies,
    read: Callable[[], object],
) -> list[ChildSpec]:
    port: Address = system.address("metrics_port")

    def exposition(_: System) -> Exposition:
        return Exposition(pages(), families, port)

    def metrics_port(_: System) -> MetricsPort:
        at.add(dict.fromkeys(by_path, page_of(port)))
        return MetricsPort(by_path, read, families.loop_waits)

    return [ChildSpec("exposition", exposition), ChildSpec("metrics_port", metrics_port)]
