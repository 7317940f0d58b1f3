"""Headers of the requests to a name server.

Source: common/protocol/header/namesrv/*.java.
"""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire, wire_long


@dataclass(slots=True)
class RegisterBrokerHeader(Header):
    """Registration of a live broker; the body holds its topics. `body_crc` 0 = not checked."""

    broker_name: str = wire("brokerName")
    broker_address: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    ha_server_address: str = wire("haServerAddr")
    broker_id: int = wire_long("brokerId")
    compressed: bool = wire("compressed", default=False)
    body_crc: int | None = wire("bodyCrc32", default=0)


@dataclass(slots=True)
class RegisterBrokerResponseHeader(Header):
    """Addresses of the master, for a slave."""

    ha_server_address: str | None = wire("haServerAddr", default=None)
    master_address: str | None = wire("masterAddr", default=None)


@dataclass(slots=True)
class BrokerIdentityHeader(Header):
    """One broker: UNREGISTER_BROKER, QUERY_DATA_VERSION."""

    broker_name: str = wire("brokerName")
    broker_address: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire_long("brokerId")


@dataclass(slots=True)
class QueryDataVersionResponseHeader(Header):
    """Whether the broker has to register again."""

    changed: bool = wire("changed")


@dataclass(slots=True)
class GetRouteInfoHeader(Header):
    """Query for the route of a topic."""

    topic: str = wire("topic")
    accept_standard_json_only: bool | None = wire("acceptStandardJsonOnly", default=None)


@dataclass(slots=True)
class KvConfigHeader(Header):
    """One entry: GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str = wire("namespace")
    key: str = wire("key")


@dataclass(slots=True)
class PutKvConfigHeader(Header):
    """One entry to store."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str = wire("value")


@dataclass(slots=True)
class GetKvConfigResponseHeader(Header):
    """The value of one entry."""

    value: str | None = wire("value", default=None)


@dataclass(slots=True)
class KvNamespaceHeader(Header):
    """All entries of a namespace."""

    namespace: str = wire("namespace")


@dataclass(slots=True)
class BrokerNameHeader(Header):
    """One broker name: WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str = wire("brokerName")


@dataclass(slots=True)
class WipeWritePermResponseHeader(Header):
    """Number of topics that lost their write permission."""

    wipe_topic_count: int = wire("wipeTopicCount")


@dataclass(slots=True)
class AddWritePermResponseHeader(Header):
    """Number of topics whose write permission was restored."""

    add_topic_count: int = wire("addTopicCount")


@dataclass(slots=True)
class DeleteTopicInNamesrvHeader(Header):
    """A topic that a name server is to delete."""

    topic: str = wire("topic")
    cluster_name: str | None = wire("clusterName", default=None)


@dataclass(slots=True)
class GetTopicsByClusterHeader(Header):
    cluster: str = wire("cluster")
