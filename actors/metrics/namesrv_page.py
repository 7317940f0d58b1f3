"""Metrics page of a name server; all names are TroupeMQ extensions."""

from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.packed import Packed
from actors.metrics.page import MetricsPage
from actors.metrics.process_page import ProcessPage
from actors.metrics.sources import FigureSet
from actors.metrics.tls_page import write_connections, write_tls
from actors.naming.messages import RouteFigures
from actors.network.messages import ConnectionFigures
from actors.network.tls_contexts import TlsContexts


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
