"""Sources of a server's metrics: published snapshots and counters, and the figures of actors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from actors.access.refusals import Refusals
from actors.config import BrokerConfig
from actors.dispatching.reput import DispatchProgress
from actors.engine.histogram import ClassCounts
from actors.engine.snapshot_ref import SnapshotRef
from actors.engine.system import ActorSystem
from actors.network.answer_stats import AnswerStats
from actors.network.tls_contexts import TlsContexts
from actors.retention.retention_holds import KeepingReport
from actors.scrubbing.scrubber import ScrubFigures
from actors.sending.replication_progress import ReplicationProgress
from actors.spans.span_queue import SpanQueue
from actors.statistics.pull_stats import PullStats
from actors.statistics.put_stats import PutStats
from actors.statistics.timer_figures import TimerFigures
from actors.statistics.transaction_stats import TransactionStats
from actors.tables.offset_guard import OffsetStats
from actors.tables.tables import Tables
from storage.message_store import MessageStore

Kind = TypeVar("Kind")


class BrokerSources(Protocol):
    """The parts of a broker that its pages read."""

    @property
    def system(self) -> ActorSystem: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def tables(self) -> Tables: ...
    @property
    def put_stats(self) -> PutStats: ...
    @property
    def pull_stats(self) -> PullStats: ...
    @property
    def offset_stats(self) -> OffsetStats: ...
    @property
    def transaction_stats(self) -> TransactionStats: ...
    @property
    def timer_figures(self) -> TimerFigures: ...
    @property
    def answer_stats(self) -> AnswerStats: ...
    @property
    def sync_ms(self) -> ClassCounts: ...
    @property
    def following(self) -> DispatchProgress: ...
    @property
    def kept(self) -> SnapshotRef[KeepingReport]: ...
    @property
    def scrubbed(self) -> SnapshotRef[ScrubFigures]: ...
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
