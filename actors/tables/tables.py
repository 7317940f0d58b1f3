"""Snapshots of all tables, together: read by whoever answers requests."""

from collections.abc import Mapping, Sequence

from actors.engine.published import Published
from actors.tables.consumer_offsets import Offsets
from actors.tables.consumer_views import ConsumerView, Producing
from actors.tables.groups import GroupConfigs
from protocol.bloom import BloomFilter
from protocol.bodies import TopicConfig, TopicConfigTable
from storage.tables.consumer_filters import ConsumerFilters


class Tables:
    """The snapshots that the table actors publish."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.topics: Published[Mapping[str, TopicConfig]] = Published({})
        self.topic_table = Published(TopicConfigTable())
        self.groups: Published[GroupConfigs] = Published({})
        self.consumers: Published[Mapping[str, ConsumerView]] = Published({})
        self.producers: Published[Mapping[str, Sequence[Producing]]] = Published({})
        self.offsets: Published[Offsets] = Published({})
        self.live_offsets: Published[Offsets] = Published({})
        """The table itself, which changes: who reads it copies an entry in one step."""
        self.filters = Published(ConsumerFilters(bloom))
        self.delay_offsets: Published[Mapping[int, int]] = Published({})
        self.group_tps: Published[Mapping[str, float]] = Published({})
        """Messages per second that a group got, by `topic@group`."""
