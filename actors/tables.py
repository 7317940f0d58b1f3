"""What the table actors publish, together: read by whoever answers requests."""

from collections.abc import Mapping, Sequence

from actors.consume_rates import Rates
from actors.consumer_groups import ConsumerView
from actors.consumer_offsets import Offsets
from actors.groups import GroupConfigs
from actors.published import Published
from actors.request import Peer
from protocol.bloom import BloomFilter
from protocol.bodies import TopicConfig, TopicConfigTable
from storage.consumer_filters import ConsumerFilters


class Tables:
    """The snapshots that the table actors publish."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.topics: Published[Mapping[str, TopicConfig]] = Published({})
        self.topic_table = Published(TopicConfigTable())
        self.groups: Published[GroupConfigs] = Published({})
        self.consumers: Published[Mapping[str, ConsumerView]] = Published({})
        self.producers: Published[Mapping[str, Sequence[Peer]]] = Published({})
        self.offsets: Published[Offsets] = Published({})
        self.filters = Published(ConsumerFilters(bloom))
        self.group_tps: Published[Rates] = Published({})
