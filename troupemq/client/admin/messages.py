"""Messages: queries by id, key or offset, consumers, sends, and direct consumption."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from socket import SOCK_STREAM, getaddrinfo

from protocol.bodies import SubscriptionData
from protocol.bodies_admin import ConsumeQueueView, ConsumeStatsBody
from protocol.bodies_client import ConsumeMessageDirectlyResult
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader, QueryConsumeQueueHeader
from protocol.headers.client import (
    ConsumeMessageDirectlyHeader,
    QueryMessageHeader,
    ViewMessageHeader,
)
from protocol.host import host_text
from protocol.message import MessageRecord
from protocol.message_id import is_offset_message_id, parse_message_id
from protocol.properties import NOT_COPIED, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_TOPICS, TRACE_TOPIC
from troupemq.client.admin.answers import HIDDEN, Change, Failures, Result, snake_case
from troupemq.client.admin.base import TIMEOUT_MS
from troupemq.client.admin.brokers import BrokerAdmin
from troupemq.client.admin.offsets import OffsetAdmin
from troupemq.client.admin.operations import operation, reads
from troupemq.client.admin.reading import (
    TraceEvent,
    events_in,
    records_of,
)
from troupemq.client.arguments import MS_MAX, check_instance, check_integer, check_time
from troupemq.client.connection.connection import split_address
from troupemq.client.connection.route import MASTER_ID, route_of
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    MessageNotFound,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.message import (
    Message,
    MessageQueue,
    MessageView,
    check_topic,
    view_of,
)
from troupemq.client.settings import ProducerSettings

FOREVER_MS = (1 << 63) - 1
QUERIED_MAX = 64
"""Maximum messages of one answer, as in 4.9.7."""

DIRECTLY_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class MessageTrack(Result):
    """The state of a message for a group of its topic.

    consumed, filtered, not_yet, offline, pull (pull consumers do not report it) or unknown.
    """

    group: str
    state: str


@dataclass(frozen=True, slots=True)
class MessageSent(Result):
    broker: str
    queue_id: int
    queue_offset: int
    status: str
    message_id: str
    offset_message_id: str


@dataclass(frozen=True, slots=True)
class SentAgain(Change):
    SENTENCE = "{0.before} is sent again: {0.message_id} in {0.queue}."
    before: str
    message_id: str
    offset_message_id: str
    queue: MessageQueue = field(metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class Recalled(Change):
    SENTENCE = "{0.message_id} is recalled: it is not delivered to {0.topic}."
    topic: str
    message_id: str


@dataclass(frozen=True, slots=True)
class ConsumedDirectly(Result):
    auto_commit: bool
    consume_result: str | None
    order: bool
    remark: str | None
    spent_time_mills: int


@dataclass(frozen=True, slots=True)
class QueueUnit(Result):
    """One unit of a consume queue, and the result of a group's filter for it."""

    index: int
    bit_map: str | None
    eval: bool
    extend_data_json: str | None
    msg: str | None
    physic_offset: int
    physic_size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """Some units of a consume queue, and the group's filter."""

    units: Sequence[QueueUnit]
    min_index: int
    max_index: int
    subscription: str | None
    filter: str | None


