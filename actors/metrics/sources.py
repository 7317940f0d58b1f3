"""Sources of a broker's metrics: shared counters and tables, and the actors."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from actors.access.refusals import Refusals
from actors.config import BrokerConfig
from actors.dispatching.reput import DispatchProgress
from actors.engine.actor import Actor
from actors.engine.histogram import ClassCounts
from actors.engine.snapshot_ref import SnapshotRef
from actors.engine.system import ActorSystem
from actors.network.answer_stats import AnswerStats
from actors.network.tls_contexts import TlsContexts
from actors.retention.retention_holds import KeepingReport
from actors.sending.replication_progress import ReplicationProgress
from actors.spans.span_queue import SpanQueue
from actors.statistics.pull_stats import PullStats
from actors.statistics.put_stats import PutStats
from actors.statistics.timer_figures import TimerFigures
from actors.statistics.transaction_stats import TransactionStats
from actors.tables.offset_guard import OffsetStats
from actors.tables.tables import Tables
from storage.message_store import MessageStore

HALVES_READ_MAX = 1000
"""Maximum open transactions to read a topic for; the others are shown without one."""

Kind = TypeVar("Kind", bound=Actor)


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
    def replicas(self) -> ReplicationProgress: ...
    @property
    def refusals(self) -> Refusals: ...
    @property
    def tls(self) -> TlsContexts | None: ...
    @property
    def spans(self) -> SpanQueue | None: ...


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """Open transactions, as read on the loop."""

    count: int = 0
    offsets: tuple[int, ...] = ()
    """Physical offsets of the oldest ones."""


def open_halves(store: MessageStore) -> OpenHalves:
    """Return the open transactions; only on the loop, which changes the table."""
    table = store.transaction_table
    found = table.pending(HALVES_READ_MAX)
    return OpenHalves(table.pending_count, tuple(each.physical_offset for each in found))


def actor_of(actors: dict[str, Actor], name: str, kind: type[Kind]) -> Kind | None:
    """Return the actor of that name, or None if it is missing or of another class."""
    found = actors.get(name)
    return found if isinstance(found, kind) else None
