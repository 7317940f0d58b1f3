"""Snapshots of all tables, read by actors that answer requests."""

from collections.abc import Mapping, Sequence

from actors.engine.snapshot_ref import SnapshotRef
from actors.tables.consumer_offsets import OffsetMoves
from actors.tables.consumer_views import ConsumerView, Producing
from actors.tables.groups import GroupConfigs
from actors.tables.offset_journal import Ahead
from actors.tables.offset_searches import Offsets
from actors.tables.rates import Rates
from actors.tables.request_modes import Modes
from protocol.bloom import BloomFilter
from protocol.bodies import TopicConfig, TopicConfigTable
from storage.tables.consumer_filters import ConsumerFilters


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
