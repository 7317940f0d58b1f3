"""Checks of a pull before the store is read, and the correction of offsets outside of their queue.

The checks are those of 4.9.7, in its order and with its texts. PullMessage calls these plain
functions over snapshots of the tables.

Source: PullMessageProcessor.processRequest.

PullCorrection corrects and reports an offset:

    offset below the min offset               to the min offset, as in 4.9.7
    offset above the max offset, live group    to the group's consumer offset; without one to the
                                               start of a new group in a young queue, or to the
                                               end at the broker's start (old_places.py)
    offset above the max offset, others        to the max offset, as in 4.9.7
    offset from before the queue was deleted   to the min offset of the new one (old_places.py)
    offset of a log that has lost its end      to the group's consumer offset, a broadcasting
                                               member to the end at the start (the same)

4.9.7 moves a pull above the max offset to the current max offset, which skips the messages stored
meanwhile.

Source: PullMessageProcessor.generateOffsetMovedEvent.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from actors.config import BrokerConfig
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef, System
from actors.network.messages import Peer, Request
from actors.pulling.property_filters import (
    TAG_EXPRESSIONS,
    CompileBudget,
    check_registered,
    compiled,
    is_to_be_compiled,
    not_supported,
    registered_filter,
    retry_matches,
)
from actors.sending.appender import InternalRecord
from actors.sending.messages import InternalAppend
from actors.sending.send_rules import FAQ
from actors.tables.consumer_views import ConsumerView, Member, Subscription
from actors.tables.offset_searches import Offsets
from actors.tables.old_places import FirstPulls, OldPlaces
from protocol.bodies import PERM_READ, MessageQueue, OffsetMovedEvent
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import PULL_SUBSCRIPTION, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.headers.client import PullMessageHeader
from protocol.tags import TagFilter
from protocol.topic_names import OFFSET_MOVED_TOPIC
from storage.dispatching.dispatch import index_keys, tags_code
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.message_filter import MessageFilter
from storage.reading.get_message import GetResult, GetStatus
from storage.tables.consumer_filters import ConsumerFilters
from storage.tables.offsets import offset_key

BROADCASTING = "BROADCASTING"
PARSE_FAILED = "parse the consumer's subscription failed"


class NamesQueue(Protocol):
    """Request header that names a queue."""

    topic: str
    queue_id: int


class NotCompiled(Exception):
    """Signal that the expression of the pull, which is its text, has to be compiled first."""


class PullRules:
    def __init__(self, config: BrokerConfig, now_ms: Callable[[], float] = lambda: 0) -> None:
        """`now_ms` is used for pulls that carry an expression."""
        self._config = config
        self._budget = CompileBudget(now_ms)

    def check_readable(self) -> None:
        if not self._config.broker_permission & PERM_READ:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] pulling message is forbidden",
            )

    def check_group(
        self, group: str, config: SubscriptionGroupConfig | None
    ) -> SubscriptionGroupConfig:
        """Return the settings of the group.

        Raises RemoteError if the group is unknown or may not consume.
        """
        if config is None:
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, {FAQ}",
            )
        if not config.consume_enable:
            raise RemoteError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )
        return config

    def check_queue(self, header: NamesQueue, topic: TopicConfig | None, remote: str) -> None:
        """Raise RemoteError if the topic or queue is missing or not readable."""
        if topic is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! {FAQ}",
            )
        if not topic.perm & PERM_READ:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{remote}]",
            )

    def wanted(
        self,
        header: PullMessageHeader,
        group: SubscriptionGroupConfig,
        consumers: Mapping[str, ConsumerView],
        filters: ConsumerFilters,
        request: Request,
    ) -> MessageFilter | None:
        """Return the filter of the wanted messages; None for all."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            kind, text = header.expression_type, header.subscription
            wanted = self.of_expression(kind, text, request.peer)
        else:
            wanted = self._of_group(header, group, consumers, filters)
        if self._config.filter_support_retry:
            matches = retry_matches(header.topic, filters)
            if matches is not None:
                wanted = replace(wanted or MessageFilter(), matches=matches, chars=0)
        return wanted

    def of_expression(self, kind: str | None, text: str | None, peer: Peer) -> MessageFilter | None:
        """Return the filter of a subscription that comes with its request; None for all.

        Raises NotCompiled if it has to be compiled first.
        """
        if kind in TAG_EXPRESSIONS:
            codes = TagFilter.parse(text).codes
            return None if codes is None else MessageFilter(codes)
        if not text:
            raise RemoteError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, PARSE_FAILED)
        if not self._config.property_filter_enable:
            raise not_supported(kind)
        if self._budget.take(peer, kind, text):
            raise NotCompiled(text)
        try:
            return MessageFilter(matches=compiled(kind, text), chars=len(text))
        except LimitReached as error:
            raise LimitReached(error.code, PARSE_FAILED, error.kind) from None
        except RemoteError as error:
            raise RemoteError(error.code, PARSE_FAILED) from None

    def _of_group(
        self,
        header: PullMessageHeader,
        group: SubscriptionGroupConfig,
        consumers: Mapping[str, ConsumerView],
        filters: ConsumerFilters,
    ) -> MessageFilter | None:
        """Return the filter of the group's heartbeats."""
        subscription = self._subscription(header, group, consumers)
        kind = subscription.data.expression_type
        if kind in TAG_EXPRESSIONS:
            return None if subscription.codes is None else MessageFilter(subscription.codes)
        found = filters.get(header.topic, header.consumer_group)
        found = check_registered(found, header.sub_version)
        if not self._config.property_filter_enable:
            raise not_supported(kind)
        if subscription.data.class_filter_mode:
            return None
        if is_to_be_compiled(found.expression_type, found.expression):  # evicted from the cache
            raise NotCompiled(found.expression)
        return registered_filter(found, filters)

    def _subscription(
        self,
        header: PullMessageHeader,
        group: SubscriptionGroupConfig,
        consumers: Mapping[str, ConsumerView],
    ) -> Subscription:
        """Return the group's subscription to the topic.

        Raises RemoteError if it is missing, or older than the pull expects.
        """
        view = consumers.get(header.consumer_group)
        if view is None:
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist{FAQ}",
            )
        if not group.consume_broadcast_enable and view.message_model == BROADCASTING:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = view.subscriptions.get(header.topic)
        if subscription is None:
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist{FAQ}",
            )
        if subscription.data.sub_version < header.sub_version:
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                "the consumer's subscription not latest",
            )
        return subscription


