"""Members of consumer groups, and producers: their connections and their state."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time_ns
from typing import TypeVar

from protocol.bodies import MessageQueue
from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerTable,
)
from protocol.bodies_own import AclRefusal, AclRefusals, GroupChanges
from protocol.codes import RequestCode
from protocol.errors import RemoteError
from protocol.fastjson import Key
from protocol.frame import RemotingCommand
from protocol.headers.admin import ConsumerGroupHeader, ProducerGroupHeader
from protocol.headers.client import GetConsumerRunningInfoHeader
from protocol.java_numbers import plain_number
from troupemq.client.admin.answers import OPTIONAL, Failures, Result, Time
from troupemq.client.admin.base import INT_MAX, json_object
from troupemq.client.admin.operations import operation, reads
from troupemq.client.admin.queues import QueueAdmin
from troupemq.client.connection.remoting import check_success
from troupemq.client.errors import ClientError, RouteNotFound, understood
from troupemq.numbers import finite, odd_number, whole

DENIED_MS = 600_000
"""Age of refusals to show. A client retries every 30 s: an older refusal is resolved."""

DENIED_SHOWN_MAX = 10
"""Limit of name server refusals to show, the newest; any of them may be the cause."""

MEMBER_TIMEOUT_MS = 3000
"""Timeout of members that are asked at the same time."""

_CACHED = "cachedMsgCount"
_KEY_CHARS_MAX, _ODD_CHARS_MAX, _ODDITIES_MAX = 100, 40, 5

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ConnectedClient(Result):
    client: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class ConnectedProducer(Result):
    broker: str
    connection: ConnectedClient


@dataclass(frozen=True, slots=True)
class BrokerProducer(Result):
    """A producer at one broker, and the time of its last heartbeat."""

    group: str
    connection: ConnectedClient
    last_seen_ms: Time


@dataclass(frozen=True, slots=True)
class GroupMembers(Result):
    """The members of a group, and their subscriptions: topic → expression."""

    members: tuple[ConnectedClient, ...]
    subscriptions: Mapping[str, str]
    consume_type: str | None
    message_model: str | None
    consume_from_where: str | None


@dataclass(frozen=True, slots=True)
class MemberStacks(Result):
    """The stacks of a member's threads; None if it did not send them."""

    jstack: object


@dataclass(frozen=True, slots=True)
class MemberState(Result):
    """State of one member of a group, as it reports it."""

    client: str
    version: int
    model: object
    subscriptions: tuple[str, ...]
    queues: int
    cached: int
    """Messages that it has pulled and not consumed."""
    queue_names: tuple[str, ...]
    in_flight: int | None = field(default=None, metadata=OPTIONAL)
    """Messages that it has received and not settled; None if it does not settle each by itself."""
    stacks: MemberStacks | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class MembershipChange(Result):
    """A member that joined or left, which starts a rebalance."""

    time_ms: Time
    what: str
    client: str
    address: str
    why: str
    members: int
    broker: str