class MessageAdmin(OffsetAdmin, BrokerAdmin):
    @operation
    async def query_by_key(
        self,
        topic: str,
        key: str,
        count_max: int = 64,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageView]:
        """Return messages of a topic that have `key` among their keys, or as their message id.

            admin.query_by_key("Orders", "4711")

        The times, in ms since 1970, are inclusive bounds of the store time. Returns the newest
        `count_max` of each broker, oldest first. Raises RouteNotFound for a missing topic.
        """
        check_topic(topic)
        check_instance(key, str, "a key is a string")
        check_integer(count_max, 1, MS_MAX, "count_max")
        check_time(begin_ms, "begin_ms")
        check_time(end_ms, "end_ms")
        header = QueryMessageHeader(topic, key, count_max, begin_ms, end_ms)
        found: list[MessageView] = []
        for name, address in sorted((await self._masters(topic)).items()):
            found += await self._query(address, name, header)
        return sorted(found, key=lambda each: each.store_timestamp_ms)

    async def _query(
        self, address: str, broker_name: str, header: QueryMessageHeader
    ) -> list[MessageView]:
        command = RemotingCommand(RequestCode.QUERY_MESSAGE, key_question(header).encode())
        try:
            answer = await self._ask(address, command, TIMEOUT_MS)
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return []
        return await self._decoded(
            lambda body: views_with_key(body, broker_name, header), answer.body
        )

    @operation
    async def view_message(self, offset_message_id: str) -> MessageView:
        """Return a message by the broker's id (`SendResult.offset_message_id`).

        Raises MessageIllegal for an invalid id, RouteNotFound if no name server lists the broker,
        BrokerError if the message does not exist.
        """
        check_instance(offset_message_id, str, "a message's id is a string")
        try:
            host, offset = parse_message_id(offset_message_id)
        except ValueError as error:
            raise MessageIllegal(str(error)) from None
        name, address = await self.listed(host_text(host))
        command = RemotingCommand(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode()
        )
        answer = await self._ask(address, command, TIMEOUT_MS)
        records = await self._decoded(records_of, answer.body)
        if len(records) != 1:
            raise BadAnswer(f"{address} answered {len(records)} messages instead of one")
        return view_of(records[0], _queue_of(records[0], name))

    @operation
    async def listed(self, address: str) -> tuple[str, str]:
        """Return the name and the address of a broker as the name servers list it.

        An address in a message may lead to any server, which must not get a signed request.
        Raises RouteNotFound for an unlisted address.
        """
        places = [
            (each.broker_name, where)
            for each in (await self.cluster_info()).broker_addr_table.values()
            for where in each.broker_addrs.values()
        ]
        for place in places:
            if place[1] == address:
                return place
        ip, port = split_address(address)
        for place in places:
            if await self._caller.blocking(_is_at, place[1], ip, port):
                return place
        raise RouteNotFound(f"{address} is not asked: no name server lists a broker there")

    @operation
    async def find_message(self, message_id: str, topic: str | None = None) -> MessageView:
        """Return a message by the broker's id or the producer's id.

        A producer's id does not contain a place. Without `topic` all topics are searched, retries
        and dead letters last. Raises ClientError if no topic has it.
        """
        error: ClientError | None = None
        if is_offset_message_id(message_id):
            try:
                return await self.view_message(message_id)
            except (BrokerError, ConnectionFailed, RequestTimeout, RouteNotFound) as failure:
                error = failure
        for each in (
            [topic] if topic is not None else sorted(await self.topics(), key=_own_topics_first)
        ):
            try:
                places = await self.topic_brokers(each)
            except RouteNotFound:
                if topic is not None:
                    raise
                continue  # deleted in the meantime
            for place in places:
                header = QueryMessageHeader(each, message_id, QUERIED_MAX, 0, FOREVER_MS)
                try:
                    found = await self._query(place.address, place.name, header)
                except ClientError as failure:
                    error = error or failure
                    continue
                for view in found:
                    if view.message_id == message_id:
                        return view
        if error is not None:
            raise error
        raise MessageNotFound(
            f"no message with the id {message_id} is in {topic or 'any topic'}:"
            " it was not stored, or is deleted already"
        )

    @operation
    async def has_accounts(self, topic: str) -> bool:
        """Return whether a broker of the topic has access control, or refuses to answer."""
        for address in (await self._masters(topic)).values():
            try:
                settings = await self.settings_at(address)
            except BrokerError:
                return True
            if settings.get("aclEnable", "").lower() == "true":
                return True
        return False

    @operation
    async def original_of(self, copy: MessageView) -> MessageView | None:
        """Return the original that a retry or dead letter names, if its topic and body match."""
        topic, origin = (copy.properties.get(name, "") for name in (RETRY_TOPIC, ORIGIN_MESSAGE_ID))
        found: list[MessageView] = []
        if is_offset_message_id(origin):
            with suppress(BrokerError, RouteNotFound):  # deleted, or its broker has a new address
                found = [await self.view_message(origin)]
        if topic and not found:
            with suppress(RouteNotFound):
                found = await self.query_by_key(topic, copy.message_id)
        for each in found:
            if each.queue.topic == topic and each.stored_body == copy.stored_body:
                return each
        return None

    async def _masters(self, topic: str) -> dict[str, str]:
        addresses = (await self._caller.look_up(topic)).addresses
        return {name: ids[MASTER_ID] for name, ids in addresses.items() if MASTER_ID in ids}

    # --- queues

    @operation
    async def readable_queues(
        self, topic: str, broker_name: str | None = None, queue_id: int | None = None
    ) -> list[MessageQueue]:
        """Return readable queues. Raises RouteNotFound if the named ones are not readable."""
        found = [
            queue
            for queue in sorted(route_of(topic, await self.route(topic)).subscribe_queues)
            if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
        ]
        if not found:
            which = "queue to read" if queue_id is None else f"queue {queue_id} to read"
            where = "" if broker_name is None else f" at the broker {broker_name}"
            raise RouteNotFound(f"the topic {topic} has no {which}{where}")
        return found

    async def _address_of(self, queue: MessageQueue) -> str:
        """Return the address of a broker to read a queue at. Raises RouteNotFound."""
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        for place in await self.topic_brokers(queue.topic):
            if place.name == queue.broker_name:
                return place.address
        raise RouteNotFound(f"the broker {queue.broker_name} does not have the topic {queue.topic}")

    @operation
    async def queue_units(
        self,
        topic: str,
        queue_id: int,
        index: int,
        count: int = 10,
        *,
        broker: str | None = None,
        group: str | None = None,
    ) -> QueueUnits:
        """Return units of a consume queue, and the results of a group's filter for them."""
        address = broker or (await self.topic_brokers(topic))[0].address
        header = QueryConsumeQueueHeader(topic, queue_id, index, count, group)
        found = await self._read(ConsumeQueueView, address, RequestCode.QUERY_CONSUME_QUEUE, header)
        wanted = found.subscription_data
        return QueueUnits(
            [
                QueueUnit(number, **snake_case(each.to_json()))
                for number, each in enumerate(found.queue_data, index)
            ],
            found.min_queue_index,
            found.max_queue_index,
            None if wanted is None else wanted.sub_string,
            found.filter_data,
        )

    # --- consumers

    @reads
    async def message_tracks(
        self, failures: Failures, view: MessageView
    ) -> AsyncIterator[MessageTrack]:
        """Return the state of a message for each consumer group of its topic."""
        groups = await self._groups_of(failures, view.topic)
        if not groups:
            return
        address = None
        with suppress(RouteNotFound):  # its broker is unregistered, or has a new address
            _, address = await self.listed(view.store_host)
        found = [
            MessageTrack(
                group, "unknown" if address is None else await self._track(view, group, address)
            )
            for group in groups
        ]
        for each in found:
            yield each

    async def _groups_of(self, failures: Failures, topic: str) -> list[str]:
        groups: set[str] = set()
        with suppress(RouteNotFound):
            for place in await self.topic_brokers(topic):
                with failures.attempt():
                    groups.update(await self._consumers_of(place, topic))
        return sorted(groups)

    async def _track(self, view: MessageView, group: str, address: str) -> str:
        try:
            members = await self.members_of(group)
        except RouteNotFound:
            return "unknown"
        except BrokerError as error:
            return "offline" if error.code == ResponseCode.CONSUMER_NOT_ONLINE else "unknown"
        if members.consume_type == "CONSUME_ACTIVELY":
            return "pull"
        if not await self._has_passed(view, group, address):
            return "not_yet"
        wanted = members.subscription_table.get(view.topic)
        return "consumed" if wanted is None or _wants(wanted, view.tags) else "filtered"

    async def _has_passed(self, view: MessageView, group: str, address: str) -> bool:
        code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsHeader(group, view.queue.topic)
        stats = await self._read(ConsumeStatsBody, address, code, header)
        return any(
            where.consumer_offset > view.queue_offset
            for queue, where in stats.offset_table.items()
            if queue.topic == view.queue.topic and queue.queue_id == view.queue.queue_id
        )

    @operation
    async def trace_events(
        self, message_id: str, trace_topic: str = TRACE_TOPIC
    ) -> list[TraceEvent]:
        """Return the traces of a message: sends and consumptions with their duration."""
        views = await self.query_by_key(trace_topic, message_id)

        def events() -> list[TraceEvent]:
            found = events_in(views, message_id)
            return sorted(found, key=lambda event: str(event.time_ms or ""))

        return await self._caller.blocking(events)

    # --- sending

    @operation
    async def send_message(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        queue: MessageQueue | None = None,
        trace: bool = False,
    ) -> MessageSent:
        """Send one message; to send many, use a Producer."""
        message = Message(topic, body, tags=tags, keys=tuple(keys))
        async with self._sender(settings=ProducerSettings(trace=trace)) as producer:
            result = await producer.send(message, queue=queue)
        return MessageSent(
            result.queue.broker_name,
            result.queue.queue_id,
            result.queue_offset,
            result.status.value,
            result.message_id,
            result.offset_message_id,
        )

    @operation
    async def send_again(self, view: MessageView) -> SentAgain:
        """Send a message to its topic again.

        With access control, raises MessageNotFound for a retry without an original at any broker.
        """
        source = view
        is_retry = view.queue.topic != view.topic  # `view.topic` is only the sender's claim
        if is_retry and await self.has_accounts(view.queue.topic):
            original = await self.original_of(view)
            if original is None:
                raise MessageNotFound(
                    f"{view.offset_message_id} is a retry that names {view.topic} as its topic, and"
                    " no broker has that message there: it is not sent"
                )
            source = original
        pairs = source.properties.items()
        own = {name: value for name, value in pairs if name not in NOT_COPIED}
        message = Message(source.topic, source.body, source.tags, source.keys, own)
        async with self._sender() as producer:
            result = await producer.send(message)
        return SentAgain(
            source.offset_message_id, result.message_id, result.offset_message_id, result.queue
        )

    @operation
    async def recall_message(self, topic: str, handle: str) -> Recalled:
        """Cancel a delayed delivery that is not due yet, by the handle in the answer to its send.

        Raises BrokerError if the message is delivered or recalled already.
        """
        async with self._sender() as producer:
            return Recalled(topic, await producer.recall(topic, handle))

    @operation
    async def consume_directly(
        self, view: MessageView, group: str, client_id: str
    ) -> ConsumedDirectly:
        """Make one member of a group consume a message now, without changing offsets."""
        found = await self._read(
            ConsumeMessageDirectlyResult,
            (await self.listed(view.store_host))[1],
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectlyHeader(group, client_id, view.offset_message_id),
            timeout_ms=DIRECTLY_TIMEOUT_MS,
        )
        return ConsumedDirectly(**snake_case(found.to_json()))


