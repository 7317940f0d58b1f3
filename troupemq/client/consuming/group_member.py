"""Base of push and pull consumers: a group, its subscriptions and its rebalances."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import ClassVar

from protocol.bodies import CheckClientRequest, ConsumerData
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.client import NotifyConsumerIdsChangedHeader
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.local_address import local_address
from remoting.tls_options import Tls
from troupemq.client.arguments import (
    check_flag,
    check_instance,
    check_time,
    method_names_checked,
)
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, ClientMember, seconds_to
from troupemq.client.consuming.consumer_offsets import (
    ConsumeFrom,
    GroupOffsets,
    Offsets,
    QueueEnds,
)
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.consumer_statistics import SAMPLE_INTERVAL_MS, ConsumerStatistics
from troupemq.client.consuming.local_offsets import INSTANCE_NAME, LocalOffsets, default_folder
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.rebalance import INCOMPLETE_AGAIN_MS, Rebalancing
from troupemq.client.consuming.subscription import TAG, TopicSubscription
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, check_topic

log = client_logger(__name__)

CHECK_TIMEOUT_MS = 3000
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"


_members: set[tuple[str, str, str]] = set()
"""Name servers, group and client id of this process's consumers, the key of a member at brokers."""

_members_lock = Lock()


class GroupMember(ClientMember):
    """A member of a consumer group; subclasses create `_pulling` and `_rebalancing`."""

    kind = "consumer"
    consume_type: ClassVar[str]
    _pulling: Pulling
    _rebalancing: Rebalancing

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None,
        settings: ConsumerSettings,
        begin: ConsumeFrom,
        begin_ms: int | None,
        broadcast: bool,
        instance_name: str | None,
        client_ip: str | None,
        offsets_folder: Path | None,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address."""
        check_instance(settings, ConsumerSettings, "settings are ConsumerSettings")
        check_instance(begin, ConsumeFrom, "begin is a ConsumeFrom, such as FIRST_OFFSET")
        if begin_ms is not None:
            check_time(begin_ms, "begin_ms")
        if offsets_folder is not None:
            check_instance(offsets_folder, str | Path, "offsets_folder is a path")
            offsets_folder = Path(offsets_folder)
        check_flag(broadcast, "broadcast")
        if begin_ms is not None and begin is not ConsumeFrom.TIMESTAMP:
            raise ArgumentIllegal("begin_ms is for begin=ConsumeFrom.TIMESTAMP")
        if broadcast:
            instance_name = instance_name or INSTANCE_NAME
            client_ip = client_ip or local_address()
        super().__init__(group, namesrv, instance_name, client_ip, credentials, tls)
        self.settings = settings
        self._member: tuple[str, str, str] | None = None
        """Entry in `_members` while this consumer runs."""

        self.message_model = BROADCASTING if broadcast else CLUSTERING
        self._begin_where = begin
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._statistics = ConsumerStatistics()
        self._ends = QueueEnds(self._client, begin, begin_ms)
        self._local_offsets: LocalOffsets | None = None
        if broadcast:
            self._local_offsets = LocalOffsets(
                offsets_folder or default_folder(), self._client.id, group, self._ends
            )
        self._offsets: Offsets = self._local_offsets or GroupOffsets(
            self._client, group, self._ends
        )
        self._announced: tuple[TopicSubscription, ...] = ()
        self._again_is_due = False
        self._notice_waits = False
        self._client.consumer_data = self._consumer_data
        self._client.topics = lambda: tuple(self._subscriptions)
        self._client.serves[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._group_changed

    @method_names_checked
    def subscribe(self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None) -> None:
        """Subscribe to `topic`, to all messages or to those of some tags, before or after `start`.

            consumer.subscribe("Orders", "new || paid")
            consumer.subscribe("Payments", sql="amount > 100 AND currency = 'EUR'")

        `sql` filters by properties in SQL92; it needs enablePropertyFilter at the broker. All
        members of a group must have the same subscriptions. Raises MessageIllegal for invalid
        arguments, ClientClosed after a stop, and while it runs, BrokerError for a rejected `sql`.
        """
        self.check_not_stopped()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, sql, now_ms())
        subscription.warn_of_doubts(self.group)
        if self.is_running:
            self._check_filter(subscription)
        self._subscriptions[topic] = subscription
        if self.is_running:
            self._client.housekeeping.post(self._rebalance)

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic` and release its queues. Raises MessageIllegal."""
        check_topic(topic)
        self._subscriptions.pop(topic, None)
        if self.is_running:
            self._client.housekeeping.post(self._rebalance)

    def queues(self) -> dict[MessageQueue, int]:
        """Return the assigned queues with their consumer offsets."""
        return {queue: held.committable() for queue, held in self._rebalancing.own.items()}

    # --- within, on the housekeeping thread but for _prepare, _begin and _group_changed

    def _prepare(self) -> None:
        if self._local_offsets is not None:
            self._local_offsets.load()
        for subscription in tuple(self._subscriptions.values()):
            try:
                self._client.routes.look_up(subscription.topic)
            except RouteNotFound as error:
                self._rebalancing.missing(subscription.topic, error)
            else:
                self._check_filter(subscription)
        member = ";".join(self._client.routes.namesrvs), self.group, self._client.id
        with _members_lock:
            if member in _members:
                raise ClientError(
                    f"a consumer of the group {self.group} with the client id {self._client.id}"
                    " already runs in this process, and both would consume all messages:"
                    " give each an instance_name of its own"
                )
            _members.add(member)
            self._member = member

    def _check_filter(self, subscription: TopicSubscription) -> None:
        """Let a broker of the topic check an SQL92 expression. Raises BrokerError."""
        if subscription.expression_type == TAG:
            return
        routes = self._client.routes
        try:
            queues = routes.get(subscription.topic).subscribe_queues
        except RouteNotFound:
            return
        for broker_name in sorted({queue.broker_name for queue in queues})[:1]:
            body = CheckClientRequest(self._client.id, self.group, subscription.data())
            command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
            self._client.remoting.ask(routes.address(broker_name), command, CHECK_TIMEOUT_MS)

    def _begin(self) -> None:
        self._pulling.start()
        every, settings = self._client.housekeeping.every, self.settings
        every(settings.rebalance_interval_ms, self._rebalance)
        every(SAMPLE_INTERVAL_MS, self._statistics.sample)
        commit_ms = settings.commit_interval_ms
        every(commit_ms, self._rebalancing.commit, first_ms=commit_ms)

    def _finish(self, deadline_s: float) -> None:
        try:
            self._give_up_membership(deadline_s)
        finally:
            with _members_lock:
                _members.difference_update(() if self._member is None else (self._member,))

    def _give_up_membership(self, deadline_s: float) -> None:
        self._client.housekeeping.stop(seconds_to(deadline_s))
        self._rebalancing.close()
        self._pulling.stop(seconds_to(deadline_s))
        self._finish_consuming(deadline_s)
        self._rebalancing.give_all_away(max(LAST_TIMEOUT_S, seconds_to(deadline_s)))

    def _finish_consuming(self, deadline_s: float) -> None:
        """Wait for running listener calls, before the queues are released."""

    def _consumer_data(self) -> list[ConsumerData]:
        subscriptions = [each.data() for each in list(self._subscriptions.values())]
        begin = self._begin_where.value
        return [
            ConsumerData(self.group, self.consume_type, self.message_model, begin, subscriptions)
        ]

    @abstractmethod
    def _rebalance_topics(self) -> Sequence[str] | None:
        """Return the topics to rebalance; None if the application assigns the queues."""

    def _rebalance(self) -> None:
        wanted = tuple(self._subscriptions.values())
        if wanted != self._announced:
            self._announce()
            self._announced = wanted
        topics = self._rebalance_topics()
        if topics is None:
            return
        again_ms = self._rebalancing.run(topics)
        if again_ms is not None:
            if again_ms == INCOMPLETE_AGAIN_MS:
                self._announced = ()
            if not self._again_is_due:  # one at a time: a missing topic would queue up many
                self._again_is_due = True
                self._client.housekeeping.later(again_ms, self._rebalance_again)

    def _rebalance_again(self) -> None:
        self._again_is_due = False
        self._rebalance()

    def _rebalance_noticed(self) -> None:
        self._notice_waits = False
        self._rebalance()

    def _announce(self) -> None:
        """Send the subscriptions to the brokers, which answer no pull without them."""
        for topic in tuple(self._subscriptions):
            try:
                self._client.routes.get(topic)
            except ClientError as error:
                log.debug("topic route not found", topic=topic, error=str(error))
        self._client.heartbeat()

    def _group_changed(self, command: RemotingCommand) -> RemotingCommand | None:
        """Take a broker's notice of changed members, on the I/O thread."""
        header = NotifyConsumerIdsChangedHeader.decode(command.fields)
        if header.consumer_group == self.group and not self._notice_waits:
            self._notice_waits = True
            self._client.housekeeping.post(self._rebalance_noticed)
        return None
