"""Headers of the requests to a name server.

Source: common/protocol/header/namesrv/*.java.
"""

from protocol.headers.fields import Header, wire, wire_long
from protocol.json_body import value


@value
class RegisterBrokerHeader(Header):
    """Registration of a live broker; the body holds its topics. `body_crc` 0 = not checked."""

    broker_name: str = wire("brokerName")
    broker_address: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    ha_server_address: str = wire("haServerAddr")
    broker_id: int = wire_long("brokerId")
    compressed: bool = wire("compressed", default=False)
    body_crc: int | None = wire("bodyCrc32", default=0)


@value
class RegisterBrokerResponseHeader(Header):
    """Addresses of the master, for a slave."""

    ha_server_address: str | None = wire("haServerAddr", default=None)
    master_address: str | None = wire("masterAddr", default=None)


@value
class BrokerIdentityHeader(Header):
    """One broker: UNREGISTER_BROKER, QUERY_DATA_VERSION."""

    broker_name: str = wire("brokerName")
    broker_address: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire_long("brokerId")


@value
class QueryDataVersionResponseHeader(Header):
    """Whether the broker has to register again."""

    changed: bool = wire("changed")


@value
class KvConfigHeader(Header):
    """One entry: GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str = wire("namespace")
    key: str = wire("key")


@value
class PutKvConfigHeader(Header):
    """One entry to store."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str = wire("value")


@value
class GetKvConfigResponseHeader(Header):
    """The value of one entry."""

    value: str | None = wire("value", default=None)


@value
class KvNamespaceHeader(Header):
    """All entries of a namespace."""

    namespace: str = wire("namespace")


@value
class BrokerNameHeader(Header):
    """One broker name: WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str = wire("brokerName")


@value
class WipeWritePermResponseHeader(Header):
    """Number of topics that lost their write permission."""

    wipe_topic_count: int = wire("wipeTopicCount")


@value
class AddWritePermResponseHeader(Header):
    """Number of topics whose write permission was restored."""

    add_topic_count: int = wire("addTopicCount")


@value
class DeleteTopicInNamesrvHeader(Header):
    """A topic that a name server is to delete."""

    topic: str = wire("topic")
    cluster_name: str | None = wire("clusterName", default=None)


@value
class GetTopicsByClusterHeader(Header):
    cluster: str = wire("cluster")