def _own_topics_first(topic: str) -> tuple[bool, bool, str]:
    """Return the sort key of topics to search: own topics, then retries, then dead letters."""
    is_copy = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return topic in SYSTEM_TOPICS, is_copy, topic


def _wants(subscription: SubscriptionData, tags: str | None) -> bool:
    named = subscription.tags_set
    return not named or "*" in named or tags in named


def _is_at(listed: str, ip: str, port: int) -> bool:
    """Return whether a listed address, possibly a host name, resolves to `ip` and `port`."""
    try:
        host, listed_port = split_address(listed)
        found = getaddrinfo(host, port, type=SOCK_STREAM) if listed_port == port else []
    except (ClientError, OSError, UnicodeError):
        return False
    return any(ip_address(str(each[4][0]).partition("%")[0]) == ip_address(ip) for each in found)


def key_question(header: QueryMessageHeader) -> QueryMessageHeader:
    """Return the query for a broker, begun 999 ms earlier: 4.9.7 compares whole seconds."""
    return replace(header, begin_timestamp=max(0, header.begin_timestamp - 999))


def views_with_key(
    body: bytes | memoryview | None, broker_name: str, header: QueryMessageHeader
) -> list[MessageView]:
    """Return the messages with the key in one broker's answer.

    The index of 4.9.7 has only hashes of topic and key, so the answer may hold others.
    """
    key, times = header.key, (header.begin_timestamp, header.end_timestamp)
    found = [view_of(each, _queue_of(each, broker_name)) for each in records_of(body)]
    return [
        each
        for each in found
        if each.queue.topic == header.topic
        and times[0] <= each.store_timestamp_ms <= times[1]
        and (key in each.keys or key == each.message_id)
    ]


def _queue_of(record: MessageRecord, broker_name: str) -> MessageQueue:
    return MessageQueue(record.topic, broker_name, record.queue_id)
