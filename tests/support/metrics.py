"""Scrapes of simulated brokers, and what is in the text."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from actors.children.metrics import WITH_FIGURES
from actors.engine.messages import AskFigures
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.broker_metrics import BrokerMetrics
from actors.metrics.client_figures import ConsumerAnswer, ConsumerAnswers
from actors.metrics.page import Packed
from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH
from actors.metrics.sources import FigureSet
from tests.support.brokers import PORTS, SimulatedBroker

Found = dict[str, list[tuple[Mapping[str, str], float]]]
"""Samples by name: labels and value."""


class Scraper:
    """Client that keeps state from one scrape to the next."""

    def __init__(self, made: SimulatedBroker) -> None:
        self.made = made
        self.metrics = BrokerMetrics(made.broker, ActorFamilies(made.system), PORTS.main, 0)

    def text(self) -> str:
        """The page /metrics."""
        return text_of(self.metrics.pages[BROKER_PATH]("", self.reading(BROKER_PATH)))

    def found(self) -> Found:
        """The samples of /metrics."""
        return samples(self.text())

    def for_exporter(self, *clients: ConsumerAnswer) -> Found:
        """The samples of /metrics/exporter."""
        found = {**self.reading(EXPORTER_PATH).found, ConsumerAnswers: ConsumerAnswers(clients)}
        return samples(text_of(self.metrics.pages[EXPORTER_PATH]("client", FigureSet(found))))

    def reading(self, path: str) -> FigureSet:
        """Return the figures of the actors that a page needs, as MetricsPort gathers them."""
        figures: list[object] = []
        for each in self.made.system.up(WITH_FIGURES[path]):
            each.tell(AskFigures(figures.append))
        self.made.system.drain()
        return FigureSet({type(each): each for each in figures})


def text_of(page: Packed) -> str:
    """Return the uncompressed bytes."""
    return b"".join(page.unpacked()).decode()


def samples(text: str) -> Found:
    """Return the metrics as Prometheus' own library parses them."""
    found: Found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def families(text: str) -> set[str]:
    """The names that the text declares, with or without samples."""
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def value(found: Found, name: str, **labels: str) -> float:
    """The one value of that name with these labels among its own."""
    values = [
        number
        for own, number in found.get(name, [])
        if all(own.get(key) == wanted for key, wanted in labels.items())
    ]
    assert len(values) == 1, (name, labels, found.get(name))
    return values[0]