@dataclass(frozen=True, slots=True)
class ClientInfo(Result):
    """The complete state that a member reports, under RocketMQ's names."""

    said: Mapping[str, object]

    @classmethod
    def decode(cls, body: bytes | memoryview | None) -> "ClientInfo":
        """Return the state in an answer. Raises ClientError."""
        return cls(understood(plain_names, json_object(body)))

    def row(self) -> dict[str, object]:
        return dict(self.said)

    @property
    def queues(self) -> list[MessageQueue]:
        queues = (queue_named(str(key)) for key in self.table)
        return [queue for queue in queues if queue is not None]

    @property
    def table(self) -> Mapping[str, object]:
        """Assigned queues by name, `topic@broker:number`."""
        found = self.said.get("mqTable")
        return found if isinstance(found, dict) else {}

    @property
    def pop_table(self) -> Mapping[str, object] | None:
        """Queues of messages that it settles one by one; None if it does not."""
        found = self.said.get("mqPopTable")
        return found if isinstance(found, dict) and (found or not self.table) else None

    @property
    def in_flight(self) -> int | None:
        """Messages that it has received and not settled; None if it does not settle each."""
        if self.pop_table is None:
            return None
        rows = [each for each in self.pop_table.values() if isinstance(each, dict)]
        return sum(max(0, whole(each.get("waitAckCount")) or 0) for each in rows)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Messages consumed and failed per second, of all topics; None if it reports none."""
        table = self.said.get("statusTable")
        if not isinstance(table, dict):
            return None
        rows = [each for each in table.values() if isinstance(each, dict)]
        good, bad = (
            sum(finite(str(each.get(name))) or 0.0 for each in rows)
            for name in ("consumeOKTPS", "consumeFailedTPS")
        )
        return good, bad

    def state(self, client: ClientConnection, with_stacks: bool) -> MemberState:
        """Return its figures for a table."""
        settings = self.said.get("properties")
        cached = (each.get(_CACHED) for each in self.table.values() if isinstance(each, dict))
        names = sorted({*self.table, *(self.pop_table or ())})
        return MemberState(
            client.client_id,
            client.version,
            settings.get("messageModel") if isinstance(settings, dict) else None,
            tuple(sorted(map(_subscription, _items(self.said.get("subscriptionSet"))))),
            len(names),
            sum(whole(each) or 0 for each in cached),
            tuple(names),
            self.in_flight,
            MemberStacks(self.said.get("jstack")) if with_stacks else None,
        )

    def oddities(self) -> list[str]:
        """Return phrases on invalid figures, which the sums omit."""
        found = []
        for name, each in self.table.items():
            if not isinstance(each, dict):
                found.append(f"an invalid state of the queue {name}")
            elif each.get(_CACHED) is not None and whole(each[_CACHED]) is None:
                odd = (odd_number(each[_CACHED]) or str(each[_CACHED]))[:_ODD_CHARS_MAX]
                found.append(f"an invalid number of messages of the queue {name}: {odd!r}")
        return found[:_ODDITIES_MAX]


class MemberAdmin(QueueAdmin):
    @reads
    async def producers_of(
        self, failures: Failures, group: str, topic: str
    ) -> AsyncIterator[ConnectedProducer]:
        """Return the producers of a group at the brokers of a topic."""
        code, header = RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(group)
        for place in await self.topic_brokers(topic):
            with failures.attempt():
                found = await self._read(ProducerConnection, place.address, code, header)
                for each in found.connection_set:
                    yield ConnectedProducer(place.name, _client(each))

    @reads
    async def producers_at(self, failures: Failures, broker: str) -> AsyncIterator[BrokerProducer]:
        """Return all producers of a broker, by group."""
        table = await self._read(ProducerTable, broker, RequestCode.GET_ALL_PRODUCER_INFO)
        for group, members in sorted(table.data.items()):
            for each in members:
                address = each.remote_ip.removeprefix("/")
                client = ConnectedClient(each.client_id, address, each.language, each.version)
                yield BrokerProducer(group, client, Time(each.last_update_timestamp))

    @operation
    async def group_members(self, group: str, *, broker: str | None = None) -> GroupMembers:
        """Return a group's members. Raises BrokerError(CONSUMER_NOT_ONLINE) without members."""
        found = await self.members_of(group, broker)
        return GroupMembers(
            tuple(map(_client, found.connection_set)),
            {topic: each.sub_string for topic, each in found.subscription_table.items()},
            found.consume_type,
            found.message_model,
            found.consume_from_where,
        )

    @operation
    async def members_of(self, group: str, broker: str | None = None) -> ConsumerConnection:
        """Return the members as one broker knows them: members connect to every broker."""
        code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)

        async def ask(address: str) -> ConsumerConnection:
            return await self._read(ConsumerConnection, address, code, header)

        return await self._of_any(group, broker, ask)

    @operation
    async def running_info(
        self, group: str, client_id: str, *, broker: str | None = None, with_stacks: bool = False
    ) -> ClientInfo:
        """Return the state of a member, through `broker` or any broker of the group."""
        header = GetConsumerRunningInfoHeader(group, client_id, with_stacks)

        async def ask(address: str) -> ClientInfo:
            answer = await self.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            return await self._decoded(ClientInfo.decode, answer.body)

        return await self._of_any(group, broker, ask)

    async def _members_at(self, group: str) -> tuple[str, ConsumerConnection]:
        """Return the address of a broker and the members it knows; none if none is online."""
        code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)

        async def ask(address: str) -> tuple[str, ConsumerConnection]:
            return address, await self._read(ConsumerConnection, address, code, header)

        try:
            return await self._of_any(group, None, ask)
        except ClientError:
            return "", ConsumerConnection()

    async def _infos_of(
        self, group: str, address: str, clients: Sequence[str], *, with_stacks: bool
    ) -> AsyncIterator[ClientInfo | ClientError]:
        """Yield the state or error of each member; one broker asks them at the same time."""
        headers = (GetConsumerRunningInfoHeader(group, each, with_stacks) for each in clients)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        asked = [RemotingCommand(code, header.encode()) for header in headers]
        for answer in await self.call_together(address, asked, MEMBER_TIMEOUT_MS):
            if isinstance(answer, ClientError):
                yield answer
                continue
            try:
                check_success(answer, address)
                yield await self._decoded(ClientInfo.decode, answer.body)
            except ClientError as error:
                yield error

    async def _of_any(
        self, group: str, broker: str | None, ask: Callable[[str], Awaitable[Found]]
    ) -> Found:
        """Return the answer of `broker`, or of the first broker of the group that answers."""
        if broker is not None:
            return await ask(broker)
        *others, last = await self.group_brokers(group)
        for place in others:
            with suppress(ClientError):
                return await ask(place.address)
        return await ask(last.address)

    @reads
    async def member_states(
        self,
        failures: Failures,
        group: str,
        *,
        broker: str | None = None,
        with_stacks: bool = False,
    ) -> AsyncIterator[MemberState]:
        """Return the state of each member of a group; contradictions are failures."""
        for sentence in await self._denied(group, broker):
            failures.add(sentence)
        try:
            members = (await self.members_of(group, broker)).connection_set
        except RouteNotFound:
            for sentence in await self._denied_routes():
                failures.add(sentence)
            raise
        found: list[MemberState] = []
        for member in members:
            client = member.client_id
            try:
                info = await self.running_info(
                    group, client, broker=broker, with_stacks=with_stacks
                )
            except ClientError as error:
                failures.add(f"{client} does not report its state: {error}")
                continue
            found.append(info.state(member, with_stacks))
            yield found[-1]
            for sentence in info.oddities():
                failures.add(f"{client} reports {sentence}.")
        if len({each.subscriptions for each in found}) > 1:
            failures.add(f"The members of {group} subscribe differently: messages get lost.")
        owners = (each for each in found if each.in_flight is None)
        shared = Counter(queue for each in owners for queue in each.queue_names)
        twice = sorted(queue for queue, count in shared.items() if count > 1)
        if twice and all(each.model == "CLUSTERING" for each in found):
            sentence = f"Several members have the same queues at the moment: {', '.join(twice)}."
            failures.add(sentence)

    async def _denied(self, group: str, broker: str | None) -> list[str]:
        """Return sentences on refused members; official brokers do not report them."""
        found = []
        for address in await self.targets(broker, None):
            try:
                seen = await self._changes_of(group, address)
            except ClientError:
                continue  # An official broker, or a stopped one: other requests report that.
            found += [_refused(address, each) for each in seen.refusals if _is_recent(each)]
        return found

    async def _denied_routes(self) -> list[str]:
        """Return sentences on clients that were refused a route, and so reach no broker.

        Only TroupeMQ name servers report them, and only to accounts with the permission.
        """
        found: list[tuple[int, str]] = []
        for address in self.namesrvs:
            try:
                seen = await self._read(AclRefusals, address, RequestCode.GET_ACL_REFUSALS)
            except ClientError:
                continue
            found += (
                (each.last_timestamp, _refused(address, each))
                for each in seen.refusals
                if each.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and _is_recent(each)
            )
        newest = sorted(found, reverse=True)[:DENIED_SHOWN_MAX]
        return [sentence for _, sentence in newest]

    async def _changes_of(self, group: str, address: str) -> GroupChanges:
        header = ConsumerGroupHeader(group)
        return await self._read(GroupChanges, address, RequestCode.GET_GROUP_CHANGES, header)

    @reads
    async def rebalances(
        self, failures: Failures, group: str, *, broker: str | None = None
    ) -> AsyncIterator[MembershipChange]:
        """Return the latest membership changes of a group; different subscriptions are failures."""
        places = [] if broker is not None else await self.group_brokers(group)
        found: list[MembershipChange] = []
        differing: set[str] = set()
        for address in [broker] if broker is not None else [each.address for each in places]:
            seen = GroupChanges(group)
            with failures.attempt():
                seen = await self._changes_of(group, address)
            found += (
                MembershipChange(
                    Time(each.timestamp),
                    each.kind,
                    each.client_id,
                    each.client_addr,
                    each.why,
                    each.members,
                    address,
                )
                for each in seen.changes
            )
            differing |= {
                f"{one.topic}: {wanted.expression or 'nothing'} by {', '.join(wanted.client_ids)}"
                for one in seen.mismatches
                for wanted in one.wanted
            }
        for change in sorted(found, key=lambda each: each.time_ms):
            yield change
        if differing:
            why = "; ".join(sorted(differing))
            failures.add(f"The members of {group} subscribe differently. {why}.")


