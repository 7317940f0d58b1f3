"""What a pull must honour before the store is asked: 4.9.7's checks, in its order and words.

Plain functions over published tables; PullMessage calls them.

Source: PullMessageProcessor.processRequest.
"""

from collections.abc import Mapping

from actors.config import PERM_READ, BrokerConfig
from actors.consumer_groups import ConsumerView
from actors.send_rules import FAQ
from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.pull import PullMessageHeader
from protocol.sysflag import PULL_SUBSCRIPTION
from protocol.tags import TagFilter

_TAG_EXPRESSIONS = (None, "", "TAG")
BROADCASTING = "BROADCASTING"
PARSE_FAILED = "parse the consumer's subscription failed"


class PullRules:
    """The checks of one broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def check_readable(self) -> None:
        """Refuses every pull of a broker without read permission."""
        if not self._config.broker_permission & PERM_READ:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] pulling message is forbidden",
            )

    def check_group(
        self, group: str, config: SubscriptionGroupConfig | None
    ) -> SubscriptionGroupConfig:
        """Refuses an unknown group, and one that may not consume."""
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

    def check_queue(
        self, header: PullMessageHeader, topic: TopicConfig | None, remote: str
    ) -> None:
        """Refuses a topic or queue that is not there, or may not be read."""
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

    def tag_codes(
        self,
        header: PullMessageHeader,
        group: SubscriptionGroupConfig,
        consumers: Mapping[str, ConsumerView],
    ) -> frozenset[int] | None:
        """Which tags the consumer wants, as hash codes; None: all."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            expression_type, text = header.expression_type, header.subscription
            by_tag = expression_type in _TAG_EXPRESSIONS
            if not by_tag and not text:
                raise RemoteError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, PARSE_FAILED)
            codes = TagFilter.parse(text).codes if by_tag else None
        else:
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
            expression_type, codes = subscription.data.expression_type, subscription.codes
        if expression_type not in _TAG_EXPRESSIONS:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}",
            )
        return codes
