"""Snapshots of all tables, and rates of the last minute, read by actors that answer requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from actors.engine.interfaces import SnapshotRef
from actors.tables.consumer_views import ConsumerView, Producing
from actors.tables.groups import GroupConfigs
from actors.tables.offset_journal import Ahead
from actors.tables.offset_limits import OffsetMoves
from actors.tables.offset_searches import Offsets
from actors.tables.request_modes import Modes
from protocol.bloom import BloomFilter
from protocol.bodies_tables import TopicConfig, TopicConfigTable
from storage.tables.consumer_filters import ConsumerFilters

SECOND_MS = 1000

Sample: TypeAlias = tuple[int, int, int, int]
"""Time in ms, messages, bytes and requests."""
Span: TypeAlias = tuple[Sample, Sample]
"""First and last sample of the minute."""
NO_SPAN: Span = ((0, 0, 0, 0), (0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Rates:
    """Samples by topic and by `topic@group`; rates are computed on request."""

    topics: Mapping[str, Span] = field(default_factory=dict)
    groups: Mapping[str, Span] = field(default_factory=dict)
    returned: Mapping[str, Span] = field(default_factory=dict)
    broker_puts: Span = NO_SPAN
    broker_gets: Span = NO_SPAN

    def put(self, topic: str) -> tuple[float, float]:
        """Return the messages and bytes per second stored in a topic."""
        return _per_second(self.topics.get(topic, NO_SPAN))

    def got(self, key: str) -> tuple[float, float]:
        """Return the messages and bytes per second that a `topic@group` got."""
        return _per_second(self.groups.get(key, NO_SPAN))

    def sent_back(self, key: str) -> int:
        """Return the number of messages that a `topic@group` returned."""
        first, last = self.returned.get(key, NO_SPAN)
        return last[1] - first[1]

    def of_broker(self, *, is_put: bool) -> float:
        """Return the messages per second of the whole broker."""
        return _per_second(self.broker_puts if is_put else self.broker_gets)[0]


def _per_second(span: Span) -> tuple[float, float]:
    first, last = span
    took_ms = last[0] - first[0]
    if took_ms <= 0:
        return 0.0, 0.0
    count, size = last[1] - first[1], last[2] - first[2]
    return count * SECOND_MS / took_ms, size * SECOND_MS / took_ms


class Tables:
    """Snapshots that the table actors publish."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.topics: SnapshotRef[Mapping[str, TopicConfig]] = SnapshotRef({})
        self.topic_table = SnapshotRef(TopicConfigTable())
        self.groups: SnapshotRef[GroupConfigs] = SnapshotRef({})
        self.request_modes: SnapshotRef[Modes] = SnapshotRef({})
        self.consumers: SnapshotRef[Mapping[str, ConsumerView]] = SnapshotRef({})
        self.producers: SnapshotRef[Mapping[str, Sequence[Producing]]] = SnapshotRef({})
        self.offsets: SnapshotRef[Offsets] = SnapshotRef({})
        self.live_offsets: SnapshotRef[Offsets] = SnapshotRef({})
        """The table itself, which changes: readers must copy an entry in one step."""
        self.settled_ahead: SnapshotRef[Ahead] = SnapshotRef({})
        """Settled messages above consumer offsets; the sets change, as in `live_offsets`."""
        self.offset_moves: SnapshotRef[OffsetMoves] = SnapshotRef(OffsetMoves())
        """The times themselves, which change, as in `live_offsets`."""
        self.filters = SnapshotRef(ConsumerFilters(bloom))
        self.delay_offsets: SnapshotRef[Mapping[int, int]] = SnapshotRef({})
        self.rates = SnapshotRef(Rates())
        self.damaged_files: SnapshotRef[Mapping[str, int]] = SnapshotRef({})
        """Damaged versions of each table's file that the start found, by path."""