def _client(connection: ClientConnection) -> ConnectedClient:
    return ConnectedClient(
        connection.client_id, connection.client_addr, connection.language, connection.version
    )


def _is_recent(refusal: AclRefusal) -> bool:
    return time_ns() // 1_000_000 - refusal.last_timestamp < DENIED_MS


def _refused(address: str, refusal: AclRefusal) -> str:
    client = f"the account {refusal.account}" if refusal.account else "a stranger"
    return (
        f"{address} refused {client} from {refusal.address} {refusal.count} times, the last time"
        f" with code {refusal.code} at {Time(refusal.last_timestamp)}: {refusal.remark}."
    )


def queue_named(text: str) -> MessageQueue | None:
    """Return the queue that `topic@broker:number` names; None for other texts."""
    names, colon, number = text.rpartition(":")
    topic, at, broker = names.rpartition("@")
    queue_id = plain_number(number, INT_MAX)
    if not colon or not at or queue_id is None:
        return None
    return MessageQueue(topic, broker, queue_id)


def plain_names(found: Mapping[Key, object]) -> dict[str, object]:
    return {str(key): _plain(value) for key, value in found.items()}


def _plain(value: object) -> object:
    """Return a value for JSON: queues as keys become texts."""
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _key(key: object) -> str:
    if isinstance(key, int | str):
        return str(key)
    try:
        queue = MessageQueue.from_json(dict(key) if isinstance(key, tuple | frozenset) else key)
    except (RemoteError, TypeError, ValueError):
        return str(key)[:_KEY_CHARS_MAX]
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _subscription(found: object) -> str:
    table = found if isinstance(found, dict) else {}
    return f"{table.get('topic')}: {table.get('subString')}"
