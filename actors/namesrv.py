"""The name server: tells clients which broker holds which topic.

Owns: the RouteTable, the KvConfig.
Told by: connections (`Request`, `PeerClosed`), its own tick, config_writer.
Tells: config_writer.

A code that is not served here gets no answer at all, as in 4.9.7; that is up to the connection.

Source: namesrv/processor/DefaultRequestProcessor.java.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from structlog import get_logger

from actors.actor import handles
from actors.address import Address
from actors.config import NamesrvConfig
from actors.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from actors.persisted import PersistedTable
from actors.request import PeerClosed, Request, serves
from actors.route_table import RouteTable
from protocol.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfigTable
from protocol.bodies_admin import TopicList
from protocol.checksum import body_crc
from protocol.codes import VERSION_STANDARD_JSON_ROUTE, RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerIdentityHeader,
    BrokerNameHeader,
    DeleteTopicInNamesrvHeader,
    GetKvConfigResponseHeader,
    GetRouteInfoHeader,
    GetTopicsByClusterHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    WipeWritePermResponseHeader,
)

log = get_logger(__name__)

FIRST_SCAN_MS = 5000
SCAN_MS = 10_000
VERSION_FILTER_SERVERS = 37
"""V3_0_11: older brokers register with a table of topics and nothing around it."""

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


@dataclass(frozen=True, slots=True)
class _Scan:
    """Look for brokers that are silent."""


class Namesrv(PersistedTable):
    """Lives on the loop."""

    def __init__(self, config: NamesrvConfig, config_writer: Address) -> None:
        super().__init__(config.kv_config_path, config_writer)
        self._config = config
        self._routes = RouteTable()
        self._kv = KvConfig()

    def on_start(self) -> None:
        loaded = self.load(KvConfig)
        self._kv = loaded.value or KvConfig()
        if loaded.broken:
            text = self._kv.text()
            self.save(lambda: text)
        self.after(FIRST_SCAN_MS, _Scan())

    # --- brokers

    @handles(_Scan)
    def on_scan(self, _: _Scan) -> None:
        """Forgets brokers that have not registered for two minutes."""
        for address in self._routes.expire(self.system.clock.monotonic_ms()):
            log.warning("broker expired", broker=address)
        self.after(SCAN_MS, _Scan())

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """A broker whose connection closes is gone at once."""
        for address in self._routes.peer_closed(message.peer.peer_id):
            log.warning("broker gone with its connection", broker=address)

    @serves(RequestCode.REGISTER_BROKER)
    def register(self, request: Request) -> RemotingCommand:
        """Takes over a broker's topics; the answer holds the ordered topics, if there are any."""
        command = request.command
        header = RegisterBrokerHeader.decode(command.fields)
        body = bytes(command.body or b"")
        if header.body_crc and header.body_crc != body_crc(body):
            log.warning("registration with a wrong checksum", peer=request.peer.remote)
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        topics, filter_servers = _registered(header, command.version, body)
        if self._routes.data_version(header.broker_address) is None:
            log.info("broker registered", broker=header.broker_address, name=header.broker_name)
        answer = self._routes.register(
            header,
            topics,
            filter_servers,
            request.peer.peer_id,
            self.system.clock.monotonic_ms(),
        )
        ordered = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return command.answer(
            fields=answer.encode(), body=_table(ordered) if ordered is not None else None
        )

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister(self, request: Request) -> RemotingCommand:
        """A broker stops."""
        header = BrokerIdentityHeader.decode(request.command.fields)
        self._routes.unregister(
            header.cluster_name, header.broker_name, header.broker_address, header.broker_id
        )
        log.info("broker unregistered", broker=header.broker_address, name=header.broker_name)
        return request.command.answer()

    @serves(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, request: Request) -> RemotingCommand:
        """Whether a broker has to register again; when not, it counts as alive."""
        address = BrokerIdentityHeader.decode(request.command.fields).broker_address
        changed = self._routes.is_changed(address, DataVersion.decode(request.command.body))
        if not changed:
            self._routes.touch(address, self.system.clock.monotonic_ms())
        known = self._routes.data_version(address)
        return request.command.answer(
            fields=QueryDataVersionResponseHeader(changed).encode(),
            body=known.encode() if known is not None else None,
        )

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, request: Request) -> RemotingCommand:
        name = BrokerNameHeader.decode(request.command.fields).broker_name
        count = self._routes.wipe_write_perm(name)
        log.info("write permission wiped", broker=name, topics=count, peer=request.peer.remote)
        return request.command.answer(fields=WipeWritePermResponseHeader(count).encode())

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, request: Request) -> RemotingCommand:
        name = BrokerNameHeader.decode(request.command.fields).broker_name
        count = self._routes.add_write_perm(name)
        log.info("write permission added", broker=name, topics=count, peer=request.peer.remote)
        return request.command.answer(fields=AddWritePermResponseHeader(count).encode())

    # --- routes and topics

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, request: Request) -> RemotingCommand:
        """Where a topic is, in the dialect that the client reads."""
        command = request.command
        header = GetRouteInfoHeader.decode(command.fields)
        route = self._routes.route(header.topic)
        if route is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{FAQ}",
            )
        if self._config.order_message_enable:
            order = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
            route = replace(route, order_topic_conf=order)
        standard = command.version >= VERSION_STANDARD_JSON_ROUTE
        return command.answer(
            body=route.encode(standard_json=standard or bool(header.accept_standard_json_only))
        )

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, request: Request) -> RemotingCommand:
        return request.command.answer(body=self._routes.cluster_info().encode())

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topic_list(self, request: Request) -> RemotingCommand:
        return request.command.answer(body=_topic_list(self._routes.topics()))

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, request: Request) -> RemotingCommand:
        cluster = GetTopicsByClusterHeader.decode(request.command.fields).cluster
        return request.command.answer(body=_topic_list(self._routes.topics_of_cluster(cluster)))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, request: Request) -> RemotingCommand:
        topics, broker_address = self._routes.system_topics()
        return request.command.answer(body=_topic_list(topics, broker_address))

    @serves(RequestCode.GET_UNIT_TOPIC_LIST)
    def unit_topics(self, request: Request) -> RemotingCommand:
        topics = self._routes.topics(lambda queue: bool(queue.topic_sys_flag & UNIT_FLAG))
        return request.command.answer(body=_topic_list(topics))

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
    def unit_sub_topics(self, request: Request) -> RemotingCommand:
        topics = self._routes.topics(lambda queue: bool(queue.topic_sys_flag & UNIT_SUB_FLAG))
        return request.command.answer(body=_topic_list(topics))

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    def unit_sub_only_topics(self, request: Request) -> RemotingCommand:
        both = UNIT_FLAG | UNIT_SUB_FLAG
        topics = self._routes.topics(lambda queue: queue.topic_sys_flag & both == UNIT_SUB_FLAG)
        return request.command.answer(body=_topic_list(topics))

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request) -> RemotingCommand:
        header = DeleteTopicInNamesrvHeader.decode(request.command.fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info("topic deleted", topic=header.topic, cluster=header.cluster_name)
        return request.command.answer()

    # --- settings for clients

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_kv(self, request: Request) -> None:
        header = PutKvConfigHeader.decode(request.command.fields)
        self._kv.put(header.namespace, header.key, header.value)
        self._save_kv(request)

    @serves(RequestCode.GET_KV_CONFIG)
    def get_kv(self, request: Request) -> RemotingCommand:
        header = KvConfigHeader.decode(request.command.fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return request.command.answer(ResponseCode.QUERY_NOT_FOUND, {}, remark=remark)
        return request.command.answer(fields=GetKvConfigResponseHeader(value).encode())

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_kv(self, request: Request) -> None:
        header = KvConfigHeader.decode(request.command.fields)
        self._kv.delete(header.namespace, header.key)
        self._save_kv(request)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def kv_namespace(self, request: Request) -> RemotingCommand:
        namespace = KvNamespaceHeader.decode(request.command.fields).namespace
        entries = self._kv.namespace(namespace)
        if entries is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return request.command.answer(body=_table(entries))

    def _save_kv(self, request: Request) -> None:
        """Answers when the change is on disk."""
        text = self._kv.text()
        self.save(lambda: text, lambda refusal: self.answer_saved(request, refusal))


def _table(entries: Mapping[str, str]) -> bytes:
    return KVTable(dict(entries)).encode()


def _topic_list(topics: Sequence[str], broker_address: str | None = None) -> bytes:
    return TopicList(list(topics), broker_address).encode()


def _registered(
    header: RegisterBrokerHeader, version: int, body: bytes
) -> tuple[TopicConfigTable, list[str] | None]:
    """The topics and filter servers of a registration."""
    if not body:
        return TopicConfigTable(), []
    if version < VERSION_FILTER_SERVERS:
        return TopicConfigTable.decode(body), None
    decoded = RegisterBrokerBody.decode(body, compressed=header.compressed)
    return decoded.topic_config_table, decoded.filter_servers
