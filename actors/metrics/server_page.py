"""Metrics page of a name server, and the parts that a broker's page has too: process and TLS.

All names of a name server's metrics are TroupeMQ extensions. prometheus_client writes those of the
process and its garbage collector. If metrics are enabled without the extra `metrics`, the server
refuses to start.
"""

from collections.abc import Sequence

from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.page import MetricsPage, Packed, labels
from actors.metrics.selection import flag
from actors.metrics.sources import FigureSet
from actors.naming.messages import RouteFigures
from actors.network.messages import ConnectionFigures
from actors.network.tls_contexts import TlsContexts
from actors.network.tls_negotiator import HANDSHAKE_RESULTS


class ProcessPage:
    """Families of the library, which must be installed; owned by one thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> str:
        """Return the families process_* and python_gc_*."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()


PORTS = ("main", "fast")


def write_tls(page: MetricsPage, contexts: TlsContexts | None) -> None:
    """Write the families; they are empty without TLS."""
    page.counter(
        "troupemq_tls_handshakes_total",
        "TLS handshakes by result",
        []
        if contexts is None
        else [
            (labels({"result": result}), contexts.handshakes[result])
            for result in HANDSHAKE_RESULTS
        ],
    )
    ends = {} if contexts is None else contexts.not_after_s
    page.gauge(
        "troupemq_tls_certificate_not_after_seconds",
        "Earliest expiry of a certificate in the chain, Unix seconds",
        [(labels({"use": use}), end_s) for use, end_s in ends.items()],
    )


def write_connections(
    page: MetricsPage,
    connections: ConnectionFigures,
    meaning: str,
    ports: Sequence[str] = PORTS,
) -> None:
    """Write the number of open connections by port and TLS."""
    page.gauge(
        "troupemq_connections",
        meaning,
        [
            (
                labels({"port": port, "tls": flag(has_tls)}),
                connections.open.get((port == "fast", has_tls), 0),
            )
            for port in ports
            for has_tls in (False, True)
        ],
    )


class NamesrvMetrics:
    """Page of one name server; owned by one thread."""

    def __init__(
        self, system: ActorSystem, actors: ActorFamilies, tls: TlsContexts | None = None
    ) -> None:
        self._system, self._families, self._tls = system, actors, tls
        self._process = ProcessPage()

    def write(self, _: str, reading: FigureSet) -> Packed:
        page, routes = MetricsPage({"node_type": "namesrv"}), reading.of(RouteFigures)
        page.value("rocketmq_namesrv_topics", "Topics of registered brokers", routes.topics)
        page.value("rocketmq_namesrv_brokers", "Registered brokers", routes.brokers)
        page.value("rocketmq_namesrv_clusters", "Clusters of registered brokers", routes.clusters)
        for name, meaning, count in (
            ("registrations", "Broker registrations", routes.registered),
            ("expiries", "Brokers removed after their registration expired", routes.expired),
            ("disconnections", "Brokers removed after their connection closed", routes.gone),
        ):
            page.counter(f"rocketmq_namesrv_{name}_total", meaning, [("", count)])
        connections = reading.of(ConnectionFigures)
        write_connections(page, connections, "Open connections of clients and brokers", ["main"])
        write_tls(page, self._tls)
        self._families.write(page)
        page.add_text(self._process.text())
        return page.packed()
