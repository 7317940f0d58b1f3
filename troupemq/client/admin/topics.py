"""Topics: creation, changes and deletion; routes, groups and order."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Unpack

from protocol.bodies import PERM_READ, PERM_WRITE
from protocol.bodies_admin import GroupList, TopicStatsTable
from protocol.bodies_tables import TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader, TopicHeader
from protocol.headers.namesrv import DeleteTopicInNamesrvHeader
from protocol.table_rules import asked_topic_fault
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.admin.answers import HIDDEN, OPTIONAL, Change, Failures, Result, snake_case
from troupemq.client.admin.base import ORDER_CONFIGURATION, AdminBase, BrokerPlace, Where
from troupemq.client.admin.operations import changes, operation, reads
from troupemq.client.arguments import check_instance, check_integer
from troupemq.client.connection.route import DEFAULT_TOPIC
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.message import check_topic

QUEUES_MAX = 1 << 16
UNREAD_TIMEOUT_MS = 3000.0
READ_WRITE = PERM_READ | PERM_WRITE


@dataclass(frozen=True, slots=True)
class TopicChanged(Change):
    SENTENCE = (
        "{0.topic_name} has {0.read_queue_nums} queues to read and "
        "{0.write_queue_nums} to write at {0.broker_address}."
    )
    broker_address: str
    order: bool
    perm: int
    read_queue_nums: int
    topic_filter_type: str
    topic_name: str
    topic_sys_flag: int
    write_queue_nums: int
    unread_messages: int | None = field(default=None, metadata=OPTIONAL)
    """Messages in queues that consumers can no longer read; None for no messages."""
    unread_queues: tuple[int, ...] = field(default=(), metadata=HIDDEN)

    @property
    def warnings(self) -> list[str]:
        """Sentences on messages that can no longer be read, and on queues without a reader."""
        at = f"{self.topic_name} at {self.broker_address}"
        found = []
        if self.unread_queues:
            queues = ", ".join(map(str, self.unread_queues))
            found.append(
                f"warning: {self.unread_messages} messages of {at} can no longer be read (queues "
                f"{queues}): readQueueNums of {max(self.unread_queues) + 1} makes them readable"
            )
        if self.write_queue_nums > self.read_queue_nums:
            found.append(
                f"warning: queues {self.read_queue_nums} to {self.write_queue_nums - 1} of {at} "
                "are written and not read: consumers do not get what is sent there"
            )
        return found


@dataclass(frozen=True, slots=True)
class TopicDeleted(Change):
    SENTENCE = "{0.topic} is deleted at {0.deleted_at}."
    topic: str
    deleted_at: str


@dataclass(frozen=True, slots=True)
class TopicForgotten(Change):
    """A topic that one name server has removed from its routes."""

    SENTENCE = "{0.topic} is removed from the routes of {0.forgotten_by}."
    topic: str
    forgotten_by: str


@dataclass(frozen=True, slots=True)
class TopicPermissionChanged(Change):
    SENTENCE = "{0.topic} at {0.broker_address}: permission {0.perm_before} is now {0.perm}."
    broker_address: str
    topic: str
    perm_before: int
    perm: int


@dataclass(frozen=True, slots=True)
class OrderChanged(Change):
    """The changed order of a topic at one name server; None: deleted."""

    namesrv: str
    topic: str
    order: str | None

    @property
    def sentence(self) -> str:
        what = "deleted" if self.order is None else self.order
        return f"The order of {self.topic} is {what} at {self.namesrv}."


@dataclass(frozen=True, slots=True)
class RouteQueues(Result):
    """The queues of a topic at the brokers of one name."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int


@dataclass(frozen=True, slots=True)
class RouteBroker(Result):
    """The brokers of one name that have a topic; their addresses by id."""

    cluster: str
    broker: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RoutePlace(Result):
    cluster: str
    broker: str
    addresses: Mapping[str, str]
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute(Result):
    """The brokers and queues of a topic, as a name server knows them."""

    queues: tuple[RouteQueues, ...]
    brokers: tuple[RouteBroker, ...]
    order: str | None

    @property
    def places(self) -> list[RoutePlace]:
        """Brokers with their addresses and queues."""
        brokers = {each.broker: each for each in self.brokers}
        return [
            RoutePlace(
                brokers[each.broker].cluster,
                each.broker,
                brokers[each.broker].addresses,
                each.read_queues,
                each.write_queues,
                each.perm,
            )
            for each in self.queues
            if each.broker in brokers
        ]


