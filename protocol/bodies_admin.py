"""The JSON bodies for administrators: lists, statistics, connections, offsets.

Source: common/protocol/body/*.java, common/admin/*.java, common/protocol/topic/*.java.
"""

from dataclasses import field

from protocol.bodies import MessageQueue, SubscriptionData
from protocol.json_body import Body, named, value


@value
class TopicList(Body):
    """Names of topics: 206, 224, 304, 305, 311-313."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@value
class GroupList(Body):
    """Names of groups: QUERY_TOPIC_CONSUME_BY_WHO."""

    group_list: list[str] = field(default_factory=list)


@value
class TopicOffset(Body):
    """Min and max offset of a queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@value
class TopicStatsTable(Body):
    """Min and max offsets of a topic's queues: GET_TOPIC_STATS_INFO."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


@value
class OffsetWrapper(Body):
    """Consumer offset of a group in a queue, and the queue's max offset."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None
    """Offset behind the newest message that was handed out; only for tools of VERSION_5 and later.

    They show what lies between it and the consumer offset as in flight.
    """

    @property
    def lag(self) -> int:
        """Return the consumer lag in messages.

        A 4.9.7 broker may have a consumer offset behind the end.
        """
        return max(0, self.broker_offset - self.consumer_offset)


@value
class ConsumeStatsBody(Body):
    """Consumer lag of a group: GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@value
class ConsumeStatsList(Body):
    """Consumer lag of all groups: GET_BROKER_CONSUME_STATS."""

    consume_stats_list: list[dict[str, list[ConsumeStatsBody]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0


@value
class ClientConnection(Body):
    """One client of a group."""

    client_id: str
    client_addr: str
    language: str
    version: int


@value
class ProducerConnection(Body):
    """Members of a producer group: GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ClientConnection] = field(default_factory=list)


@value
class ConsumerConnection(Body):
    """Members of a consumer group and their subscriptions: GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@value
class ProducerInfo(Body):
    """One producer; `remote_ip` looks like `/127.0.0.1:43368`."""

    client_id: str
    remote_ip: str = field(metadata=named("remoteIP"))
    language: str
    version: int
    last_update_timestamp: int


@value
class ProducerTable(Body):
    """All producers by group: GET_ALL_PRODUCER_INFO."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@value
class CorrectionOffsets(Body):
    """Offsets by queue: QUERY_CORRECTION_OFFSET."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@value
class QueueTimeSpan(Body):
    """Times of one queue (ms, and as text)."""

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


@value
class ConsumeTimeSpans(Body):
    """Times of a topic's queues: QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@value
class StatsItem(Body):
    """Sum, rate per second and average of one statistic."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@value
class BrokerStatsData(Body):
    """One counter over three spans: VIEW_BROKER_STATS_DATA."""

    stats_minute: StatsItem = field(default_factory=StatsItem)
    stats_hour: StatsItem = field(default_factory=StatsItem)
    stats_day: StatsItem = field(default_factory=StatsItem)


@value
class ConsumeQueueData(Body):
    """A consume queue unit, and whether a group's filter matches it."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@value
class ConsumeQueueView(Body):
    """Some units of a consume queue: QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0