class PullCorrection:
    """Correction of the pulls of a master. Used by PullMessage alone, on the event loop."""

    def __init__(
        self,
        queues: ConsumeQueues,
        *,
        broker_name: str,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        offsets: SnapshotRef[Offsets],
        old_places: OldPlaces,
        first_pulls: FirstPulls,
        starts_in_memory: Callable[[str, int], bool],
        put_message: ActorAddress,
    ) -> None:
        """Initialize the correction.

        `starts_in_memory` returns whether the first message of a queue is still in memory. A new
        group then starts there.
        """
        self._queues, self._broker_name = queues, broker_name
        self._consumers, self._offsets, self._old_places = consumers, offsets, old_places
        self._first_pulls, self._starts_in_memory = first_pulls, starts_in_memory
        self._put_message = put_message

    def old(self, header: PullMessageHeader, peer: Peer, now_ms: float) -> GetResult | None:
        """Return the result for a pull from before a deletion or the start; else None."""
        pulls = self._first_pulls
        watches = pulls.ends is not None and not pulls.is_over(now_ms)
        if not watches and not self._old_places.marks:
            return None
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        view = self._consumers.value.get(group)
        member = None if view is None else view.members.get(peer.peer_id)
        if watches and (found := self._before_start(header, peer, view, member)):
            return found
        if not self._old_places.is_old_pull(
            topic,
            group,
            queue_id,
            header.queue_offset,
            member=member,
            broadcasts=view is not None and view.message_model == BROADCASTING,
            now_ms=now_ms,
        ):
            return None
        queue = self._queues.get_or_create(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, low, low, high)

    def _before_start(
        self,
        header: PullMessageHeader,
        peer: Peer,
        view: ConsumerView | None,
        member: Member | None,
    ) -> GetResult | None:
        """Return the result for a pull of a live group from before the start; else None.

        A client may pull up to 30 s before its first heartbeat. Such pulls are noted, too.
        """
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        pulls, offset = self._first_pulls, header.queue_offset
        is_alone = view is not None and view.message_model == BROADCASTING
        reader = group if member is None or not is_alone else f"{group}@{member.client_id}"
        queue = self._queues.get_or_create(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        goal = pulls.end_passed(topic, reader, queue_id, offset)
        if goal is None and view is None:
            pulls.note(topic, peer.peer_id, queue_id)
        if goal is not None and is_alone:
            goal = pulls.end_passed(topic, peer.peer_id, queue_id, offset)
        elif goal is not None:
            committed = self._offsets.value.get(offset_key(topic, group), {}).get(queue_id)
            if committed is not None or offset <= high or not low:
                goal = committed
        if goal is None or max(low, goal) >= offset:
            pulls.note(topic, reader, queue_id)
            return None
        if view is None:
            return None
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, max(low, goal), low, high)

    def aim(self, header: PullMessageHeader, result: GetResult) -> None:
        """Correct the next offset of a pull above the max offset."""
        group, topic = header.consumer_group, header.topic
        is_behind = result.status is GetStatus.OFFSET_OVERFLOW_BADLY
        if not is_behind or group not in self._consumers.value:
            return
        committed = self._offsets.value.get(offset_key(topic, group), {}).get(header.queue_id)
        if committed is None and self._starts_in_memory(topic, header.queue_id):
            committed = 0
        if committed is not None:
            result.next_offset = min(max(committed, result.min_offset), result.max_offset)

    def tell(
        self, header: PullMessageHeader, result: GetResult, system: System, host: bytes
    ) -> None:
        """Warn the operator and store a message in OFFSET_MOVED_EVENT."""
        system.rarely.warn(
            "pull offset moved",
            of=header.topic,
            names=[header.consumer_group],
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            moved_to=result.next_offset,
            reason=result.status.value,
        )
        record = offset_moved_record(
            header,
            result.next_offset,
            broker_name=self._broker_name,
            now_ms=system.clock.now_ms(),
            host=host,
        )
        self._put_message.tell(InternalAppend([record]))


def offset_moved_record(
    header: PullMessageHeader, next_offset: int, *, broker_name: str, now_ms: int, host: bytes
) -> InternalRecord:
    """Return the record for OFFSET_MOVED_EVENT: the pull, and the offset it was moved to."""
    queue = MessageQueue(header.topic, broker_name, header.queue_id)
    event = OffsetMovedEvent(header.consumer_group, queue, next_offset, header.queue_offset)
    group = header.consumer_group.encode()
    properties = b"KEYS\x01%b\x02DELAY\x010\x02TAGS\x01%b" % (group, group)
    return InternalRecord(
        OFFSET_MOVED_TOPIC,
        0,
        event.encode(),
        properties,
        tags_code(group),
        index_keys(properties),
        born_timestamp=now_ms,
        born_host=host,
    )
