"""The clients of a broker: producer groups, consumer groups and queue locks.

Owns: the members of both kinds of groups, the queue locks, the recent changes of groups.
Receives: Request, PeerClosed (connections); AskProducer (ReplyMessage); AskFigures (MetricsPort).
Sends: CreateSystemTopic, WhenRegistered (TopicTable); CreateGroup (GroupTable); RegisterFilters,
UnregisterFilters, CompileFirst (FilterTable); CallClient (ClientCalls); NoProducer (ReplyMessage);
EncodeAnswer, ReadBody (TableEncoder); MemberLeft (Receipts). Members of a changed group get one-way
notices to rebalance.
Publishes: the view of each consumer group for PullMessage, and the members of producer groups.

RegisterFilters takes the heartbeat with it: FilterTable answers it.

Source: ClientManageProcessor.java, ConsumerManageProcessor.java, DefaultConsumerIdsChangeListener.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.access.refusals import Refusals
from actors.config import BrokerConfig
from actors.consumers.client_lists import (
    ProducersSeen,
    consumer_connection,
    group_changes,
    producer_connection,
)
from actors.consumers.consumer_groups import Consumers, Left, Producers, renewed
from actors.consumers.group_changes import (
    GroupEvent,
    GroupHistory,
    GroupNotices,
    change_of,
    log_mismatches,
)
from actors.consumers.heartbeat_rules import SUBSCRIPTIONS_MAX, check_heartbeat
from actors.consumers.queue_locks import QueueLocks, holder_of, wanted_locks
from actors.engine.actor import AskFigures, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.messages import Message
from actors.engine.server_log import get_logger
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import (
    AskProducer,
    CallClient,
    Encodable,
    NoProducer,
    PeerClosed,
    Request,
)
from actors.network.request import Responder, check_waiting, serves, short_body
from actors.pulling.property_filters import TAG_EXPRESSIONS, CompileBudget, compiled, not_supported
from actors.receipts.messages import MemberLeft
from actors.tables.consumer_views import (
    ClientCounts,
    ConsumerView,
    Member,
    Producing,
    Subscription,
)
from actors.tables.groups import GroupConfigs, GroupFinder
from actors.tables.messages import (
    CompileFirst,
    CreateSystemTopic,
    EncodeAnswer,
    RegisterFilters,
    UnregisterFilters,
    WhenRegistered,
    encode_later,
    read_body,
)
from actors.tables.topics import UNIT_SUB_FLAG
from protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchResponse,
    MessageQueue,
)
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import ConsumerGroupHeader, ProducerGroupHeader
from protocol.headers.client import (
    GetConsumerListHeader,
    UnregisterClientHeader,
)
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.tables.consumer_filters import SQL92, ConsumerFilters

__all__ = ["Clients", "ConsumerView", "Subscription"]

log = get_logger(__name__)

_MANY = "many clients come and go"
SCAN_MS = 10_000
EXPIRED_PER_ROUND = 250
"""Members without a heartbeat, or with a closed connection, removed in a round: 10 ms.

