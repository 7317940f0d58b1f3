"""Parts of a push consumer that threads and event loops share."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.tags import ALL_TAGS
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.connection.calls import Flow, FlowTasks
from troupemq.client.connection.client import RequestHandler, now_ms
from troupemq.client.connection.pending import Answer
from troupemq.client.connection.task_thread import Tasks
from troupemq.client.consuming.assignment import Assignment
from troupemq.client.consuming.consume import (
    ConcurrentConsuming,
    Consuming,
    ListenerRunner,
    SendingBack,
)
from troupemq.client.consuming.group_work import CLUSTERING, GroupWork
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.log import client_logger

if TYPE_CHECKING:
    from protocol.bodies_client import ConsumerRunningInfo
    from troupemq.client.consuming.queue_locks import MemberLocks

log = client_logger(__name__)

ADMIN_CODES = (
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""Requests of administrators that a broker passes on."""

OVERDUE_ROUNDS = 10
"""Checks for overdue messages within `consume_timeout_ms`; at least one a minute."""
OVERDUE_INTERVAL_MS_MAX = 60_000
FIRST_RENEWAL_MS = 1000
UNSUBSCRIBED_AFTER_MS = 5000
"""Time without a subscription after which a warning is logged."""

NAMED_MAX = 10
"""Limit of messages that a log line of a stop names."""


class PushWork(GroupWork):
    """A member of a group whose messages go to a listener."""

    consume_type = "CONSUME_PASSIVELY"
    orderly: bool
    started_at_ms = 0

    @property
    @abstractmethod
    def concurrency(self) -> int:
        """Limit of concurrent listener calls."""

    def _build(
        self,
        assign: Assignment,
        listening: ListenerRunner,
        pull_tasks: Tasks,
        order_tasks: FlowTasks,
    ) -> None:
        """Create the parts; `order_tasks` runs the flows that orderly queues wait for."""
        shares = self.message_model == CLUSTERING
        client, group, settings = self._core, self.group, self.settings
        self._order_tasks = order_tasks
        self._pulling = Pulling(
            client,
            pull_tasks,
            group,
            settings,
            self._subscriptions,
            self._statistics,
            lambda process_queue, views: self._consuming.submit(process_queue, views),
            orderly=self.orderly,
        )
        locks = self._locks() if self.orderly and shares else None
        self._consuming = self._consuming_with(listening, locks)
        self._rebalancing = Rebalancing(
            client,
            group,
            self._offsets,
            assign if shares else None,
            settings,
            self._pulling.go_on,
            locks=locks,
        )
        self._requests: dict[int, RequestHandler] = {}
        client.serves.update(dict.fromkeys(ADMIN_CODES, self._asked))
        if shares:
            topic = RETRY_TOPIC_PREFIX + group
            self._subscriptions[topic] = TopicSubscription.of(topic, ALL_TAGS, None, now_ms())

    def _locks(self) -> "MemberLocks":
        from troupemq.client.consuming.queue_locks import MemberLocks

        return MemberLocks(self._core, self.group, self._lost)

    def _consuming_with(self, listening: ListenerRunner, locks: "MemberLocks | None") -> Consuming:
        group, settings, client = self.group, self.settings, self._core
        statistics, on_room = self._statistics, self._pulling.go_on
        back = None
        if self.message_model == CLUSTERING:
            back = SendingBack(client, group, settings.max_reconsume_times, self.orderly)
        if self.orderly:
            from troupemq.client.consuming.queue_locks import OrderlyConsuming

            tasks = self._order_tasks
            return OrderlyConsuming(
                group, listening, settings, statistics, on_room, back, tasks, locks
            )
        return ConcurrentConsuming(
            group, listening, settings, statistics, on_room, back, client.flows
        )

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were already pulled are consumed."""
        self._pulling.rest(True)

    def resume(self) -> None:
        """Continue to pull after `suspend`."""
        self._pulling.rest(False)

    def finish(self) -> None:
        """Start no more listener calls; call `stop` afterwards.

        Does not wait, so that the listener itself may call it.
        """
        self._rebalancing.close()

    def info(self, *, stacks: bool = False) -> "ConsumerRunningInfo":
        """Return the state that administrators see; `stacks`: with stack traces of all threads."""
        from troupemq.client.consuming.running_info import running_info

        return running_info(
            self,
            self._core,
            self._subscriptions.values(),
            self._rebalancing.own,
            self._statistics,
            self._ends,
            stacks=stacks,
        )

    # --- within

    def _asked(self, command: RemotingCommand) -> RemotingCommand | Answer | None:
        """Answer an administrator's request; the first one loads what these need."""
        if not self._requests:
            from troupemq.client.consuming.consumer_requests import ConsumerRequests

            made = ConsumerRequests(self, self._rebalancing, self._consuming)
            self._requests = made.handlers()
        return self._requests[command.code](command)

    def _log_calls(self, say: Callable[..., None], event: str) -> None:
        """Log the ids of messages in listener calls, if there are any."""
        held = self._rebalancing.own.values()
        if ids := [each.msg_id for queue in held for each in queue.info().in_hand]:
            say(event, group=self.group, ids=",".join(ids[:NAMED_MAX]))

    def _rebalance_topics(self) -> Sequence[str]:
        return tuple(self._subscriptions)

    def _begin_rounds(self) -> None:
        self.started_at_ms = now_ms()
        super()._begin_rounds()
        self._core.housekeeping.later(UNSUBSCRIBED_AFTER_MS, self._warn_of_no_subscription)
        settings = self.settings
        if self.orderly:
            every, renew = self._order_tasks.every, self._rebalancing.renew_locks
            every(settings.lock_interval_ms, renew, first_ms=FIRST_RENEWAL_MS)
        elif isinstance(self._consuming, ConcurrentConsuming):
            interval_ms = min(settings.consume_timeout_ms / OVERDUE_ROUNDS, OVERDUE_INTERVAL_MS_MAX)
            self._core.flows.every(interval_ms, self._give_back_overdue, first_ms=interval_ms)

    def _warn_of_no_subscription(self) -> None:
        if self._subscriptions.keys() <= {RETRY_TOPIC_PREFIX + self.group}:
            hint = "it consumes nothing: call subscribe(topic)"
            log.warning("subscription missing", group=self.group, hint=hint)

    def _give_back_overdue(self) -> Flow[None]:
        assert isinstance(self._consuming, ConcurrentConsuming)
        held: Iterable[ProcessQueue] = self._rebalancing.own.values()
        return self._consuming.give_back_overdue(held)

    def _lost(self, held: ProcessQueue) -> None:
        """Drop a queue after the loss of its lock, and rebalance: the group has changed."""
        self._rebalancing.lost(held)
        self._core.flows.post(self._rebalance)
