"""Parts of a pull consumer that threads and event loops share.

Source: client/impl/consumer/DefaultLitePullConsumerImpl.java.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from troupemq.client.arguments import (
    MS_MAX,
    check_instance,
    check_integer,
    check_time,
    check_timeout,
)
from troupemq.client.connection.calls import Flow, LookUpRoute
from troupemq.client.connection.task_thread import Tasks
from troupemq.client.consuming.assignment import Assignment
from troupemq.client.consuming.group_work import BROADCASTING, GroupWork
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import ClientError, MessageIllegal
from troupemq.client.message import MessageQueue, MessageView, check_queues, check_topic

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

POLL_TIMEOUT_MS = 5000
POLL_COUNT_MAX = 32
BATCH_COUNT_MAX = 100
BATCH_WAIT_MS = 1000
OFFSET_MAX = (1 << 63) - 1


@dataclass(slots=True)
class _Fetched:
    process_queue: ProcessQueue
    views: Sequence[MessageView]


class PullWork(GroupWork):
    """A member of a group whose messages wait for polls."""

    consume_type = "CONSUME_ACTIVELY"
    auto_commit: bool
    _spans: "ClientSpans | None"
    _lock: AbstractContextManager[object]
    """Guard of what polls share with the pulls, where these have a thread."""

    def _build(self, assign: Assignment, tasks: Tasks, *, auto_commit: bool) -> None:
        """Create the parts; `tasks` runs the pulls."""
        self.auto_commit = auto_commit
        self._fetched: deque[_Fetched] = deque()
        self._last_poll: list[ProcessQueue] = []
        self._assigned: tuple[MessageQueue, ...] | None = None
        self._pulling = Pulling(
            self._core,
            tasks,
            self.group,
            self.settings,
            self._subscriptions,
            self._statistics,
            self._submit,
            orderly=True,
            tells_subscription=True,
        )
        self._rebalancing = Rebalancing(
            self._core,
            self.group,
            self._offsets,
            None if self.message_model == BROADCASTING else assign,
            self.settings,
            self._pulling.go_on,
            position=lambda held: held.acknowledged if self.auto_commit else None,
        )

    @abstractmethod
    def _wake(self) -> None:
        """Have waiting polls look again. The caller holds the lock."""

    # --- queues

    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are assigned now."""
        return tuple(sorted(self._rebalancing.own))

    def _check_may_subscribe(self) -> None:
        if self._assigned is not None:
            raise ClientError("this consumer has assigned queues: it cannot subscribe")

    def _assigning(self, queues: Iterable[MessageQueue], expression: str) -> Flow[None]:
        if self._subscriptions and self._assigned is None:
            raise ClientError("this consumer has subscribed: the group assigns its queues")
        wanted = check_queues(queues, "the queues to assign")
        topics = {queue.topic for queue in wanted}
        self._assigned = ()
        for topic in topics:
            self._subscriptions[topic] = TopicSubscription.checked(
                self.group, topic, expression, None
            )
        for topic in self._subscriptions.keys() - topics:
            del self._subscriptions[topic]
        self._assigned = wanted
        if self.is_running:
            self._core.flows.post(self._rebalance)
            yield from self._taking_assigned()

    def _taking_assigned(self) -> Flow[None]:
        queues = self._assigned
        if queues is None:
            return
        for topic in {queue.topic for queue in queues}:
            yield LookUpRoute(topic)
        yield from self._rebalancing.assign(queues)

    def _rebalance_topics(self) -> Sequence[str] | None:
        return tuple(self._subscriptions) if self._assigned is None else None

    def _fetching_queues(self, topic: str) -> Flow[tuple[MessageQueue, ...]]:
        check_topic(topic)
        route = yield LookUpRoute(topic, again=True)
        return tuple(sorted(route.subscribe_queues))

    def _rest(self, queues: Iterable[MessageQueue], rests: bool) -> None:
        queues = check_queues(queues, "the queues to pause or resume")
        own = self._rebalancing.own
        with self._lock:
            for held in (own[queue] for queue in queues if queue in own):
                held.rests = rests
                if not rests:
                    self._pulling.go_on(held)
            self._wake()

    # --- messages

    def _check_poll(self, timeout_ms: float, count_max: int) -> None:
        if self._assigned is None and not self._subscriptions:
            raise ClientError(f"the {self.kind} has no queues: subscribe or assign first")
        check_timeout(timeout_ms, 0)
        check_integer(count_max, 1, MS_MAX, "count_max")

    def _acknowledge(self) -> None:
        """Mark the messages of earlier polls as consumed. The caller holds the lock."""
        polled, self._last_poll = self._last_poll, []
        own = self._rebalancing.own.values()
        for held in {id(held): held for held in (*polled, *own)}.values():
            held.acknowledged = held.committable()

    def _ready(self) -> int:
        """Return the number of messages that polls may return now."""
        queues = ((each.process_queue, len(each.views)) for each in self._fetched)
        return sum(count for held, count in queues if not (held.dropped or held.rests))

    def _take(self, count_max: int) -> Sequence[MessageView]:
        """Return the next messages of one queue. The caller holds the lock."""
        for fetched in list(self._fetched):
            held = fetched.process_queue
            if held.dropped:
                self._fetched.remove(fetched)
                continue
            if held.rests:
                continue
            if len(fetched.views) <= count_max:
                self._fetched.remove(fetched)
                views = fetched.views
            else:
                views, fetched.views = fetched.views[:count_max], fetched.views[count_max:]
            self._last_poll.append(held)
            if held.done(views, self.settings):
                self._pulling.go_on(held)
            return views
        return ()

    def _take_batch(self, count_max: int) -> Sequence[MessageView]:
        """Return the next messages of all queues. The caller holds the lock."""
        found: list[MessageView] = []
        while len(found) < count_max and (views := self._take(count_max - len(found))):
            found += views
        return found

    def _submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        """Queue the messages of a pull."""
        with self._lock:
            self._fetched.append(_Fetched(process_queue, views))
            self._wake()

    def _record(self, views: Sequence[MessageView], begun_ns: int) -> None:
        """Record the receive of messages as a span, if the application has enabled that."""
        if views and self._spans is not None:
            self._spans.receive(self.group, views, self.message_model.lower(), begun_ns)

    # --- offsets

    def _seeking(self, queue: MessageQueue, offset: int) -> Flow[None]:
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        check_integer(offset, 0, OFFSET_MAX, "offset")
        if queue not in self._rebalancing.own:
            raise ClientError(f"{queue} is not assigned to this consumer")
        first = yield from self._ends.first(queue)
        end = yield from self._ends.end(queue)
        if not first <= offset <= end:
            raise MessageIllegal(f"{queue} has the offsets {first} to {end}, and not {offset}")
        yield from self._rebalancing.restart_at(queue, offset)

    def _seeking_to(
        self, queue: MessageQueue, end: Callable[[MessageQueue], Flow[int]]
    ) -> Flow[None]:
        yield from self._seeking(queue, (yield from end(queue)))

    def _finding_time(self, queue: MessageQueue, time_ms: int) -> Flow[int]:
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        check_time(time_ms, "time_ms")
        return (yield from self._ends.at_time(queue, time_ms))

    def _reading_committed(self, queue: MessageQueue) -> Flow[int | None]:
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        return (yield from self._offsets.stored(queue))

    def _committing(self, offsets: Mapping[MessageQueue, int] | None) -> Flow[None]:
        if offsets is None:
            with self._lock:
                self._acknowledge()
                own = self._rebalancing.own
                offsets = {queue: held.acknowledged for queue, held in own.items()}
        check_instance(offsets, Mapping, "offsets are a dict of queues and offsets")
        check_queues(offsets, "the queues of offsets")
        for offset in offsets.values():
            check_integer(offset, 0, OFFSET_MAX, "an offset")
        for queue, offset in offsets.items():
            yield from self._offsets.commit(queue, offset)
