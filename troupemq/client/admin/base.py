"""AdminBase: connections of an Admin, and the requests that its methods consist of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypedDict, TypeVar

from protocol import fastjson
from protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.codes import LanguageCode, RequestCode, ResponseCode
from protocol.fastjson_limits import NODES_MAX
from protocol.frame import RemotingCommand
from protocol.headers.client import GetRouteInfoHeader
from protocol.headers.fields import Header
from protocol.headers.namesrv import GetKvConfigResponseHeader, KvConfigHeader, PutKvConfigHeader
from protocol.json_body import Body
from protocol.table_rules import key_fault
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.admin.answers import Failures
from troupemq.client.admin.callers import PRODUCER_GROUP, Caller, SendingProducer
from troupemq.client.admin.operations import operation
from troupemq.client.connection.calls import LONG_BODY_BYTES, Value
from troupemq.client.connection.remoting import check_success
from troupemq.client.connection.route import MASTER_ID
from troupemq.client.errors import (
    ArgumentIllegal,
    BadAnswer,
    BrokerError,
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
    understood,
)
from troupemq.client.settings import ProducerSettings

TIMEOUT_MS = 5000
INT_MAX = (1 << 31) - 1
PROBE_TIMEOUT_MS = 1000
IS_NAMESRV = "is a name server, not a broker: use a broker's port, usually 10911"

SILENT_S = 20.0
"""Time in which a long-running program does not ask a silent server again.

A command that ends by itself never asks it again, as it may have a request for each topic.
"""

ORDER_CONFIGURATION = "ORDER_TOPIC_CONFIG"
"""Namespace in the name servers' tables for topics that are ordered across brokers."""

Answered = TypeVar("Answered", bound=Body)


class Where(TypedDict, total=False):
    """Brokers that a method applies to; all by default."""

    broker: str | None
    """Address of one broker."""
    cluster: str | None
    """Name of a cluster."""


@dataclass(frozen=True, order=True)
class BrokerPlace:
    """One broker as a name server knows it; id 0 is the master of its name."""

    cluster: str
    name: str
    id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.id == MASTER_ID


