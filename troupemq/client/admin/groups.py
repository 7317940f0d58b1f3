"""Consumer groups: settings, and requests for their progress."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ConsumerConnection, ConsumeStatsList
from protocol.bodies_assignment import RequestMode
from protocol.bodies_own import ProgressList, ProgressStats
from protocol.bodies_tables import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.codes import RequestCode
from protocol.headers.admin import (
    DeleteSubscriptionGroupHeader,
    GetBrokerConsumeStatsHeader,
    GetConsumeStatsHeader,
    TopicHeader,
)
from protocol.table_rules import asked_group_fault, request_mode_fault
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.admin.answers import HIDDEN, Change, Failures, Result, Time, snake_case
from troupemq.client.admin.base import BrokerPlace, Where
from troupemq.client.admin.members import MemberAdmin
from troupemq.client.admin.operations import changes, operation, reads
from troupemq.client.admin.progress import (
    AskedMember,
    GroupProgress,
    MemberProgress,
    ProgressReport,
    QueueProgress,
    group_of,
    members_of_group,
    members_told,
    queues_of,
    stats_by_group,
    stuck_after_ms,
)
from troupemq.client.admin.reading import TOOLS_GROUP, ReaderFlows
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.message import MessageQueue as ClientQueue

STATS_TIMEOUT_MS = 50_000
MEMBERS_ASKED_MAX = 200
"""Limit of members that are asked for their progress."""
READ_QUEUES_MAX = 16
"""Limit of queues whose first waiting message is read."""
_KINDS = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "simple"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(Result):
    """A group's settings, under RocketMQ's names."""

    broker_id: int = 0
    """Id of the broker of each name to consume from; 0 is the master."""
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


@dataclass(frozen=True, slots=True)
class GroupAtBroker(Result):
    cluster: str
    broker: str
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class GroupChanged(Change):
    SENTENCE = "The group {0.settings.group_name} is set at {0.broker_address}."
    broker_address: str
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class GroupDeleted(Change):
    SENTENCE = "The group {0.group} is deleted at {0.deleted_at}."
    group: str
    deleted_at: str


@dataclass(frozen=True, slots=True)
class ConsumeModeSet(Change):
    SENTENCE = "Consume mode of {0.group} for {0.topic} is {0.mode} at {0.broker_address}."
    topic: str
    group: str
    mode: str
    pop_share_queue_num: int
    broker_address: str


@dataclass(frozen=True, slots=True)
class LagOfGroup(Result):
    topic: str
    group: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_consumed_ms: Time
    group_tps: float = field(default=0.0, metadata=HIDDEN)
    """Throughput of the group in this topic at this broker, msg/s."""


class GroupAdmin(MemberAdmin):
    @changes
    async def update_group(
        self, failures: Failures, settings: GroupSettings, **where: Unpack[Where]
    ) -> AsyncIterator[GroupChanged]:
        """Create or change a group at one broker, or at the masters of a cluster or of all."""
        config = SubscriptionGroupConfig(**settings.row())  # type: ignore[arg-type]
        for address in await self.targets(**where):
            with failures.attempt():
                await self._set_group(address, config)
                yield GroupChanged(address, settings)

    async def _set_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change a group at one broker. Raises ArgumentIllegal for an invalid one."""
        if fault := asked_group_fault(config):
            raise ArgumentIllegal(f"{config.group_name}: {fault}")
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self.ask(address, code, body=config.encode())

    @changes
    async def delete_group(
        self, failures: Failures, group: str, *, with_offsets: bool = False, **where: Unpack[Where]
    ) -> AsyncIterator[GroupDeleted]:
        """Delete a group; for a whole cluster, also its retry topic and dead-letter queue."""
        header = DeleteSubscriptionGroupHeader(group, with_offsets)
        addresses = await self.targets(**where)
        for address in addresses:
            with failures.attempt():
                await self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
                yield GroupDeleted(group, address)
        cluster = where.get("cluster")
        if where.get("broker") is not None or cluster is None:
            return
        for topic in (RETRY_TOPIC_PREFIX + group, DLQ_TOPIC_PREFIX + group):
            for address in addresses:
                with failures.attempt():
                    await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
            await self._forget_topic(failures, topic, cluster)

    @changes
    async def set_consume_mode(
        self,
        failures: Failures,
        topic: str,
        group: str,
        mode: str,
        *,
        pop_share_queue_num: int = 0,
        **where: Unpack[Where],
    ) -> AsyncIterator[ConsumeModeSet]:
        """Set how clients of 5.x that leave their assignment to brokers request a topic's messages.

        `mode` is PULL or POP. In POP mode a member shares the queues of `pop_share_queue_num`
        others; with 0 each member may get messages of every queue.
        """
        body = RequestMode(group, mode, pop_share_queue_num, topic)
        if fault := request_mode_fault(body):
            raise ArgumentIllegal(f"{group}: {fault}")
        for address in await self.targets(**where):
            with failures.attempt():
                await self.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())
                yield ConsumeModeSet(topic, group, mode, pop_share_queue_num, address)

    @reads
    async def group_settings(self, failures: Failures, group: str) -> AsyncIterator[GroupAtBroker]:
        found = False
        for place in await self.masters():
            with failures.attempt():
                config = (await self._group_table(place.address)).get(group)
                if config is not None:
                    found = True
                    settings = GroupSettings(**snake_case(config.to_json()))
                    yield GroupAtBroker(place.cluster, place.name, settings)
        if not found:
            failures.add(f"No broker has settings of the group {group}.")

    async def _group_table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return a broker's settings of all consumer groups."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return (await self._read(SubscriptionGroupTable, address, code)).subscription_group_table

    # --- progress

    @reads
    async def group_list(
        self, failures: Failures, *, stuck_after_s: float | None = None
    ) -> AsyncIterator[GroupProgress]:
        """Return the members and the progress of each group, with some requests per group."""
        async for each in self._groups(failures, stuck_after_s):
            yield each

    async def _groups(
        self, failures: Failures, stuck_after_s: float | None
    ) -> AsyncIterator[GroupProgress]:
        names = [
            topic.removeprefix(RETRY_TOPIC_PREFIX)
            for topic in await self.topics()
            if topic.startswith(RETRY_TOPIC_PREFIX)
        ]
        for name in sorted(names):
            try:
                stats = await self._stats_of(failures, name)
            except RouteNotFound:  # deleted in the meantime
                continue
            _, there = await self._members_at(name)
            queues = await self._caller.blocking(queues_of, stats, stuck_after_s)
            yield _progress_of(name, stats, queues, there)

    @reads
    async def all_progress(
        self,
        failures: Failures,
        *,
        stuck_after_s: float | None = None,
        timeout_ms: float = STATS_TIMEOUT_MS,
    ) -> AsyncIterator[GroupProgress]:
        """Return the progress of each group with offsets, with one request per broker.

        Members are not asked. Their number is None if no broker reports it.
        """
        found, trouble = await self.progress_at(
            await self.masters(), stuck_after_s=stuck_after_s, timeout_ms=timeout_ms
        )
        for sentence in trouble.values():
            failures.add(sentence)
        for each in found:
            yield each

    @operation
    async def progress_at(
        self,
        places: Sequence[BrokerPlace],
        *,
        stuck_after_s: float | None = None,
        timeout_ms: float = STATS_TIMEOUT_MS,
    ) -> tuple[list[GroupProgress], dict[str, str]]:
        """Return the progress of each group at these brokers, and reasons of missing answers.

        The reasons are by address.
        """
        tables: list[dict[str, list[ProgressStats]]] = []
        trouble: dict[str, str] = {}
        code = RequestCode.GET_BROKER_CONSUME_STATS
        header = GetBrokerConsumeStatsHeader(with_progress=True)
        for place in places:
            try:
                found = await self._read(ProgressList, place.address, code, header, timeout_ms)
            except ClientError as error:
                trouble[place.address] = str(error)
            else:
                tables += found.consume_stats_list

        def groups() -> list[GroupProgress]:
            return [
                group_of(
                    name,
                    queues_of(stats, stuck_after_s),
                    tps=sum(each.consume_tps for each in stats),
                    members=members_told(stats),
                    stats=stats,
                )
                for name, stats in sorted(stats_by_group(tables))
                if stats
            ]

        return await self._caller.blocking(groups), trouble

    @operation
    async def progress(
        self,
        group: str,
        *,
        client: str | None = None,
        stuck_after_s: float | None = None,
        with_stacks: bool = True,
    ) -> ProgressReport:
        """Return the progress of a group by queue and by member. Raises RouteNotFound.

        `client`: ask only this member.
        """
        failures = Failures()
        found = await self._report(
            failures, group, stuck_after_s, with_stacks=with_stacks, client=client
        )
        return replace(found, failures=tuple(failures))

    async def _report(
        self,
        failures: Failures,
        group: str,
        stuck_after_s: float | None,
        *,
        with_stacks: bool,
        client: str | None = None,
    ) -> ProgressReport:
        stats = await self._stats_of(failures, group)
        there, members = await self._asked_members(group, client, with_stacks=with_stacks)
        came_ms = await self._came_ms(stats)
        queues = await self._caller.blocking(queues_of, stats, stuck_after_s, members, came_ms)
        after_ms = max(stuck_after_ms(each, stuck_after_s) for each in stats or [ProgressStats()])
        return ProgressReport(
            _progress_of(group, stats, queues, there),
            tuple(queues),
            tuple(members_of_group(group, members, queues, after_ms / 1000)),
        )

    @reads
    async def late_groups(
        self, failures: Failures, level: int = 100_000
    ) -> AsyncIterator[GroupProgress]:
        """Return groups with a lag of `level` or more, or with any lag and no members."""
        async for each in self._groups(failures, None):
            if each.lag >= level or (each.lag and not each.members):
                yield each

    @reads
    async def group_progress(
        self,
        failures: Failures,
        group: str,
        *,
        with_clients: bool = False,
        stuck_after_s: float | None = None,
    ) -> AsyncIterator[QueueProgress]:
        """Return a group's progress in each queue; `with_clients`: also as its members report."""
        if with_clients:
            report = await self._report(failures, group, stuck_after_s, with_stacks=False)
            queues = report.queues
        else:
            stats = await self._stats_of(failures, group)
            queues = tuple(await self._caller.blocking(queues_of, stats, stuck_after_s))
        for each in queues:
            yield each

    @reads
    async def member_progress(
        self, failures: Failures, group: str, *, stuck_after_s: float | None = None
    ) -> AsyncIterator[MemberProgress]:
        """Return the progress of each member, with a sentence on what its threads do."""
        report = await self._report(failures, group, stuck_after_s, with_stacks=True)
        for each in report.members:
            yield each

    async def _stats_of(self, failures: Failures, group: str) -> list[ProgressStats]:
        """Return each broker's offsets of a group. Raises RouteNotFound if there are no offsets."""
        try:
            places = await self.group_brokers(group)
            return [each async for each in self._asked(failures, group, places)]
        except RouteNotFound:  # offsets may be set or cloned before a member consumes
            asked = self._asked(failures, group, await self.masters())
            found = [stats async for stats in asked if stats.offset_table]
            if not found:
                raise
            return found

    async def _asked(
        self, failures: Failures, group: str, places: Sequence[BrokerPlace]
    ) -> AsyncIterator[ProgressStats]:
        code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsHeader(group, None, True)
        for place in places:
            with failures.attempt():
                yield await self._read(ProgressStats, place.address, code, header)

    async def _asked_members(
        self, group: str, client: str | None = None, *, with_stacks: bool
    ) -> tuple[ConsumerConnection, list[AskedMember]]:
        """Return the members, and what each of them, or `client` alone, reports."""
        address, there = await self._members_at(group)
        some = [each for each in there.connection_set if client in (None, each.client_id)]
        some = some[:MEMBERS_ASKED_MAX]
        names = [each.client_id for each in some]
        asked = self._infos_of(group, address, names, with_stacks=with_stacks)
        infos = [each async for each in asked] if some else []
        return there, [
            AskedMember(member, None, str(info))
            if isinstance(info, ClientError)
            else AskedMember(member, info)
            for member, info in zip(some, infos, strict=True)
        ]

    async def _came_ms(self, stats: Sequence[ProgressStats]) -> dict[MessageQueue, int]:
        """Return when the first waiting message came, at brokers that do not report it.

        Reads the message itself, in the queues with the oldest consumption only.
        """
        unknown = [
            (where.last_timestamp, queue, where.consumer_offset)
            for each in stats
            if not each.observed_since
            for queue, where in each.offset_table.items()
            if where.lag
        ]
        if not unknown:
            return {}
        addresses = {place.name: place.address for place in await self.masters()}
        found = {}
        for _, queue, offset in sorted(unknown, key=lambda each: each[0])[:READ_QUEUES_MAX]:
            address = addresses.get(queue.broker_name)
            if address is not None:
                place = ClientQueue(queue.topic, queue.broker_name, queue.queue_id)
                with suppress(ClientError):
                    reader = ReaderFlows(self, address, place, "*", TOOLS_GROUP)
                    view = await reader.at(offset)
                    if view is not None:
                        found[queue] = view.store_timestamp_ms
        return found

    @reads
    async def broker_lags(
        self,
        failures: Failures,
        broker: str,
        *,
        timeout_ms: float = STATS_TIMEOUT_MS,
        level: int = 0,
        only_ordered: bool = False,
    ) -> AsyncIterator[LagOfGroup]:
        """Return the lag of all groups of a broker, in queues with a lag of `level` or more."""
        header = GetBrokerConsumeStatsHeader(only_ordered)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        found = await self._read(ConsumeStatsList, broker, code, header, timeout_ms)
        for table in found.consume_stats_list:
            for group, several in table.items():
                for stats in several:
                    for queue, where in sorted(stats.offset_table.items(), key=_place):
                        if where.lag >= level:
                            yield LagOfGroup(
                                queue.topic,
                                group,
                                queue.broker_name,
                                queue.queue_id,
                                where.broker_offset,
                                where.consumer_offset,
                                where.lag,
                                Time(where.last_timestamp),
                                stats.consume_tps,
                            )


def _progress_of(
    group: str,
    stats: Sequence[ProgressStats],
    queues: Sequence[QueueProgress],
    members: ConsumerConnection,
) -> GroupProgress:
    return group_of(
        group,
        queues,
        tps=sum(each.consume_tps for each in stats),
        members=len(members.connection_set),
        version=min((each.version for each in members.connection_set), default=None),
        kind=_KINDS.get(members.consume_type or "", members.consume_type),
        model=members.message_model,
        stats=stats,
    )


def _place(item: tuple[MessageQueue, Any]) -> tuple[str, str, int]:
    return item[0].topic, item[0].broker_name, item[0].queue_id
