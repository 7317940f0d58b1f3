"""Metrics page of a name server; all names are TroupeMQ extensions."""

from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.packed import Packed
from actors.metrics.page import MetricsPage
from actors.metrics.process_page import ProcessPage
from actors.metrics.sources import actor_of
from actors.metrics.tls_page import write_connections, write_tls
from actors.naming.namesrv import Namesrv
from actors.network.connections import Connections
from actors.network.tls_contexts import TlsContexts


class NamesrvMetrics:
    """Page of one name server; owned by one thread."""

    def __init__(
        self, system: ActorSystem, actors: ActorFamilies, tls: TlsContexts | None = None
    ) -> None:
        self._system, self._families, self._tls = system, actors, tls
        self._process = ProcessPage()

    def write(self, _: str, __: object) -> Packed:
        page, actors = MetricsPage({"node_type": "namesrv"}), self._system.actors()
        namesrv = actor_of(actors, "namesrv", Namesrv)
        topics, brokers, clusters = (0, 0, 0) if namesrv is None else namesrv.sizes()
        page.value("rocketmq_namesrv_topics", "Topics of registered brokers", topics)
        page.value("rocketmq_namesrv_brokers", "Registered brokers", brokers)
        page.value("rocketmq_namesrv_clusters", "Clusters of registered brokers", clusters)
        counts = (
            (0, 0, 0)
            if namesrv is None
            else (namesrv.registered_count, namesrv.expired_count, namesrv.gone_count)
        )
        for name, meaning, count in (
            ("registrations", "Broker registrations", counts[0]),
            ("expiries", "Brokers removed after their registration expired", counts[1]),
            ("disconnections", "Brokers removed after their connection closed", counts[2]),
        ):
            page.counter(f"rocketmq_namesrv_{name}_total", meaning, [("", count)])
        connections = actor_of(actors, "namesrv_connections", Connections)
        write_connections(page, connections, "Open connections of clients and brokers", ["main"])
        write_tls(page, self._tls)
        self._families.write(page)
        page.add_text(self._process.text())
        return page.packed()
