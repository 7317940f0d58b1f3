"""Queues of topics: offsets and message counts; traffic of topics."""

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from protocol.bodies import MessageQueue as TableQueue
from protocol.bodies_admin import BrokerStatsData, ConsumeStatsBody, TopicOffset, TopicStatsTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader, TopicHeader, ViewBrokerStatsHeader
from protocol.headers.client import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.topic_names import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    group_name_fault,
    topic_name_fault,
)
from troupemq.client.admin.answers import OPTIONAL, Failures, Result, Time
from troupemq.client.admin.base import BrokerPlace
from troupemq.client.admin.operations import operation, reads
from troupemq.client.admin.topics import TopicAdmin
from troupemq.client.arguments import check_instance
from troupemq.client.connection.route import route_of
from troupemq.client.consuming.assignment import averagely
from troupemq.client.errors import ArgumentIllegal, BrokerError, RouteNotFound, understood
from troupemq.client.message import MessageQueue, check_topic


@dataclass(frozen=True, slots=True)
class QueueBounds(Result):
    """The min offset and the max offset, behind the last message, of one queue."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_updated_ms: Time


@dataclass(frozen=True, slots=True)
class Allocation(Result):
    member: str
    broker: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class StoredTimes(Result):
    first_stored_ms: Time
    last_stored_ms: Time


@dataclass(frozen=True, slots=True)
class QueueOfGroup(Result):
    """A group's offset in a queue, and whether its next message is retained; None: no offset."""

    group_offset: int | None
    group_offset_kept: bool | None


@dataclass(frozen=True, slots=True)
class QueueState(Result):
    """One queue, with the requested details."""

    broker: str
    queue_id: int
    messages: int
    times: StoredTimes | None = field(default=None, metadata=OPTIONAL)
    of_group: QueueOfGroup | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class TopicTraffic(Result):
    """Messages sent to a topic and consumed by a group; empty for a topic without groups."""

    topic: str
    group: str
    lag: int
    in_tps: float
    out_tps: float
    in_day: int
    out_day: int