@dataclass(frozen=True, slots=True)
class TopicGroup(Result):
    """A group that consumes a topic; empty for a topic without groups."""

    cluster: str
    topic: str
    group: str


def order_entries(text: str | None) -> dict[str, str]:
    """Return broker name → count of queues from a text `broker-a:4;broker-b:4`."""
    pairs = (entry.split(":") for entry in (text or "").split(";"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _order_text(counts: Mapping[str, str]) -> str:
    return ";".join(f"{name}:{count}" for name, count in counts.items())


class TopicAdmin(AdminBase):
    @operation
    async def create_topic(
        self, topic: str, queue_count: int = 8, *, cluster: str | None = None
    ) -> None:
        """Create or change a topic at every master of the cluster, or of all clusters.

        Raises MessageIllegal for an invalid name, RouteNotFound without masters.
        """
        check_topic(topic)
        check_integer(queue_count, 1, QUEUES_MAX, "queue_count")
        if cluster is not None:
            check_instance(cluster, str, "cluster is a string")
        for place in await self.masters(cluster):
            await self._set_topic(place.address, TopicConfig(topic, queue_count, queue_count))

    @changes
    async def update_topic(
        self,
        failures: Failures,
        topic: str,
        read_queues: int = 8,
        write_queues: int = 8,
        *,
        perm: int = READ_WRITE,
        order: bool = False,
        sys_flag: int = 0,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AsyncIterator[TopicChanged]:
        """Create or change a topic at one broker, or at the masters of a cluster or of all.

        `perm`: 4 read, 2 write, 6 both. `order`: ordered across brokers.
        """
        check_topic(topic)
        config = TopicConfig(topic, read_queues, write_queues, perm, "SINGLE_TAG", sys_flag, order)
        if broker is None:
            places = await self.masters(cluster)
        elif order:
            places = [await self._place_of(broker)]
        else:
            places = [BrokerPlace("", "", 0, broker)]
        counts: dict[str, int] = {}
        for place in places:
            with failures.attempt():
                unread = await self._unread_messages(place.address, config)
                await self._set_topic(place.address, config)
                counts[place.name] = write_queues
                yield TopicChanged(
                    place.address,
                    **snake_case(config.to_json()),
                    unread_messages=sum(unread.values()) or None,
                    unread_queues=tuple(sorted(unread)),
                )
        if order and counts:
            await self._put_order(failures, topic, counts, whole=broker is None)

    async def _place_of(self, address: str) -> BrokerPlace:
        """Return the master at an address; orders of topics use broker names."""
        for place in await self.masters():
            if place.address == address:
                return place
        raise RouteNotFound(f"no master is registered with the address {address}")

    async def _set_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic at one broker. Raises ArgumentIllegal for an invalid one."""
        if fault := asked_topic_fault(config):
            raise ArgumentIllegal(f"{config.topic_name}: {fault}")
        header = CreateTopicHeader(
            topic=config.topic_name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
        )
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def _unread_messages(self, address: str, config: TopicConfig) -> dict[int, int]:
        """Return the messages by queue that consumers could not read with `config`.

        Must run before the change: afterwards no broker lists these queues. If the broker does not
        answer, the change itself reports that.
        """
        table = TopicStatsTable()
        header = TopicHeader(config.topic_name).encode()
        question = RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, header)
        if not asked_topic_fault(config):
            with suppress(ClientError):
                answer = await self.call(address, question, UNREAD_TIMEOUT_MS)
                if answer.code == ResponseCode.SUCCESS:
                    table = await self._decoded(TopicStatsTable.decode, answer.body)
        return {
            queue.queue_id: count
            for queue, ends in table.offset_table.items()
            if queue.queue_id >= config.read_queue_nums
            and (count := ends.max_offset - ends.min_offset) > 0
        }

    @changes
    async def delete_topic(
        self, failures: Failures, topic: str, cluster: str
    ) -> AsyncIterator[TopicDeleted | TopicForgotten]:
        """Delete a topic from a cluster and from the name servers."""
        for place in await self.masters(cluster):
            with failures.attempt():
                await self.ask(
                    place.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic)
                )
                yield TopicDeleted(topic, place.address)
        for address in await self._forget_topic(failures, topic, cluster):
            yield TopicForgotten(topic, address)

    async def _forget_topic(self, failures: Failures, topic: str, cluster: str) -> list[str]:
        """Remove a topic from the name servers' tables; return the addresses of those that did."""
        header = DeleteTopicInNamesrvHeader(topic, cluster)
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        done = await self._ask_all_namesrvs(failures, code, header)
        with failures.attempt():
            await self._forget_order(failures, topic, cluster)
        return [address for address, _ in done]

    async def _forget_order(self, failures: Failures, topic: str, cluster: str) -> None:
        """Delete the order of a topic, except at brokers of other clusters."""
        others = {place.name for place in await self.brokers() if place.cluster != cluster}
        counts = order_entries(await self.order_of(topic))
        kept = {name: count for name, count in counts.items() if name in others}
        if kept:
            await self._put_kv(failures, ORDER_CONFIGURATION, topic, _order_text(kept))
        else:
            await self._delete_kv(failures, ORDER_CONFIGURATION, topic)

    @changes
    async def update_topic_permission(
        self, failures: Failures, topic: str, perm: int, **where: Unpack[Where]
    ) -> AsyncIterator[TopicPermissionChanged]:
        """Change the permission of a topic: 4 read, 2 write, 6 both."""
        for address in sorted(set(await self.targets(**where))):
            with failures.attempt():
                table = await self._read(
                    TopicConfigTable, address, RequestCode.GET_ALL_TOPIC_CONFIG
                )
                config = table.topic_configs.get(topic)
                if config is None:
                    failures.add(f"{address} does not have the topic {topic}.")
                    continue
                before, config.perm = config.perm, perm
                await self._set_topic(address, config)
                yield TopicPermissionChanged(address, topic, before, perm)

    @operation
    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the brokers of a topic, with their addresses and queues."""
        route = await self.route(topic)
        return TopicRoute(
            tuple(
                RouteQueues(
                    each.broker_name,
                    each.read_queue_nums,
                    each.write_queue_nums,
                    each.perm,
                    each.topic_sys_flag,
                )
                for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
            ),
            tuple(
                RouteBroker(
                    each.cluster,
                    each.broker_name,
                    {str(number): address for number, address in sorted(each.broker_addrs.items())},
                )
                for each in sorted(route.broker_datas, key=lambda each: each.broker_name)
            ),
            route.order_topic_conf,
        )

    @operation
    async def topic_clusters(self, topic: str) -> list[str]:
        return sorted({each.cluster for each in (await self.route(topic)).broker_datas})

    @reads
    async def topic_groups(self, failures: Failures) -> AsyncIterator[TopicGroup]:
        """Return all topics with their clusters and consumer groups."""
        for topic in await self.topics():
            if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
                continue
            try:
                places = await self.topic_brokers(topic)
                clusters = sorted({place.cluster for place in places})
                groups = {
                    group for place in places for group in await self._consumers_of(place, topic)
                }
            except RouteNotFound:
                continue
            for cluster in clusters:
                for group in sorted(groups) or [""]:
                    yield TopicGroup(cluster, topic, group)

    async def _consumers_of(self, place: BrokerPlace, topic: str) -> list[str]:
        """Return the groups that consume or have consumed a topic at one broker."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        return (await self._read(GroupList, place.address, code, TopicHeader(topic))).group_list

    # --- the order of a topic

    @operation
    async def order_of(self, topic: str) -> str | None:
        """Return an ordered topic's count of queues by broker, `broker-a:4;broker-b:4`, or None."""
        return await self.kv(ORDER_CONFIGURATION, topic)

    @changes
    async def put_order(
        self, failures: Failures, topic: str, order: str
    ) -> AsyncIterator[OrderChanged]:
        """Set the order of a topic at every name server."""
        for address in await self._put_kv(failures, ORDER_CONFIGURATION, topic, order):
            yield OrderChanged(address, topic, order)

    @changes
    async def delete_order(self, failures: Failures, topic: str) -> AsyncIterator[OrderChanged]:
        """Delete the order of a topic at every name server."""
        for address in await self._delete_kv(failures, ORDER_CONFIGURATION, topic):
            yield OrderChanged(address, topic, None)

    async def _put_order(
        self, failures: Failures, topic: str, counts: Mapping[str, int], *, whole: bool
    ) -> None:
        """Set an ordered topic's counts of queues; `whole`: remove the counts of other brokers."""
        kept = {} if whole else order_entries(await self.order_of(topic))
        table = kept | {name: str(count) for name, count in counts.items()}
        await self._put_kv(failures, ORDER_CONFIGURATION, topic, _order_text(table))
