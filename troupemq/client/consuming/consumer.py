"""PushConsumer: pulls the messages of its subscriptions and passes them to a listener."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol.bodies_client import ConsumerRunningInfo
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from protocol.topic_names import RETRY_TOPIC_PREFIX
from remoting.tls_options import Tls
from troupemq.client.arguments import check_flag, method_names_checked, names_checked
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.lifecycle import seconds_to
from troupemq.client.connection.task_thread import TaskThread
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consume import ConcurrentConsuming, Consuming
from troupemq.client.consuming.consume_orderly import OrderlyConsuming
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_requests import ConsumerRequests
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.group_member import CLUSTERING, GroupMember
from troupemq.client.consuming.listener import Listener, TopicListeners
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.queue_locks import MemberLocks
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.consuming.running_info import running_info
from troupemq.client.consuming.sending_back import SendingBack
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from pathlib import Path

log = client_logger(__name__)

OVERDUE_ROUNDS = 10
"""Checks for overdue messages within `consume_timeout_ms`; at least one a minute."""
OVERDUE_INTERVAL_MS_MAX = 60_000
FIRST_RENEWAL_MS = 1000
UNSUBSCRIBED_AFTER_MS = 5000
"""Time without a subscription after which a warning is logged."""

RESET_AGAIN_MS = 1000
RESET_TRIES = 30


@partial(names_checked, settings=ConsumerSettings)
class PushConsumer(GroupMember):
    """A member of a consumer group; each message goes to one member, or to all with `broadcast`.

        def listen(messages):
            for message in messages:
                print(message.tags, message.body)

        with PushConsumer("billing", listen, namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders", "new || paid")
            ...

    Delivery is at least once: a message is consumed when its listener call returns None or
    SUCCESS. It may be delivered again after a crash, a rebalance or a failure. No message is
    skipped. A failed message is retried later, and becomes a dead letter after
    `max_reconsume_times`; a broadcasting consumer does not retry. With `orderly` the messages of a
    queue are delivered in order, one call at a time. A failed one is retried before those behind
    it.

    `start` raises ClientError if no name server answers or a broker rejects an SQL92 expression.
    A missing topic is consumed as soon as it exists. `stop` waits for running listener calls, then
    commits. Calls over its timeout are abandoned, and their messages are delivered again.
    """

    stop_timeout_s = 30.0
    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        namesrv: str | Sequence[str] | None = None,
        *,
        orderly: bool = False,
        broadcast: bool = False,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        begin_ms: int | None = None,
        settings: ConsumerSettings | None = None,
        assign: Assignment = averagely,
        instance_name: str | None = None,
        client_ip: str | None = None,
        offsets_folder: "Path | None" = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Raise ArgumentIllegal, and ConnectionFailed for an invalid address.

        * `listener`: gets the messages of all topics that have no listener of their own.
        * `begin`: start in queues that the group has never consumed.
        * `begin_ms`: time for ConsumeFrom.TIMESTAMP, ms since 1970. [default: 30 minutes ago]
        * `offsets_folder`: files of broadcast offsets, by client id. [default: as in Java]
        * `instance_name`: must differ between broadcasting consumers of a group on one machine.
        """
        self._listeners = TopicListeners(listener)
        check_assignment(assign)
        check_flag(orderly, "orderly")
        super().__init__(
            group,
            namesrv,
            settings or ConsumerSettings(),
            begin,
            begin_ms,
            broadcast,
            instance_name,
            client_ip,
            offsets_folder,
            credentials,
            tls,
        )
        self.orderly, self.started_at_ms = orderly, 0
        self._order_tasks = TaskThread(f"troupemq-order-{group}")
        self._pulling, shares = self._new_pulling(), not broadcast
        locks = MemberLocks(self._client, group, self._lost) if orderly and shares else None
        self._consuming = self._consuming_with(self._listeners, locks)
        self._rebalancing = Rebalancing(
            self._client,
            group,
            self._offsets,
            assign if shares else None,
            self.settings,
            self._pulling.go_on,
            locks=locks,
        )
        requests = ConsumerRequests(self, self._rebalancing, self._consuming, self._reset)
        self._client.serves.update(requests.handlers())
        if shares:
            self._subscribe_to_retries()

    def _subscribe_to_retries(self) -> None:
        topic = RETRY_TOPIC_PREFIX + self.group
        self._subscriptions[topic] = TopicSubscription.of(topic, ALL_TAGS, None, now_ms())

    def _new_pulling(self) -> Pulling:
        return Pulling(
            self._client,
            self.group,
            self.settings,
            self._subscriptions,
            self._statistics,
            lambda process_queue, views: self._consuming.submit(process_queue, views),
            orderly=self.orderly,
        )

    def _consuming_with(self, listener: Listener, locks: MemberLocks | None) -> Consuming:
        group, settings, client = self.group, self.settings, self._client
        back = None
        if self.message_model == CLUSTERING:
            back = SendingBack(client, group, settings.max_reconsume_times, self.orderly)
        if self.orderly:
            return OrderlyConsuming(
                group,
                listener,
                settings,
                self._statistics,
                self._pulling.go_on,
                back,
                locks,
                self._order_tasks,
            )
        return ConcurrentConsuming(
            group,
            listener,
            settings,
            self._statistics,
            self._pulling.go_on,
            back,
            client.housekeeping,
        )

    @method_names_checked
    def subscribe(
        self,
        topic: str,
        expression: str = ALL_TAGS,
        *,
        sql: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Subscribe to `topic`, to all messages or to those of some tags, before or after `start`.

            consumer.subscribe("Orders", "new || paid")
            consumer.subscribe("Payments", sql="amount > 100", listener=book)

        `listener` gets the messages of this topic in place of the consumer's. `sql` filters by
        properties in SQL92; it needs enablePropertyFilter at the broker. All members of a group
        must have the same subscriptions. Raises ArgumentIllegal for a topic without a listener,
        MessageIllegal for invalid arguments, ClientClosed after a stop, and while it runs,
        BrokerError for a rejected `sql`.
        """
        self._listeners.set(topic, listener)
        super().subscribe(topic, expression, sql=sql)

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were already pulled are consumed."""
        self._pulling.rest(True)

    def resume(self) -> None:
        """Continue to pull after `suspend`."""
        self._pulling.rest(False)

    def finish(self) -> None:
        """Start no more listener calls; call `stop` afterwards.

        Does not block, so that the listener itself may call it.
        """
        self._rebalancing.close()

    def info(self, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state that administrators see; `stacks`: with stack traces of all threads."""
        return running_info(
            self,
            self._client,
            self._subscriptions.values(),
            self._rebalancing.own,
            self._statistics,
            self._ends,
            stacks=stacks,
        )

    # --- within

    def _rebalance_topics(self) -> Sequence[str]:
        return tuple(self._subscriptions)

    def _begin(self) -> None:
        self.started_at_ms = now_ms()
        self._consuming.make_spans(spans_of(self.client_id), self.message_model.lower())
        self._consuming.start()
        self._order_tasks.start()
        super()._begin()
        self._client.housekeeping.later(UNSUBSCRIBED_AFTER_MS, self._warn_of_no_subscription)
        settings = self.settings
        if self.orderly:
            every, renew = self._order_tasks.every, self._rebalancing.renew_locks
            every(settings.lock_interval_ms, renew, first_ms=FIRST_RENEWAL_MS)
        elif isinstance(self._consuming, ConcurrentConsuming):
            interval_ms = min(settings.consume_timeout_ms / OVERDUE_ROUNDS, OVERDUE_INTERVAL_MS_MAX)
            every = self._client.housekeeping.every
            every(interval_ms, self._give_back_overdue, first_ms=interval_ms)

    def _warn_of_no_subscription(self) -> None:
        if self._subscriptions.keys() <= {RETRY_TOPIC_PREFIX + self.group}:
            hint = "it consumes nothing: call subscribe(topic)"
            log.warning("subscription missing", group=self.group, hint=hint)

    def _finish_consuming(self, deadline_s: float) -> None:
        self._order_tasks.stop(seconds_to(deadline_s))
        if not self._consuming.stop(seconds_to(deadline_s)):
            log.warning("listener still running at stop", group=self.group)

    def _give_back_overdue(self) -> None:
        if isinstance(self._consuming, ConcurrentConsuming):
            self._consuming.give_back_overdue(self._rebalancing.own.values())

    def _lost(self, held: ProcessQueue) -> None:
        """Drop a queue after the loss of its lock, and rebalance: the group has changed."""
        self._rebalancing.lost(held)
        self._client.housekeeping.post(self._rebalance)

    def _reset(self, queue: MessageQueue, offset: int, tries: int = RESET_TRIES) -> None:
        """Reset the offset of an own queue, on the housekeeping thread."""
        try:
            if self._rebalancing.restart_at(queue, offset):
                return
            reason = "a listener call is still running"
        except ClientError as error:
            reason = str(error)
        log.warning("offset reset postponed", queue=str(queue), offset=offset, reason=reason)
        if tries > 1:
            self._client.housekeeping.later(
                RESET_AGAIN_MS, lambda: self._reset(queue, offset, tries - 1)
            )