class QueueAdmin(TopicAdmin):
    @operation
    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues. Raises RouteNotFound for a missing topic."""
        check_topic(topic)
        return (await self._caller.look_up(topic)).subscribe_queues

    @operation
    async def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the min and max offset of a queue; the max is behind its last message."""
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        address = await self._caller.master_of(queue)
        return await self._ends_at(address, queue)

    async def _ends_at(self, address: str, queue: MessageQueue) -> tuple[int, int]:
        header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
        first = self._offset(await self.ask(address, RequestCode.GET_MIN_OFFSET, header))
        return first, self._offset(await self.ask(address, RequestCode.GET_MAX_OFFSET, header))

    @operation
    async def stored_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's consumer offset at the master; None if the group has none there."""
        address = await self._caller.master_of(queue)
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, queue.broker_name)
        try:
            return self._offset(await self.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, header))
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None

    @operation
    async def store_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the consumer offset of a group without members. Raises ArgumentIllegal."""
        if fault := topic_name_fault(queue.topic) or group_name_fault(group):
            raise ArgumentIllegal(fault)
        address = await self._caller.master_of(queue)
        header = UpdateConsumerOffsetHeader(
            group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        await self.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    @staticmethod
    def _offset(answer: RemotingCommand) -> int:
        return understood(OffsetResponseHeader.decode, answer.fields).offset

    @operation
    async def message_count(self, topic: str) -> int:
        """Return the number of messages in the queues of `topic`; 0 if it does not exist."""
        try:
            queues = await self.queues(topic)
        except RouteNotFound:
            return 0
        bounds = [await self.offsets(queue) for queue in queues]
        return sum(end - begin for begin, end in bounds)

    @operation
    async def allocate_queues(self, topic: str, members: Iterable[str]) -> list[Allocation]:
        """Return the queues that each member would get by the default assignment rule."""
        queues = sorted(route_of(topic, await self.route(topic)).subscribe_queues)
        names = sorted(set(members))
        return [
            Allocation(member, queue.broker_name, queue.queue_id)
            for member in names
            for queue in averagely(member, names, queues)
        ]

    @reads
    async def topic_status(self, failures: Failures, topic: str) -> AsyncIterator[QueueBounds]:
        """Return the min and max offset of each queue, and the time of its last message."""
        for place in await self.topic_brokers(topic):
            table: list[tuple[TableQueue, TopicOffset]] = []
            with failures.attempt():
                table = await self._offset_table(place, topic)
            for queue, ends in table:
                yield QueueBounds(
                    queue.broker_name,
                    queue.queue_id,
                    ends.min_offset,
                    ends.max_offset,
                    Time(ends.last_update_timestamp),
                )

    async def _offset_table(
        self, place: BrokerPlace, topic: str
    ) -> list[tuple[TableQueue, TopicOffset]]:
        code, header = RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic)
        table = (await self._read(TopicStatsTable, place.address, code, header)).offset_table
        return sorted(table.items(), key=lambda item: item[0].queue_id)

    @reads
    async def queue_states(
        self, failures: Failures, topic: str, *, with_times: bool = False, group: str | None = None
    ) -> AsyncIterator[QueueState]:
        """Return the queues of a topic with their message counts.

        `with_times`: also store times. `group`: also its offset, and whether the next message is
        retained.
        """
        known = False
        found: list[QueueState] = []
        for place in await self.topic_brokers(topic):
            with failures.attempt():
                groups = await self._consumers_of(place, topic)
                known = known or group in groups
                for queue, ends in await self._offset_table(place, topic):
                    times = await self._times(place, queue, ends) if with_times else None
                    of_group = None
                    if group is not None:
                        of_group = await self._queue_of_group(place, queue, ends, group, groups)
                    count = ends.max_offset - ends.min_offset
                    found.append(
                        QueueState(queue.broker_name, queue.queue_id, count, times, of_group)
                    )
        for each in found:
            yield each
        if group is not None and not known:
            failures.add(f"The group {group} has no offsets in {topic}.")

    async def _times(self, place: BrokerPlace, queue: TableQueue, ends: TopicOffset) -> StoredTimes:
        header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
        answer = await self.ask(place.address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        first = understood(EarliestStoreTimeResponseHeader.decode, answer.fields).timestamp
        return StoredTimes(Time(first), Time(ends.last_update_timestamp))

    async def _queue_of_group(
        self,
        place: BrokerPlace,
        queue: TableQueue,
        ends: TopicOffset,
        group: str,
        groups: Collection[str],
    ) -> QueueOfGroup:
        if group not in groups:
            return QueueOfGroup(None, None)
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, queue.broker_name)
        try:
            answer = await self.ask(place.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return QueueOfGroup(None, None)
        offset = self._offset(answer)
        return QueueOfGroup(offset, ends.min_offset <= offset <= ends.max_offset)

    # --- traffic

    @reads
    async def topic_traffic(
        self, failures: Failures, topic: str | None = None
    ) -> AsyncIterator[TopicTraffic]:
        """Return the throughput of one topic or of all, and the lag of the groups."""
        if topic is not None:
            await self.route(topic)  # a missing one is an error
        for each in await self.topics() if topic is None else [topic]:
            if not each.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
                async for found in self._traffic(failures, each):
                    yield found

    async def _traffic(self, failures: Failures, topic: str) -> AsyncIterator[TopicTraffic]:
        places: list[BrokerPlace] = []
        names: set[str] = set()
        with suppress(RouteNotFound):
            for place in await self.topic_brokers(topic):
                with failures.attempt():
                    names |= {*(await self._consumers_of(place, topic))}
                    places.append(place)
        if not places:
            return
        came = [await self._counter(place, "TOPIC_PUT_NUMS", topic) for place in places]
        for group in sorted(names) or [""]:
            went = [
                await self._counter(each, "GROUP_GET_NUMS", f"{topic}@{group}") for each in places
            ]
            yield TopicTraffic(
                topic,
                group,
                sum([await self._lag(place, topic, group) for place in places]) if group else 0,
                sum(each.stats_minute.tps for each in came),
                sum(each.stats_minute.tps for each in went),
                sum(_day(each) for each in came),
                sum(_day(each) for each in went),
            )

    async def _counter(self, place: BrokerPlace, name: str, key: str) -> BrokerStatsData:
        """Return one counter of a broker; zeros if it has never counted that."""
        try:
            return await self.counter(place.address, name, key)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return BrokerStatsData()

    @operation
    async def counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return a counter of a broker. Raises BrokerError(SYSTEM_ERROR) if it never counted."""
        header = ViewBrokerStatsHeader(name, key)
        return await self._read(
            BrokerStatsData, address, RequestCode.VIEW_BROKER_STATS_DATA, header
        )

    async def _lag(self, place: BrokerPlace, topic: str, group: str) -> int:
        header = GetConsumeStatsHeader(group, topic)
        stats = await self._read(
            ConsumeStatsBody, place.address, RequestCode.GET_CONSUME_STATS, header
        )
        return sum(each.lag for each in stats.offset_table.values())


def _day(data: BrokerStatsData) -> int:
    """Return the count of the widest span: a young broker has not counted for a day."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
