"""PushConsumer: gets the messages of its group's topics and calls a listener with them."""

from collections.abc import Sequence

from protocol.bodies import ConsumerData, SubscriptionData
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.client import NotifyConsumerIdsChangedHeader
from protocol.tags import ALL_TAGS
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.assignment import Assignment, averagely
from troupemq.client.client import now_ms
from troupemq.client.consume import ConsumerSettings, Consuming, Listener
from troupemq.client.consumer_offsets import ConsumeFrom, ConsumerOffsets
from troupemq.client.errors import ClientError, MessageIllegal, RouteNotFound
from troupemq.client.lifecycle import ClientMember
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, check_topic
from troupemq.client.pull import TAG_EXPRESSION, Pulling, Subscription
from troupemq.client.rebalance import INCOMPLETE_AGAIN_MS, Rebalancing

log = client_logger(__name__)

HALF_HOUR_MS = 1_800_000


class PushConsumer(ClientMember):
    """One member of a consumer group (clustering: every message goes to one member).

        def listen(messages):
            for message in messages:
                print(message.tags, message.body)

        with PushConsumer("billing", listen, namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders", "new || paid")
            ...

    At least once: a message counts as consumed when the listener returned without an exception and
    not RETRY_LATER; it may come again after a crash, a rebalance or a failure. Nothing is skipped.

    `start` raises ClientError if no name server can be reached; a topic that does not exist yet is
    consumed as soon as it does. `stop` lets the listener finish what it has and commits; calls that
    take longer than its timeout are left behind: what they consume comes again.
    """

    kind = "consumer"
    stop_timeout_s = 30.0

    def __init__(
        self,
        group: str,
        listener: Listener,
        namesrv: str | Sequence[str] | None = None,
        *,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        begin_ms: int | None = None,
        settings: ConsumerSettings | None = None,
        assign: Assignment = averagely,
        instance_name: str | None = None,
    ) -> None:
        """`begin` counts only for queues that the group has never consumed; `begin_ms` is the time
        for ConsumeFrom.TIMESTAMP, by default half an hour ago."""
        check_topic(group)  # same characters, same length
        super().__init__(namesrv, instance_name)
        self.group = group
        self.settings = settings or ConsumerSettings()
        self._begin_where = begin
        self._subscriptions: dict[str, Subscription] = {}
        begin_ms = begin_ms if begin_ms is not None else now_ms() - HALF_HOUR_MS
        offsets = ConsumerOffsets(self._client, group, begin, begin_ms)
        self._pulling = Pulling(
            self._client, group, self.settings, self._subscriptions, lambda: self._consuming
        )
        self._consuming = Consuming(
            self._client, group, listener, self.settings, self._pulling.go_on
        )
        self._rebalancing = Rebalancing(
            self._client, group, offsets, assign, self.settings, self._pulling.go_on
        )
        self._announced: tuple[Subscription, ...] = ()
        self._again_is_due = False
        self._notice_waits = False
        self._client.consumer_data = self._consumer_data
        self._client.topics = lambda: tuple(self._subscriptions)
        self._client.serves[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._group_changed
        self._subscribe(RETRY_TOPIC_PREFIX + group, ALL_TAGS)

    def subscribe(self, topic: str, expression: str = ALL_TAGS) -> None:
        """Wants the messages of `topic` with one of the tags of `a || b`, or all.

        All members of a group must subscribe to the same. Before the start or after it.
        """
        self._subscribe(topic, expression)
        if self.is_running:
            self._client.housekeeping.post(self._rebalance)

    def _subscribe(self, topic: str, expression: str) -> None:
        check_topic(topic)
        try:
            subscription = Subscription.of_tags(topic, expression, now_ms())
        except RemoteError as error:
            raise MessageIllegal(f"{error.remark}: {expression!r}") from None
        self._subscriptions[topic] = subscription

    def _prepare(self) -> None:
        for topic in tuple(self._subscriptions):
            try:
                self._client.routes.look_up(topic)
            except RouteNotFound:
                log.info("topic without a route", topic=topic)

    def _begin(self) -> None:
        self._pulling.start()
        self._consuming.start()
        housekeeping, settings = self._client.housekeeping, self.settings
        housekeeping.every(settings.rebalance_interval_ms, self._rebalance)
        housekeeping.later(
            settings.commit_interval_ms,
            lambda: housekeeping.every(settings.commit_interval_ms, self._rebalancing.commit),
        )

    def _finish(self, timeout_s: float) -> None:
        self._client.housekeeping.stop(timeout_s)
        self._rebalancing.close()
        self._pulling.stop(timeout_s)
        if not self._consuming.stop(timeout_s):
            log.warning("listener still running at stop", group=self.group)
        self._rebalancing.give_all_away()

    def finish(self) -> None:
        """No further message is given to the listener; `stop` does the rest. Does not wait: the
        listener itself may call it."""
        self._rebalancing.close()

    def queues(self) -> dict[MessageQueue, int]:
        """The queues that this consumer has now, and how far it is in each."""
        return {queue: held.committable() for queue, held in self._rebalancing.own.items()}

    # --- within, on the housekeeping thread but for _group_changed

    def _consumer_data(self) -> list[ConsumerData]:
        subscriptions = [
            SubscriptionData(
                topic=each.topic,
                sub_string=each.expression,
                tags_set=sorted(each.filter.tags),
                code_set=sorted(each.filter.codes or ()),
                sub_version=each.version,
                expression_type=TAG_EXPRESSION,
            )
            for each in list(self._subscriptions.values())
        ]
        return [
            ConsumerData(
                self.group,
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                self._begin_where.value,
                subscriptions,
            )
        ]

    def _rebalance(self) -> None:
        wanted = tuple(self._subscriptions.values())
        if wanted != self._announced:
            self._announce()
            self._announced = wanted
        again_ms = self._rebalancing.run([each.topic for each in wanted])
        if again_ms is not None:
            if again_ms == INCOMPLETE_AGAIN_MS:
                self._announced = ()
            if not self._again_is_due:  # one at a time, or a missing topic would add up to many
                self._again_is_due = True
                self._client.housekeeping.later(again_ms, self._rebalance_again)

    def _rebalance_again(self) -> None:
        self._again_is_due = False
        self._rebalance()

    def _rebalance_noticed(self) -> None:
        self._notice_waits = False
        self._rebalance()

    def _announce(self) -> None:
        """Brokers that do not know what we subscribe to answer no pull: tell them first."""
        for topic in tuple(self._subscriptions):
            if self._client.routes.known(topic) is None:
                try:
                    self._client.routes.look_up(topic)
                except ClientError as error:
                    log.debug("topic without a route", topic=topic, error=str(error))
        self._client.heartbeat()

    def _group_changed(self, command: RemotingCommand) -> RemotingCommand | None:
        """The broker's notice, on the I/O thread."""
        header = NotifyConsumerIdsChangedHeader.decode(command.fields)
        if header.consumer_group == self.group and not self._notice_waits:
            self._notice_waits = True
            self._client.housekeeping.post(self._rebalance_noticed)
        return None
