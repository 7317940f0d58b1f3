"""Consumer groups: settings and consumer lag."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from protocol.bodies import MessageQueue, SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.bodies_admin import ConsumeStatsBody, ConsumeStatsList
from protocol.bodies_assignment import RequestMode
from protocol.codes import RequestCode
from protocol.headers.admin import (
    DeleteSubscriptionGroupHeader,
    GetBrokerConsumeStatsHeader,
    GetConsumeStatsHeader,
    TopicHeader,
)
from protocol.table_rules import asked_group_fault, request_mode_fault
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.admin.answers import (
    HIDDEN,
    OPTIONAL,
    Change,
    Failures,
    Result,
    Time,
    changes,
    reads,
    snake_case,
)
from troupemq.client.admin.base import BrokerPlace, Where
from troupemq.client.admin.members import MemberAdmin
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientError, RouteNotFound

STATS_TIMEOUT_MS = 50_000
_KINDS = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}


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
class QueueOwner(Result):
    """The member that has a queue; None: not known."""

    client: str | None


@dataclass(frozen=True, slots=True)
class QueueProgress(Result):
    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    owner: QueueOwner | None = field(metadata=OPTIONAL)
    lag: int
    last_consumed_ms: Time
    group_tps: float = field(default=0.0, metadata=HIDDEN)
    """Throughput of the group at this broker, msg/s."""

    @property
    def client(self) -> str | None:
        return None if self.owner is None else self.owner.client


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


@dataclass(frozen=True, slots=True)
class GroupProgress(Result):
    """One group, at all brokers: its members and its consumer lag."""

    group: str
    members: int
    version: int | None
    type: str | None
    model: str | None
    tps: float
    lag: int


class GroupAdmin(MemberAdmin):
    @changes
    def update_group(
        self, failures: Failures, settings: GroupSettings, **where: Unpack[Where]
    ) -> Iterator[GroupChanged]:
        """Create or change a group at one broker, or at the masters of a cluster or of all."""
        config = SubscriptionGroupConfig(**settings.row())  # type: ignore[arg-type]
        for address in self.targets(**where):
            with failures.attempt():
                self._set_group(address, config)
                yield GroupChanged(address, settings)

    def _set_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change a group at one broker. Raises ArgumentIllegal for an invalid one."""
        if fault := asked_group_fault(config):
            raise ArgumentIllegal(f"{config.group_name}: {fault}")
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        self.ask(address, code, body=config.encode())

    @changes
    def delete_group(
        self, failures: Failures, group: str, *, with_offsets: bool = False, **where: Unpack[Where]
    ) -> Iterator[GroupDeleted]:
        """Delete a group; for a whole cluster, also its retry topic and dead-letter queue."""
        header = DeleteSubscriptionGroupHeader(group, with_offsets)
        addresses = self.targets(**where)
        for address in addresses:
            with failures.attempt():
                self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
                yield GroupDeleted(group, address)
        cluster = where.get("cluster")
        if where.get("broker") is not None or cluster is None:
            return
        for topic in (RETRY_TOPIC_PREFIX + group, DLQ_TOPIC_PREFIX + group):
            for address in addresses:
                with failures.attempt():
                    self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
            self._forget_topic(failures, topic, cluster)

    @changes
    def set_consume_mode(
        self,
        failures: Failures,
        topic: str,
        group: str,
        mode: str,
        *,
        pop_share_queue_num: int = 0,
        **where: Unpack[Where],
    ) -> Iterator[ConsumeModeSet]:
        """Set how clients of 5.x that leave their assignment to brokers request a topic's messages.

        `mode` is PULL or POP. In POP mode a member shares the queues of `pop_share_queue_num`
        others; with 0 each member may get messages of every queue.
        """
        body = RequestMode(group, mode, pop_share_queue_num, topic)
        if fault := request_mode_fault(body):
            raise ArgumentIllegal(f"{group}: {fault}")
        for address in self.targets(**where):
            with failures.attempt():
                self.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())
                yield ConsumeModeSet(topic, group, mode, pop_share_queue_num, address)

    @reads
    def group_settings(self, failures: Failures, group: str) -> Iterator[GroupAtBroker]:
        found = False
        for place in self.masters():
            with failures.attempt():
                config = self._group_table(place.address).get(group)
                if config is not None:
                    found = True
                    settings = GroupSettings(**snake_case(config.to_json()))
                    yield GroupAtBroker(place.cluster, place.name, settings)
        if not found:
            failures.add(f"No broker has settings of the group {group}.")

    def _group_table(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return a broker's settings of all consumer groups."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return self.read(SubscriptionGroupTable, address, code).subscription_group_table

    # --- progress

    @reads
    def group_list(self, failures: Failures) -> Iterator[GroupProgress]:
        """Return the members and the consumer lag of each group."""
        names = [
            topic.removeprefix(RETRY_TOPIC_PREFIX)
            for topic in self.topics()
            if topic.startswith(RETRY_TOPIC_PREFIX)
        ]
        for name in sorted(names):
            try:
                stats = self._stats_of(failures, name)
            except RouteNotFound:  # deleted in the meantime
                continue
            yield self._progress_of(name, stats)

    def _progress_of(self, group: str, stats: Sequence[ConsumeStatsBody]) -> GroupProgress:
        count, version, kind, model = 0, None, None, None
        try:
            found = self.members_of(group)
        except ClientError:
            pass
        else:
            count = len(found.connection_set)
            version = min((each.version for each in found.connection_set), default=None)
            kind, model = found.consume_type, found.message_model
        return GroupProgress(
            group,
            count,
            version,
            _KINDS.get(kind or "", kind),
            model,
            sum(each.consume_tps for each in stats),
            sum(where.lag for each in stats for where in each.offset_table.values()),
        )

    @reads
    def late_groups(self, failures: Failures, level: int = 100_000) -> Iterator[GroupProgress]:
        """Return groups with a lag of `level` or more, or with any lag and no members."""
        groups = self.group_list().tell(failures.add)
        yield from (each for each in groups if each.lag >= level or (each.lag and not each.members))

    @reads
    def group_progress(
        self, failures: Failures, group: str, *, with_clients: bool = False
    ) -> Iterator[QueueProgress]:
        """Return a group's offset and lag in each queue; `with_clients`: also the owners."""
        found = self._stats_of(failures, group)
        owners = self._owners(group) if with_clients else {}
        offsets = [
            (*item, stats.consume_tps) for stats in found for item in stats.offset_table.items()
        ]
        for queue, where, tps in sorted(offsets, key=_place):
            yield QueueProgress(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                where.broker_offset,
                where.consumer_offset,
                QueueOwner(owners.get(queue)) if with_clients else None,
                where.lag,
                Time(where.last_timestamp),
                tps,
            )

    def _stats_of(self, failures: Failures, group: str) -> list[ConsumeStatsBody]:
        """Return each broker's offsets of a group. Raises RouteNotFound if there are no offsets."""
        try:
            return list(self._asked(failures, group, self.group_brokers(group)))
        except RouteNotFound:  # offsets may be set or cloned before a member consumes
            asked = self._asked(failures, group, self.masters())
            found = [stats for stats in asked if stats.offset_table]
            if not found:
                raise
            return found

    def _asked(
        self, failures: Failures, group: str, places: Sequence[BrokerPlace]
    ) -> Iterator[ConsumeStatsBody]:
        code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsHeader(group)
        for place in places:
            with failures.attempt():
                yield self.read(ConsumeStatsBody, place.address, code, header)

    def _owners(self, group: str) -> dict[MessageQueue, str]:
        """Return the owner of each queue; members that do not answer (pull consumers) lack."""
        found: dict[MessageQueue, str] = {}
        try:
            members = self.members_of(group).connection_set
        except BrokerError:  # no member is online
            return found
        for member in members:
            try:
                info = self.running_info(group, member.client_id)
            except ClientError:
                continue
            for queue in info.queues:
                found[queue] = member.client_id.split("@")[0]
        return found

    @reads
    def broker_lags(
        self,
        failures: Failures,
        broker: str,
        *,
        timeout_ms: float = STATS_TIMEOUT_MS,
        level: int = 0,
        only_ordered: bool = False,
    ) -> Iterator[LagOfGroup]:
        """Return the lag of all groups of a broker, in queues with a lag of `level` or more."""
        header = GetBrokerConsumeStatsHeader(only_ordered)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        found = self.read(ConsumeStatsList, broker, code, header, timeout_ms)
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


def _place(item: tuple[MessageQueue, Any, *tuple[Any, ...]]) -> tuple[str, str, int]:
    return item[0].topic, item[0].broker_name, item[0].queue_id
