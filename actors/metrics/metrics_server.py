"""HTTP port for metrics, opened before the server starts."""

from dataclasses import dataclass
from socket import gethostname
from typing import TYPE_CHECKING

from actors.config import BrokerConfig, NamesrvConfig
from actors.network.bind_address import EVERYWHERE
from actors.network.connections import open_listener
from actors.settings.tls_settings import DISABLED, PERMISSIVE

if TYPE_CHECKING:
    from actors.metrics.page_server import PageServer
    from actors.network.bind_address import KnownHosts

PORT_NAME = "metricsPromExporterPort"
HOST_NAME = "metricsPromExporterHost"


@dataclass
class MetricsServer:
    """Page server that serves metrics, alone or together with health."""

    server: "PageServer"
    is_shared: bool

    def close(self) -> None:
        """Remove the metrics pages, or close the server."""
        if self.is_shared:
            from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH

            self.server.remove([BROKER_PATH, EXPORTER_PATH])
        else:
            self.server.close()


def page_server(
    config: BrokerConfig | NamesrvConfig, port: int | None = None, name: str = PORT_NAME
) -> "PageServer":
    """Return a server without pages at the metrics port, or at `port`.

    `name` is the setting of that port. Raises PortTaken, StoreError.
    """
    # Imported here: most servers show no metrics.
    from actors.metrics.page_server import PageServer, PageTls

    tls: PageTls | None = None
    mode = config.metrics_port_mode
    if mode != DISABLED:
        from actors.network.tls_contexts import TlsContexts

        tls = PageTls(TlsContexts(config), takes_plain=mode == PERMISSIVE)
    at = config.metrics_port if port is None else port
    sock = open_listener(config.metrics_host, at, name, HOST_NAME)
    return PageServer(sock, tls, hosts_of(config))


def hosts_of(config: BrokerConfig | NamesrvConfig) -> "KnownHosts":
    """Return the host names that metrics and health answer to, besides addresses."""
    from actors.network.bind_address import KnownHosts

    names = [gethostname(), config.bind_address, config.metrics_host]
    if isinstance(config, BrokerConfig):
        names += [config.broker_ip1, config.broker_ip2]
    own = [name for name in names if name != EVERYWHERE]
    return KnownHosts([*own, *config.monitoring_hosts.split(",")])


def open_metrics(
    config: BrokerConfig | NamesrvConfig, shared: "PageServer | None" = None
) -> MetricsServer | None:
    """Return the metrics server, or None if the settings disable metrics.

    `shared` is the server of health, if both settings name the same port. Raises PortTaken,
    StoreError.
    """
    if not config.serves_metrics:
        return None
    return MetricsServer(shared or page_server(config), shared is not None)
