"""Pages of a broker: /metrics, and /metrics/exporter with the names of rocketmq-exporter."""

from collections.abc import Callable, Sequence
from time import perf_counter

from actors.engine.server_log import get_logger
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.broker_page import BrokerPage
from actors.metrics.exporter_page import ExporterPage
from actors.metrics.lags import Ages, Lags
from actors.metrics.own_page import OwnPage
from actors.metrics.page import MetricsPage, Packed, labels
from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH
from actors.metrics.selection import MetricsSelection
from actors.metrics.server_page import ProcessPage
from actors.metrics.sources import BrokerSources, FigureSet
from actors.transactions.messages import OpenHalves
from protocol.properties import real_topic
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import QueueTimes

log = get_logger(__name__)

CLIENTS = "client"
FULL_PERCENT = 80
"""Percentage of metricsOtelCardinalityLimit that is logged, once for each family."""


class BrokerMetrics:
    """Pages of one broker and their state between scrapes; owned by one thread."""

    def __init__(
        self, sources: BrokerSources, actors: ActorFamilies, port: int, recent_bytes: int
    ) -> None:
        """Create the pages of the broker at `port`.

        The last `recent_bytes` of the commit log count as in the page cache.
        """
        store, system = sources.store, sources.system
        probe = PageProbe(store.commit_log, recent_bytes)
        times = QueueTimes(store.commit_log, store.damage, probe)
        self._from = sources
        self._selection = MetricsSelection(sources.config)

        def lags(shows: Callable[[str, str], bool]) -> Lags:
            ages, queues = Ages(times, probe, system.disk), store.consume_queues
            return Lags(sources.tables, queues, sources.pull_stats, ages, shows, sources.config)

        self._lags = lags(self._selection.shows_both)
        self._lags_for_exporter = lags(self._with_retries)
        self._broker = BrokerPage(sources, self._selection)
        self._own = OwnPage(sources, self._selection, actors)
        self._exporter = ExporterPage(sources, self._selection, port)
        self._process = ProcessPage()
        self._topic_of_half: dict[int, tuple[str, int]] = {}
        self._told_full: set[str] = set()
        self.pages: dict[str, Callable[[str, FigureSet], Packed]] = {
            BROKER_PATH: self._write,
            EXPORTER_PATH: self._write_for_exporter,
        }

    def _write(self, _: str, reading: FigureSet) -> Packed:
        began_s, config = perf_counter(), self._from.config
        page = MetricsPage(
            {
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            }
        )
        by_topic, oldest_ms = self._halves(reading.of(OpenHalves).offsets)
        lags = self._broker.lag_rows(self._lags.all(self._from.system.clock.now_ms()))
        self._broker.write(page, lags, by_topic, reading)
        self._own.write(page, lags, oldest_ms, reading)
        self._tell_if_full(page)
        self._end(page, began_s)
        page.add_text(self._process.text())
        return page.packed()

    def _with_retries(self, topic: str, group: str) -> bool:
        shows = self._selection
        return shows.shows_group(group) and (
            shows.shows_topic(topic) or topic.startswith(RETRY_TOPIC_PREFIX)
        )

    def _write_for_exporter(self, _: str, reading: FigureSet) -> Packed:
        began_s, page = perf_counter(), MetricsPage({})
        lags = self._lags_for_exporter.all(self._from.system.clock.now_ms())
        self._exporter.write(page, lags, reading)
        self._end(page, began_s)
        return page.packed()

    def _end(self, page: MetricsPage, began_s: float) -> None:
        counts = [(labels({"family": name}), count) for name, count in page.series.items()]
        page.gauge("troupemq_series", "Series of each family on this page", counts)
        page.value(
            "troupemq_scrape_seconds", "Seconds to write this page", perf_counter() - began_s
        )

    def _tell_if_full(self, page: MetricsPage) -> None:
        limit = self._selection.series_max
        for name, count in page.series.items():
            if count * 100 >= limit * FULL_PERCENT and name not in self._told_full:
                self._told_full.add(name)
                log.warning(
                    "series limit approached",
                    family=name,
                    series=count,
                    metricsOtelCardinalityLimit=limit,
                )

    def _halves(self, offsets: Sequence[int]) -> tuple[dict[str, int], int]:
        """Return open transactions by topic, and the oldest store time in ms, 0 if none."""
        store, before = self._from.store, self._topic_of_half
        self._topic_of_half = {}
        by_topic: dict[str, int] = {}
        oldest_ms = 0
        for offset in offsets:
            known = before.get(offset)
            if known is None:
                record = store.commit_log.read_record(offset, store.damage)
                if record is None:
                    continue
                known = real_topic(record.topic, record.properties), record.store_timestamp
            self._topic_of_half[offset] = known
            topic, stored_ms = known
            by_topic[topic] = by_topic.get(topic, 0) + 1
            oldest_ms = min(oldest_ms or stored_ms, stored_ms)
        return by_topic, oldest_ms
