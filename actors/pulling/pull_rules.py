"""Checks of a pull before the store is read: those of 4.9.7, in its order and with its texts.

PullMessage calls these plain functions over snapshots of the tables.

Source: PullMessageProcessor.processRequest.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from actors.config import BrokerConfig
from actors.network.request import Peer, Request
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
from actors.sending.send_rules import FAQ
from actors.tables.consumer_views import ConsumerView, Subscription
from protocol.bodies import PERM_READ, SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.headers.pull import PullMessageHeader
from protocol.sysflag import PULL_SUBSCRIPTION
from protocol.tags import TagFilter
from storage.queues.message_filter import MessageFilter
from storage.tables.consumer_filters import ConsumerFilters

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
