"""The port of metrics: opened before anything runs, without what is shown there."""

from dataclasses import dataclass
from socket import gethostname

from actors.config import BrokerConfig, NamesrvConfig
from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH, PageServer, PageTls
from actors.network.bind_address import EVERYWHERE
from actors.network.connections import open_listener
from actors.network.known_hosts import KnownHosts
from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import DISABLED, PERMISSIVE

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
    return PageServer(sock, tls, hosts_of(config))


def hosts_of(config: BrokerConfig | NamesrvConfig) -> KnownHosts:
    """The names by which metrics and health of a server may be called, besides addresses."""
    names = [gethostname(), config.bind_address, config.metrics_host]
    if isinstance(config, BrokerConfig):
        names += [config.broker_ip1, config.broker_ip2]
    own = [name for name in names if name != EVERYWHERE]
    return KnownHosts([*own, *config.monitoring_hosts.split(",")])


def open_metrics(
    config: BrokerConfig | NamesrvConfig, shared: PageServer | None = None
) -> MetricsServer | None:
    """If metrics are wanted. Raises PortTaken, StoreError.

    `shared`: the one of health, where both settings name one port.
    """
    if not config.serves_metrics:
        return None
    return MetricsServer(shared or page_server(config), shared is not None)