A connection may be in 1,000 groups.
"""
REGISTERED_PER_ROUND = 2500
"""Groups and subscriptions of a long heartbeat registered in a round, and its next group: 10 ms."""
NEW_GROUPS_AT_ONCE = 100
"""Groups of a heartbeat with new ones that are registered in a round, however short it is."""
NEW_GROUP = 50
"""Weight of a new group, which has a retry topic to make, settings and lines in the log."""


@dataclass(frozen=True, slots=True)
class _RetryTopicsKnown(Message):
    """The name servers know the retry topics of these changed groups."""

    changed: Sequence[str]
    request: Request | None
    """The heartbeat, unless FilterTable answers it."""

    def on_undelivered(self, remark: str) -> None:
        if self.request is not None:
            self.request.refuse(remark)


@dataclass(slots=True)
class _Heartbeat:
    """A checked heartbeat, some of whose groups are registered."""

    request: Request
    data: HeartbeatData
    member: Member
    waits: bool
    """Whether retry topics are missing, whose route its client looks up next."""
    done: int = 0
    """Number of registered groups."""
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _RegisterMore:
    """Message to itself: register more groups of a long heartbeat."""


@dataclass(frozen=True, slots=True)
class _LeaveMore:
    """Message to itself: remove more members whose connections are closed."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """Timer tick: remove clients without a heartbeat."""


@dataclass(frozen=True, slots=True)
class _ExpireMore:
    """Message to itself: remove more of them."""


@dataclass(frozen=True, slots=True)
class _NextRound:
    """The next round of the loop: continue with notices and comparisons."""


class Clients(Responder):
    """Registry of clients and their requests. Runs on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: SnapshotRef[GroupConfigs],
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        producers: SnapshotRef[Mapping[str, Sequence[Producing]]],
        filters: SnapshotRef[ConsumerFilters],
        topic_table: ActorAddress,
        group_table: ActorAddress,
        filter_table: ActorAddress,
        client_calls: ActorAddress,
        encoder: ActorAddress,
        receipts: ActorAddress,
        refusals: Refusals,
    ) -> None:
        """Read `topics`, `groups` and `filters`; publish `consumers` and `producers`."""
        super().__init__()
        self._config = config
        self._topic_configs, self._topic_table = topics, topic_table
        self._groups = GroupFinder(groups, group_table, config)
        self._filters, self._filter_table = filters, filter_table
        self._published, self._published_producers = consumers, producers
        self._client_calls, self._encoder, self._receipts = client_calls, encoder, receipts
        self._consumers = Consumers()
        self._notices = GroupNotices(self._consumers.groups)
        self._has_asked_for_round = False
        self.producers = Producers()
        self._locks = QueueLocks()
        self.changes = GroupHistory()
        self._refusals = refusals

    def on_start(self) -> None:
        self._stale: set[str] = set()
        self._silent: deque[tuple[str, int]] = deque()
        self._silent_producers: deque[tuple[str, int]] = deque()
        """Group and connection of members to remove."""
        self._leaving: deque[tuple[str, int]] = deque()
        self._long: deque[_Heartbeat] = deque()
        self._budget = CompileBudget(self.system.clock.monotonic_ms)
        if self._config.property_filter_enable:
            compiled(
                SQL92, "a IS NULL"
            )  # the first compilation takes 60 ms: do it before clients connect
        self._published.value = {}
        self._publish()
        self.every(SCAN_MS, _Scan())

    # --- members

    @serves(RequestCode.HEART_BEAT)
    def heartbeat(self, request: Request) -> RemotingCommand | None:
        """Register a client; with filter expressions, FilterTable answers once pulls know them.

        A long heartbeat is registered in pieces, behind those before it.
        """
        command = request.command
        data = read_body(request, HeartbeatData, self._encoder, self.address)
        if data is None or not request.peer.is_open:
            return None
        if request.grant is not None:
            request.grant.require_consumers(command.code, data.subscribed())
        check_waiting(len(self._long), command)
        topics = self._topic_configs.value
        check_heartbeat(data, request.peer, self._budget, self._groups, topics)
        member = Member(
            request.peer,
            data.client_id,
            command.language,
            command.version,
            self.system.clock.monotonic_ms(),
            grant=request.grant,
        )
        consumers = data.consumer_data_set
        peer_id = member.peer.peer_id
        self._consumers.check(peer_id, consumers)
        self.producers.check(member, [each.group_name for each in data.producer_data_set])
        waits = any(RETRY_TOPIC_PREFIX + each.group_name not in topics for each in consumers)
        heartbeat = _Heartbeat(request, data, member, waits)
        self.begin_change()
        if request.read is not None or (waits and len(consumers) > NEW_GROUPS_AT_ONCE):
            self._long.append(heartbeat)
            if len(self._long) == 1:
                self._register_long()
            return None
        self._register_some(heartbeat, NEW_GROUP * len(consumers) + SUBSCRIPTIONS_MAX)
        return self._registered(heartbeat)

    @handles(_RegisterMore)
    def on_register_more(self, _: _RegisterMore) -> None:
        self._register_long()

    def _register_long(self) -> None:
        """Register some of the first long heartbeat, and answer it behind its last group."""
        heartbeat = self._long[0]
        if heartbeat.request.peer.is_open:
            self._register_some(heartbeat, REGISTERED_PER_ROUND)
            if heartbeat.done < len(heartbeat.data.consumer_data_set):
                self.system.loop.tell_in_next_round(self.address, _RegisterMore())
                return
            answer = self._registered(heartbeat)
            if answer is not None:
                heartbeat.request.respond(answer)
        self._long.popleft()
        if self._long:
            self.system.loop.tell_in_next_round(self.address, _RegisterMore())

    def on_failure(self, *reason: Any) -> None:
        while self._long:
            self._long.popleft().request.refuse(self.remark())
        super().on_failure(*reason)

    def _register_some(self, heartbeat: _Heartbeat, most: int) -> None:
        consumers = heartbeat.data.consumer_data_set
        while heartbeat.done < len(consumers) and most > 0:
            each = consumers[heartbeat.done]
            heartbeat.done += 1
            is_new = each.group_name not in self._consumers.groups
            most -= (NEW_GROUP if is_new else 1) + len(each.subscription_data_set)
            if self._register_consumer(each, heartbeat.member):
                heartbeat.changed.append(each.group_name)

    def _registered(self, heartbeat: _Heartbeat) -> RemotingCommand | None:
        """Register the producers of a heartbeat; return its answer unless others answer it."""
        request, data, member = heartbeat.request, heartbeat.data, heartbeat.member
        consumers, waits, changed = data.consumer_data_set, heartbeat.waits, heartbeat.changed
        if not waits:
            self._notify(*changed)
        for name in [each.group_name for each in data.producer_data_set]:
            has_room = not self._has_no_room(name, self.producers.groups)
            if has_room and self.producers.register(name, member):
                self._tell("producer joined", name, member)
        filtering = [each for each in consumers if self._filters_properties(each)]
        if filtering:
            self._filter_table.tell(RegisterFilters(filtering, request))
        if waits:  # the client looks up the route next, and then only every 30 s
            known = _RetryTopicsKnown(changed, None if filtering else request)
            self._topic_table.tell(WhenRegistered(known, self.address))
        return None if filtering or waits else request.command.answer()

    def _has_no_room(self, group: str, known: Collection[str]) -> bool:
        """Return whether a new group that no administrator created would exceed maxAutoGroups."""
        most = self._config.auto_groups_max
        has_none = group not in known and 0 < most <= len(known)
        if has_none:
            self.system.rarely.warn("group not registered: maxAutoGroups", group=group, most=most)
        return has_none

    @handles(_RetryTopicsKnown)
    def on_retry_topics_known(self, message: _RetryTopicsKnown) -> None:
        """Notify the members of new groups: their retry topics have a route now."""
        self._notify(*message.changed)
        if message.request is not None:
            message.request.answer()

    def _filters_properties(self, data: ConsumerData) -> bool:
        """Return whether a group has or had an expression over properties."""
        return self._filters.value.has_group(data.group_name) or any(
            each.expression_type not in TAG_EXPRESSIONS for each in data.subscription_data_set
        )

    def _register_consumer(self, data: ConsumerData, member: Member) -> bool:
        """Register a consumer; return whether its group must be notified."""
        name = data.group_name
        config = self._groups.find(name)
        if config is not None:
            self._make_retry_topic(name, config, data.unit_mode)
        elif self._has_no_room(name, self._consumers.groups):
            return False
        done = self._consumers.register(data, member)
        done.warn_of_late(self.system.rarely, name, member)
        if done.published:
            self._stale.add(name)
        if done.mismatched:
            self._log_mismatches(name)
        if done.rebalance:
            self._note(name, member, GroupEvent.JOINED if done.joined else GroupEvent.SUBSCRIBED)
            members = len(self._consumers.groups[name].members)
            self._tell("consumer group changed", name, member, members=members)
        return done.rebalance and (config is None or config.notify_consumer_ids_changed_enable)

    def _make_retry_topic(
        self, group: str, config: SubscriptionGroupConfig, unit_mode: bool
    ) -> None:
        topic = RETRY_TOPIC_PREFIX + group
        if topic not in self._topic_configs.value:
            flag = UNIT_SUB_FLAG if unit_mode else 0
            made = CreateSystemTopic(topic, config.retry_queue_nums, topic_sys_flag=flag)
            self._topic_table.tell(made)

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, request: Request) -> RemotingCommand:
        header = UnregisterClientHeader.decode(request.command.fields)
        peer_id = request.peer.peer_id
        self.begin_change()
        if header.producer_group is not None:
            self.producers.unregister(header.producer_group, peer_id)
        if header.consumer_group is not None:
            name = header.consumer_group
            self._receipts.tell(MemberLeft(peer_id, name))
            left = self._consumers.unregister(name, peer_id)
            if left is not None:
                self._left(left, "signed off")
            config = self._groups.find(name)
            if config is None or config.notify_consumer_ids_changed_enable:
                self._notify(name)
        return request.command.answer(fields={})

    @handles(AskProducer)
    def on_ask_producer(self, message: AskProducer) -> None:
        """Send the command to the producer's connection, or NoProducer back."""
        peer = self.producers.find(message.client_id)
        if peer is None:
            message.then.tell(NoProducer(message.context))
        else:
            call = CallClient(peer, message.command, message.then, message.context)
            self._client_calls.tell(call)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """Remove what the connection had registered and notify the remaining members."""
        peer_id, was_idle = message.peer.peer_id, not self._leaving
        self.producers.peer_closed(peer_id)
        self._leaving.extend((name, peer_id) for name in self._consumers.groups_of(peer_id))
        if was_idle:
            self._leave_some()

    @handles(_LeaveMore)
    def on_leave_more(self, _: _LeaveMore) -> None:
        self._leave_some()

    def _leave_some(self) -> None:
        for _ in range(min(EXPIRED_PER_ROUND, len(self._leaving))):
            left = self._consumers.unregister(*self._leaving.popleft())
            if left is not None:
                self._left(left, "connection closed")
                self._notify(left.group)
        if self._leaving:
            self.system.loop.tell_in_next_round(self.address, _LeaveMore())

    @handles(_Scan)
    def on_scan(self, _: _Scan) -> None:
        """Remove clients without a heartbeat, even if their connection is open."""
        now_ms = self.system.clock.monotonic_ms()
        self._locks.expire(now_ms)
        if not self._silent and not self._silent_producers:
            self._silent.extend(self._consumers.silent(now_ms))
            self._silent_producers.extend(self.producers.silent(now_ms))
            self._expire_some()

    @handles(_ExpireMore)
    def on_expire_more(self, _: _ExpireMore) -> None:
        self._expire_some()

    def _expire_some(self) -> None:
        now_ms = self.system.clock.monotonic_ms()
        for _ in range(min(EXPIRED_PER_ROUND, len(self._silent))):
            left = self._consumers.expire(*self._silent.popleft(), now_ms)
            if left is not None:
                self._left(left, "no heartbeat")
                self._notify(left.group)
        for _ in range(min(EXPIRED_PER_ROUND, len(self._silent_producers))):
            self.producers.expire(*self._silent_producers.popleft(), now_ms)
        if self._silent or self._silent_producers:
            self.system.loop.tell_in_next_round(self.address, _ExpireMore())

    def _left(self, left: Left, why: str) -> None:
        name = left.group
        self._tell("consumer left", name, left.member, why=why)
        self._stale.add(name)
        if left.is_gone:
            self._filter_table.tell(UnregisterFilters(name))
        self._note(name, left.member, GroupEvent.LEFT, why)
        if left.mismatched:
            self._log_mismatches(name)

    def _note(self, name: str, member: Member, kind: GroupEvent, why: str = "") -> None:
        group = self._consumers.groups.get(name)
        count = 0 if group is None else len(group.members)
        self.changes.note(name, change_of(member, kind, why, count, self.system.clock.now_ms()))

    def _log_mismatches(self, name: str) -> None:
        group = self._consumers.groups.get(name)
        if self.system.rarely.may_tell(_MANY, group=name):
            log_mismatches(name, () if group is None else group.mismatches)

    def _tell(self, event: str, name: str, member: Member, **about: object) -> None:
        if self.system.rarely.may_tell(_MANY, group=name):
            log.info(event, group=name, client=member.client_id, peer=member.peer.remote, **about)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Publish changes once per round, however many clients came or went."""
        self._work()
        self._publish()

    def _work(self) -> None:
        """Send notices and compare subscriptions, as many as a round allows."""
        self._notices.send()
        for name in self._consumers.compare_more():
            self._stale.add(name)
            self._log_mismatches(name)
        is_used = self._notices.is_used or self._consumers.is_used
        if is_used and not self._has_asked_for_round:
            self._has_asked_for_round = True
            self.system.loop.tell_in_next_round(self.address, _NextRound())

    @handles(_NextRound)
    def on_next_round(self, _: _NextRound) -> None:
        """Begin a new round; `on_batch_end` continues the work."""
        self._has_asked_for_round = False
        self._notices.begin_round()
        self._consumers.begin_round()

    def _publish(self) -> None:
        if self._stale:
            groups, stale = self._consumers.groups, self._stale
            views = {name: groups[name].view() for name in stale if name in groups}
            self._published.value = renewed(self._published.value, stale, views)
            stale.clear()
        self._published_producers.value = self.producers.view

    def _notify(self, *names: str) -> None:
        if self._config.notify_consumer_ids_changed_enable:
            self._notices.send(names)

    # --- requests of administrators

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, request: Request) -> RemotingCommand | None:
        """Return the members of a consumer group, their versions and its subscriptions."""
        name = ConsumerGroupHeader.decode(request.command.fields).consumer_group
        group = self._consumers.groups.get(name)
        if group is None:
            raise RemoteError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        return self._answer(request, consumer_connection(group), group.places)

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, request: Request) -> RemotingCommand | None:
        name = ProducerGroupHeader.decode(request.command.fields).producer_group
        members = self.producers.groups.get(name)
        if members is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return self._answer(request, producer_connection(members.values()), len(members))

    def _answer(self, request: Request, body: Encodable, entries: int) -> RemotingCommand | None:
        """Return the answer with `body` of so many entries; None: TableEncoder sends it."""
        if entries <= ENCODED_HERE_MAX:
            return request.command.answer(body=body.encode())
        encode_later(self._encoder, EncodeAnswer(request, body), entries)
        return None

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, request: Request) -> RemotingCommand | None:
        """Return every producer of every group with the time of its last heartbeat."""
        clock = self.system.clock
        shift_ms = clock.now_ms() - clock.monotonic_ms()
        groups = {name: [*members.values()] for name, members in self.producers.groups.items()}
        return self._answer(request, ProducersSeen(groups, shift_ms), self.producers.places)

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(ClientCounts(self.producers.kinds(), self.changes.counts.copy()))

    @serves(RequestCode.GET_GROUP_CHANGES)
    def group_changes(self, request: Request) -> RemotingCommand:
        """Return the recent changes of a consumer group and its subscription mismatches."""
        name = ConsumerGroupHeader.decode(request.command.fields).consumer_group
        body = group_changes(name, self.changes.of(name), self._consumers.groups.get(name))
        body.refusals = [each.shown() for each in self._refusals.of_group(name)]
        return request.command.answer(body=body.encode())

    # --- requests of clients

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, request: Request) -> RemotingCommand:
        """Return the client ids of a group, among which consumers divide the queues."""
        name = GetConsumerListHeader.decode(request.command.fields).consumer_group
        client_ids = self._consumers.client_ids(name)
        if not client_ids:
            remark = f"no consumer for this group, {name}"
            return request.command.answer(ResponseCode.SYSTEM_ERROR, {}, remark=remark)
        return request.command.answer(fields={}, body=ConsumerList(client_ids).encode())

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    def check_config(self, request: Request) -> RemotingCommand | None:
        """Return whether a subscription works here: its expression, if any, must compile."""
        asked = CheckClientRequest.decode(short_body(request.command))
        self._check_group(request, asked.group)
        data = asked.subscription_data
        if data is not None and data.expression_type not in TAG_EXPRESSIONS:
            if not self._config.property_filter_enable:
                raise not_supported(data.expression_type)
            if self._budget.take(request.peer, data.expression_type, data.sub_string):
                self._filter_table.tell(CompileFirst(data.sub_string, request, self.address))
                return None
            compiled(data.expression_type, data.sub_string)
        return request.command.answer()

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock(self, request: Request) -> RemotingCommand | None:
        """Lock queues for an orderly consumer; the answer omits queues locked by others."""
        wanted = self._wanted_locks(request)
        self.begin_change()
        granted = self._locks.lock(*wanted, self.system.clock.monotonic_ms())
        if self._locks.is_full:
            self.system.rarely.warn("queue lock limit reached", peer=request.peer.remote)
        return self._answer(request, LockBatchResponse(granted), len(granted))

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, request: Request) -> RemotingCommand:
        wanted = self._wanted_locks(request)
        self.begin_change()
        self._locks.unlock(*wanted)
        return request.command.answer()

    def _wanted_locks(self, request: Request) -> tuple[str, str, Sequence[MessageQueue]]:
        """Return group, lock holder and queues of a request."""
        wanted = wanted_locks(short_body(request.command))
        self._check_group(request, wanted.consumer_group)
        return wanted.consumer_group or "", holder_of(wanted, request.grant), wanted.mq_set

    def _check_group(self, request: Request, group: str | None) -> None:
        """Raise AccessRefused if the account must not consume with this group."""
        if request.grant is not None:
            request.grant.require_group(request.command.code, group or "")
