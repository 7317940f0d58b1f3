"""Sources of a server's metrics: published snapshots and counters, and the figures of actors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from actors.access.refusals import Refusals
from actors.admin.broker_info import Sources
from actors.engine.histogram import AnswerStats, ClassCounts
from actors.network.tls_contexts import TlsContexts
from actors.sending.replication_progress import ReplicationProgress
from actors.spans.span_queue import SpanQueue
from actors.statistics.counts import TransactionStats

Kind = TypeVar("Kind")


class BrokerSources(Sources, Protocol):
    """The parts of a broker that its pages read, besides those that BrokerInfo reads."""

    @property
    def transaction_stats(self) -> TransactionStats: ...
    @property
    def answer_stats(self) -> AnswerStats: ...
    @property
    def sync_ms(self) -> ClassCounts: ...
    @property
    def replicas(self) -> ReplicationProgress: ...
    @property
    def refusals(self) -> Refusals: ...
    @property
    def tls(self) -> TlsContexts | None: ...
    @property
    def spans(self) -> SpanQueue | None: ...


@dataclass(frozen=True, slots=True)
class FigureSet:
    """Figures of the actors that a page needs, by their class; they never change."""

    found: Mapping[type, Any]

    def of(self, kind: type[Kind]) -> Kind:
        """Return the figures of a class; without its actor those of `kind()`."""
        figures = self.found.get(kind)
        return figures if isinstance(figures, kind) else kind()