class AdminBase:
    def __init__(self, caller: Caller, namesrvs: Sequence[str], silent_s: float) -> None:
        """Take the caller, and the seconds in which a silent server is not asked again."""
        self._caller, self.namesrvs, self._silent_s = caller, tuple(namesrvs), silent_s
        self._silent: dict[str, tuple[float, ClientError]] = {}

    def _sender(
        self, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None
    ) -> SendingProducer:
        return self._caller.sender(self._caller.producer(group, settings))

    # --- one address

    @operation
    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes | None = None,
        timeout_ms: float = TIMEOUT_MS,
        language: LanguageCode | None = None,
    ) -> RemotingCommand:
        """Return a successful answer of `address`. Raises BrokerError for any other answer."""
        command = _command(code, header, body)
        if language is not None:
            command.language = language
        return await self._ask(address, command, timeout_ms)

    async def _ask(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        left_ms = self._left_ms(address, timeout_ms)
        since_s, silent = self._silent.get(address, (0.0, None))
        if silent is not None and monotonic() - since_s < self._silent_s:
            raise silent
        try:
            return check_success(await self._caller.call(address, command, left_ms), address)
        except (ConnectionFailed, RequestTimeout) as error:
            if isinstance(error, RequestTimeout) and await self._is_namesrv(address):
                error = RequestTimeout(f"{address} {IS_NAMESRV}")
            self._silent[address] = monotonic(), error
            raise error from None

    async def _is_namesrv(self, address: str) -> bool:
        """Return whether `address` is a name server, which does not answer requests for brokers."""
        asked = _command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, None)
        try:
            return (await self.call(address, asked, PROBE_TIMEOUT_MS)).code == ResponseCode.SUCCESS
        except ClientError:
            return False

    @operation
    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Return the answer of `address` with any code."""
        return await self._caller.call(address, command, self._left_ms(address, timeout_ms))

    @operation
    async def call_together(
        self, address: str, commands: Sequence[RemotingCommand], timeout_ms: float
    ) -> list[RemotingCommand | ClientError]:
        """Send requests without waiting between them; return the answer or error of each."""
        left_ms = self._left_ms(address, timeout_ms)
        return await self._caller.call_together(address, commands, left_ms)

    def _left_ms(self, address: str, timeout_ms: float) -> float:
        """Return the timeout of a request; a subclass may have a deadline for several."""
        return timeout_ms

    async def _read(
        self,
        kind: type[Answered],
        address: str,
        code: RequestCode,
        header: Header | None = None,
        timeout_ms: float = TIMEOUT_MS,
    ) -> Answered:
        """Return the decoded body of an answer. Raises BadAnswer for one that is not a `kind`."""
        answer = await self.ask(address, code, header, None, timeout_ms)
        if not answer.body and answer.remark:
            raise BadAnswer(f"{address} sent an empty answer: {answer.remark}")
        return await self._decoded(kind.decode, answer.body)

    async def _decoded(
        self,
        decode: Callable[[bytes | memoryview | None], Value],
        body: bytes | memoryview | None,
    ) -> Value:
        """Return the value of a body; an event loop has long ones decoded on a thread."""
        if len(body or b"") < LONG_BODY_BYTES:
            return understood(decode, body)
        return await self._caller.blocking(understood, decode, body)

    # --- the name servers

    @operation
    async def ask_namesrv(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """Return the answer of one name server: all of them know the same brokers."""
        return await self._caller.ask_namesrv(_command(code, header, None))

    async def _ask_all_namesrvs(
        self,
        failures: Failures,
        code: RequestCode,
        header: Header | None = None,
        body: bytes | None = None,
    ) -> list[tuple[str, RemotingCommand]]:
        """Return the answers of all name servers: changes of their tables must reach all."""
        found = []
        for address in self.namesrvs:
            with failures.attempt():
                found.append((address, await self.ask(address, code, header, body)))
        return found

    @operation
    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers of all clusters."""
        answer = await self.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)
        return await self._decoded(ClusterInfo.decode, answer.body)

    @operation
    async def brokers(self, cluster: str | None = None) -> list[BrokerPlace]:
        """Return the brokers of one cluster, or of all, masters before their slaves.

        Raises RouteNotFound without brokers.
        """
        found = sorted(
            place
            for each in (await self.cluster_info()).broker_addr_table.values()
            if cluster in (None, each.cluster)
            for place in _places(each)
        )
        if not found:
            raise RouteNotFound(f"no broker{_of(cluster)} is registered")
        return found

    @operation
    async def masters(self, cluster: str | None = None) -> list[BrokerPlace]:
        """Return the masters of a cluster, or of all. Raises RouteNotFound without masters."""
        found = [place for place in await self.brokers(cluster) if place.is_master]
        if not found:
            raise RouteNotFound(f"no master{_of(cluster)} is registered")
        return found

    @operation
    async def targets(
        self, broker: str | None = None, cluster: str | None = None, *, masters_only: bool = True
    ) -> list[str]:
        """Return `broker` if it is given, else the addresses of the cluster's brokers or of all."""
        if broker is not None:
            return [broker]
        places = await self.masters(cluster) if masters_only else await self.brokers(cluster)
        return [place.address for place in places]

    @operation
    async def topics(self) -> list[str]:
        """Return the names of all topics, in order."""
        answer = await self.ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return await self._decoded(
            lambda body: sorted(TopicList.decode(body).topic_list), answer.body
        )

    @operation
    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic. Raises RouteNotFound if no name server knows it."""
        try:
            answer = await self.ask_namesrv(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic)
            )
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(f"no name server knows the topic {topic}") from None
            raise
        return await self._decoded(TopicRouteData.decode, answer.body)

    @operation
    async def topic_brokers(self, topic: str) -> list[BrokerPlace]:
        """Return the master, else a slave, of each broker of the topic. Raises RouteNotFound."""
        found = [
            min(_places(each))
            for each in (await self.route(topic)).broker_datas
            if each.broker_addrs
        ]
        if not found:
            raise RouteNotFound(f"no broker has the topic {topic}")
        return sorted(found)

    @operation
    async def group_brokers(self, group: str) -> list[BrokerPlace]:
        """Return the brokers with the retry topic of a group. Raises RouteNotFound without any."""
        try:
            return await self.topic_brokers(RETRY_TOPIC_PREFIX + group)
        except RouteNotFound:
            raise RouteNotFound(
                f"consumer group {group} not found: no broker has its retry topic"
            ) from None

    # --- their key-value tables

    @operation
    async def kv(self, namespace: str, key: str) -> str | None:
        """Return one entry of the name servers' tables; None where it is missing."""
        try:
            answer = await self.ask_namesrv(
                RequestCode.GET_KV_CONFIG, KvConfigHeader(namespace, key)
            )
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return understood(GetKvConfigResponseHeader.decode, answer.fields).value

    async def _put_kv(self, failures: Failures, namespace: str, key: str, value: str) -> list[str]:
        """Set an entry; return the name servers that did. Raises ArgumentIllegal."""
        if fault := key_fault(namespace) or key_fault(key):
            raise ArgumentIllegal(fault)
        header = PutKvConfigHeader(namespace, key, value)
        done = await self._ask_all_namesrvs(failures, RequestCode.PUT_KV_CONFIG, header)
        return [address for address, _ in done]

    async def _delete_kv(self, failures: Failures, namespace: str, key: str) -> list[str]:
        """Delete one entry at every name server; return the addresses of those that did."""
        header = KvConfigHeader(namespace, key)
        done = await self._ask_all_namesrvs(failures, RequestCode.DELETE_KV_CONFIG, header)
        return [address for address, _ in done]


def json_object(body: bytes | memoryview | str | None) -> dict[fastjson.Key, object]:
    """Return the JSON object in an answer. Raises BadAnswer."""
    try:
        return fastjson.loads_object(body, NODES_MAX)
    except fastjson.FastjsonError as error:
        raise BadAnswer(f"an answer that cannot be understood: {error}") from None


def _command(code: RequestCode, header: Header | None, body: bytes | None) -> RemotingCommand:
    return RemotingCommand(code, {} if header is None else header.encode(), body=body)


def _of(cluster: str | None) -> str:
    return "" if cluster is None else f" of the cluster {cluster or repr(cluster)}"


def _places(data: BrokerData) -> Iterator[BrokerPlace]:
    for broker_id, address in data.broker_addrs.items():
        yield BrokerPlace(data.cluster, data.broker_name, broker_id, address)
