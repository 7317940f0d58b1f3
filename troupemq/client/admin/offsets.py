"""Offsets of consumer groups: reset and clone."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ConsumeStatsBody
from protocol.bodies_client import ResetOffsetBody
from protocol.codes import LanguageCode, RequestCode, ResponseCode
from protocol.headers.admin import CloneGroupOffsetHeader, GetConsumeStatsHeader
from protocol.headers.client import (
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.topic_names import group_name_fault, topic_name_fault
from troupemq.client.admin.answers import Change, Failures, Result
from troupemq.client.admin.base import BrokerPlace
from troupemq.client.admin.groups import GroupAdmin
from troupemq.client.admin.operations import changes
from troupemq.client.arguments import check_time
from troupemq.client.errors import ArgumentIllegal, BrokerError

NEWEST = -1


@dataclass(frozen=True, slots=True)
class QueueReset(Result):
    """The offset of a group in one queue after a reset; members: told, or offline."""

    broker: str
    queue_id: int
    offset: int
    members: str


@dataclass(frozen=True, slots=True)
class OffsetsCloned(Change):
    SENTENCE = "{0.group} has the offsets of {0.source_group} in {0.topic} at {0.broker_address}."
    broker_address: str
    source_group: str
    group: str
    topic: str


class OffsetAdmin(GroupAdmin):
    @changes
    async def reset_offsets(
        self,
        failures: Failures,
        group: str,
        topic: str,
        time_ms: int | None = None,
        *,
        force: bool = True,
        is_cplus: bool = False,
    ) -> AsyncIterator[QueueReset]:
        """Reset a group's offsets in one topic to a time; None: behind the last message.

            admin.reset_offsets("billing", "Orders", time_ms=1_790_000_000_000)

        `time_ms`: ms since 1970. `force`: also forward. `is_cplus`: the members are C++ clients.
        """
        time_ms = NEWEST if time_ms is None else time_ms
        if time_ms != NEWEST:
            check_time(time_ms, "time_ms")
        header = ResetOffsetHeader(topic, group, time_ms, force)
        for place in await self.topic_brokers(topic):
            with failures.attempt():
                try:
                    found = [each async for each in self._reset_online(place, header, is_cplus)]
                except BrokerError as error:
                    if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                        raise
                    found = [each async for each in self._reset_offline(place, header)]
                for each in found:
                    yield each

    async def _reset_online(
        self, place: BrokerPlace, header: ResetOffsetHeader, is_cplus: bool
    ) -> AsyncIterator[QueueReset]:
        """Let the broker send the reset to the members."""
        language = LanguageCode.CPP if is_cplus else LanguageCode.JAVA
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await self.ask(place.address, code, header, language=language)
        table = (await self._decoded(ResetOffsetBody.decode, answer.body)).offset_table
        for queue, offset in sorted(table.items(), key=lambda item: item[0].queue_id):
            yield QueueReset(queue.broker_name, queue.queue_id, offset, "told")

    async def _reset_offline(
        self, place: BrokerPlace, header: ResetOffsetHeader
    ) -> AsyncIterator[QueueReset]:
        """Set offsets of a group without members. Raises ArgumentIllegal for invalid names."""
        if fault := topic_name_fault(header.topic) or group_name_fault(header.group):
            raise ArgumentIllegal(fault)
        for queue, before in await self._consumed(place, header):
            offset = await self._offset_at(place, queue, header.timestamp)
            if header.is_force or offset <= before:
                update = UpdateConsumerOffsetHeader(
                    header.group, header.topic, queue.queue_id, offset, queue.broker_name
                )
                await self.ask(place.address, RequestCode.UPDATE_CONSUMER_OFFSET, update)
            else:
                offset = before
            yield QueueReset(queue.broker_name, queue.queue_id, offset, "offline")

    async def _consumed(
        self, place: BrokerPlace, header: ResetOffsetHeader
    ) -> list[tuple[MessageQueue, int]]:
        """Return the group's offset in each queue, or the min offsets if it has no offsets."""
        of_group = GetConsumeStatsHeader(header.group)
        code = RequestCode.GET_CONSUME_STATS
        stats = await self._read(ConsumeStatsBody, place.address, code, of_group)
        found = [
            (queue, where.consumer_offset)
            for queue, where in stats.offset_table.items()
            if queue.topic == header.topic
        ]
        if not found:
            ends = await self._offset_table(place, header.topic)
            found = [(queue, where.min_offset) for queue, where in ends]
        return sorted(found, key=lambda item: item[0].queue_id)

    async def _offset_at(self, place: BrokerPlace, queue: MessageQueue, time_ms: int) -> int:
        name, number, broker = queue.topic, queue.queue_id, queue.broker_name
        if time_ms == NEWEST:
            header = QueueHeader(name, number, broker)
            return self._offset(await self.ask(place.address, RequestCode.GET_MAX_OFFSET, header))
        search = SearchOffsetHeader(name, number, time_ms, broker)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return self._offset(await self.ask(place.address, code, search))

    @changes
    async def clone_offsets(
        self,
        failures: Failures,
        source_group: str,
        group: str,
        topic: str,
        *,
        offline: bool = False,
    ) -> AsyncIterator[OffsetsCloned]:
        """Copy the offsets of another group; `offline`: also to a group without members."""
        if fault := group_name_fault(group):
            raise ArgumentIllegal(fault)
        header = CloneGroupOffsetHeader(source_group, group, topic, offline)
        for place in await self.topic_brokers(topic):
            with failures.attempt():
                if source_group not in (await self._consumers_of(place, topic)):
                    failures.add(
                        f"{place.address} has no offsets of the group {source_group} in {topic}."
                    )
                    continue
                await self.ask(place.address, RequestCode.CLONE_GROUP_OFFSET, header)
                yield OffsetsCloned(place.address, source_group, group, topic)
