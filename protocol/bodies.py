"""The JSON bodies of the ordinary traffic between brokers, name servers and clients.

Names are RocketMQ's; each class names its requests. bodies_tables.py has a broker's tables,
bodies_admin.py what administrators get.

Source: common/protocol/body/*.java, route/*.java, heartbeat/*.java.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from protocol.fastjson import dumps
from protocol.fastjson_limits import ANSWER_NODES_MAX, SHORT_NODES_MAX
from protocol.json_body import Body, named, value

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


@value
class QueueData(Body):
    """Numbers of queues of a topic at a broker name."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@value
class BrokerData(Body):
    """The addresses of one broker name, by broker id (0 = master)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None
    """Whether a slave may take the master's place; only for clients of VERSION_5 and later."""


@value
class TopicRouteData(Body):
    """Brokers and queues of a topic: answer of GET_ROUTEINFO_BY_TOPIC."""

    nodes_max: ClassVar = ANSWER_NODES_MAX
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None

    def encode(self, *, standard_json: bool = False) -> bytes:
        """Return the body.

        `standard_json` is for clients of VERSION_STANDARD_JSON_ROUTE and later, or with
        acceptStandardJsonOnly: quoted and sorted keys, ASCII only. Without it the old dialect is
        used, with bare integer keys.
        """
        found = self.to_json()
        return dumps(found, browser_compatible=standard_json, sort_keys=standard_json)


@value
class ClusterInfo(Body):
    """All brokers: answer of GET_BROKER_CLUSTER_INFO."""

    nodes_max: ClassVar = ANSWER_NODES_MAX
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@value
class SubscriptionData(Body):
    """Subscription of a consumer to a topic. `sub_version` is a time in ms; the newest applies."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@value
class ProducerData(Body):
    """One producer group of a client."""

    group_name: str


@value
class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str
    consume_type: str | None = None  # CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull)
    message_model: str | None = None  # CLUSTERING, BROADCASTING
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@value
class HeartbeatData(Body):
    """Groups and subscriptions of a client: HEART_BEAT."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    client_id: str = field(metadata=named("clientID"))
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)

    def subscribed(self) -> Iterator[tuple[str, list[str]]]:
        """Return the consumer groups with the topics that each subscribes to."""
        for each in self.consumer_data_set:
            yield each.group_name, [one.topic for one in each.subscription_data_set]


@value
class ConsumerList(Body):
    """Members of a group: answer of GET_CONSUMER_LIST_BY_GROUP."""

    nodes_max: ClassVar = ANSWER_NODES_MAX
    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MessageQueue(Body):
    """One queue of a topic; the key of several tables."""

    topic: str
    broker_name: str
    queue_id: int


@value
class OffsetMovedEvent(Body):
    """Body of a message in OFFSET_MOVED_EVENT: a group pulled outside of a queue."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: int
    offset_request: int


@value
class LockBatchRequest(Body):
    """Queues to lock or to unlock for an orderly consumer: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    client_id: str | None = None
    consumer_group: str | None = None
    mq_set: list[MessageQueue] = field(default_factory=list)


@value
class LockBatchResponse(Body):
    """Queues that the client holds locked."""

    nodes_max: ClassVar = ANSWER_NODES_MAX
    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list, metadata=named("lockOKMQSet"))


@value
class CheckClientRequest(Body):
    """A subscription to validate before use: CHECK_CLIENT_CONFIG."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
