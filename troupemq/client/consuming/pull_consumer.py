"""PullConsumer: the application polls for messages and controls the offsets.

Messages are prefetched, and `poll` returns those of a queue in order. A message counts as consumed
at the next `poll` after the one that returned it, or at `commit`.

Source: client/impl/consumer/DefaultLitePullConsumerImpl.java.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import (
    MS_MAX,
    check_flag,
    check_instance,
    check_integer,
    check_time,
    check_timeout,
    method_names_checked,
    names_checked,
)
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.group_member import GroupMember
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.errors import ClientClosed, ClientError, MessageIllegal
from troupemq.client.message import MessageQueue, MessageView, check_queues, check_topic
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from pathlib import Path

POLL_TIMEOUT_MS = 5000
POLL_COUNT_MAX = 32
OFFSET_MAX = (1 << 63) - 1


@dataclass(slots=True)
class _Fetched:
    process_queue: ProcessQueue
    views: Sequence[MessageView]


@partial(names_checked, settings=ConsumerSettings)
class PullConsumer(GroupMember):
    """A consumer without a listener: a member of a group (`subscribe`), or with fixed queues.

        with PullConsumer("reports", namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders")
            for message in consumer:
                print(message.body)

    An iteration ends when the consumer stops. A message counts as consumed when the next one is
    requested. `poll` returns several messages of a queue at once, and stops waiting at a time.

    `assign` sets fixed queues instead of `subscribe`. There are no retries and no dead letters:
    the application handles failures itself, for example with `seek`. One thread calls `poll`; all
    other methods are for any thread.

    With `auto_commit`, offsets are committed every `commit_interval_ms`, when queues are released,
    and at the stop. If an exception ends the `with` block, the messages of the last poll do not
    count as consumed. Without `auto_commit`, only `commit` and `seek` store offsets.
    """

    stop_timeout_s = 10.0
    consume_type = "CONSUME_ACTIVELY"

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        auto_commit: bool = True,
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
        """Take the arguments of PushConsumer; settings about listeners have no effect."""
        check_assignment(assign)
        check_flag(auto_commit, "auto_commit")
        settings = settings or ConsumerSettings()
        super().__init__(
            group,
            namesrv,
            settings,
            begin,
            begin_ms,
            broadcast,
            instance_name,
            client_ip,
            offsets_folder,
            credentials,
            tls,
        )
        self.auto_commit = auto_commit
        self._fetched: deque[_Fetched] = deque()
        self._changed = Condition()
        self._last_poll: list[ProcessQueue] = []
        self._spans = spans_of(self.client_id)
        self._assigned: tuple[MessageQueue, ...] | None = None
        self._pulling = Pulling(
            self._client,
            self._pull_tasks,
            group,
            settings,
            self._subscriptions,
            self._statistics,
            self._submit,
            orderly=True,
            tells_subscription=True,
        )
        self._rebalancing = Rebalancing(
            self._client,
            group,
            self._offsets,
            None if broadcast else assign,
            settings,
            self._pulling.go_on,
            position=lambda held: held.acknowledged if self.auto_commit else None,
        )

    # --- queues

    @method_names_checked
    def subscribe(self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None) -> None:
        """Subscribe to `topic` as a member of the group, as PushConsumer does.

        Raises ClientError after `assign`, else as PushConsumer.
        """
        if self._assigned is not None:
            raise ClientError("this consumer has assigned queues: it cannot subscribe")
        super().subscribe(topic, expression, sql=sql)

    def assign(self, queues: Iterable[MessageQueue], expression: str = ALL_TAGS) -> None:
        """Consume exactly these queues, without a rebalance; `expression`: tags, `a || b`.

            consumer.assign(consumer.fetch_queues("Orders")[:1])

        Other consumers may have the same queues. Blocks while it runs. Raises ClientError after
        `subscribe`, and if an offset cannot be read.
        """
        if self._subscriptions and self._assigned is None:
            raise ClientError("this consumer has subscribed: the group assigns its queues")
        wanted = check_queues(queues, "the queues to assign")
        self._assigned = ()
        for topic in {queue.topic for queue in wanted}:
            super().subscribe(topic, expression)
        for topic in self._subscriptions.keys() - {queue.topic for queue in wanted}:
            del self._subscriptions[topic]
        self._assigned = wanted
        if self.is_running:
            self._take_assigned()

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of `topic`. Raises RouteNotFound, MessageIllegal."""
        check_topic(topic)
        return tuple(sorted(self._client.routes.look_up(topic).subscribe_queues))

    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are assigned now."""
        return tuple(sorted(self._rebalancing.own))

    # --- messages

    def poll(
        self, timeout_ms: float = POLL_TIMEOUT_MS, count_max: int = POLL_COUNT_MAX
    ) -> Sequence[MessageView]:
        """Return the next messages of one queue, in order; none after `timeout_ms` without any.

        Raises ClientClosed, and ClientError without a subscription or an assignment.
        """
        self.check_running()
        if self._assigned is None and not self._subscriptions:
            raise ClientError(f"the {self.kind} has no queues: subscribe or assign first")
        check_timeout(timeout_ms, 0)
        check_integer(count_max, 1, MS_MAX, "count_max")
        begun_ns = time_ns()
        views = self._next_views(monotonic() + timeout_ms / 1000, count_max)
        if views and self._spans is not None:
            self._spans.receive(self.group, views, self.message_model.lower(), begun_ns)
        return views

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages until the consumer stops. Raises as `poll`."""
        self.check_running()
        while True:
            try:
                views = self.poll(count_max=1)
            except ClientClosed:
                return
            yield from views

    def _next_views(self, deadline_s: float, count_max: int) -> Sequence[MessageView]:
        with self._changed:
            self._acknowledge()
            while True:
                views = self._take(count_max)
                left_s = deadline_s - monotonic()
                if views or left_s <= 0 or not self.is_running:
                    return views
                self._changed.wait(left_s)

    def _acknowledge(self) -> None:
        """Mark the messages of earlier polls as consumed. The caller holds the lock."""
        polled, self._last_poll = self._last_poll, []
        own = self._rebalancing.own.values()
        for held in {id(held): held for held in (*polled, *own)}.values():
            held.acknowledged = held.committable()

    def _take(self, count_max: int) -> Sequence[MessageView]:
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

    def _submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        """Queue the messages of a pull, on the pulling thread."""
        with self._changed:
            self._fetched.append(_Fetched(process_queue, views))
            self._changed.notify()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Exclude queues from polls until `resume`; queues that are not assigned are ignored."""
        self._rest(queues, True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Include paused queues in polls again."""
        self._rest(queues, False)

    def _rest(self, queues: Iterable[MessageQueue], rests: bool) -> None:
        queues = check_queues(queues, "the queues to pause or resume")
        own = self._rebalancing.own
        with self._changed:
            for held in (own[queue] for queue in queues if queue in own):
                held.rests = rests
                if not rests:
                    self._pulling.go_on(held)
            self._changed.notify_all()

    # --- offsets

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset` with the next poll, and store the offset at once.

        Blocks. Raises ClientError for a queue that is not assigned, MessageIllegal for an offset
        outside the queue's min and max offset.
        """
        self.check_running()
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        check_integer(offset, 0, OFFSET_MAX, "offset")
        if queue not in self._rebalancing.own:
            raise ClientError(f"{queue} is not assigned to this consumer")
        run = self._client.run
        first, end = run(self._ends.first(queue)), run(self._ends.end(queue))
        if not first <= offset <= end:
            raise MessageIllegal(f"{queue} has the offsets {first} to {end}, and not {offset}")
        run(self._rebalancing.restart_at(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue `queue` at its first message. Raises as `seek`."""
        self.seek(queue, self._client.run(self._ends.first(queue)))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue `queue` behind its last message. Raises as `seek`."""
        self.seek(queue, self._client.run(self._ends.end(queue)))

    def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at or after `time_ms` (since 1970).

        Return that of the last message if all are older. Blocks; raises ClientError.
        """
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        check_time(time_ms, "time_ms")
        return self._client.run(self._ends.at_time(queue, time_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of `queue`, or None. Blocks; raises ClientError."""
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        return self._client.run(self._offsets.stored(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store `offsets`, or those behind all polled messages, and wait for the confirmations.

            consumer.commit({queue: 17})

        Raises ClientError.
        """
        self.check_running()
        if offsets is None:
            with self._changed:
                self._acknowledge()
                own = self._rebalancing.own
                offsets = {queue: held.acknowledged for queue, held in own.items()}
        check_instance(offsets, Mapping, "offsets are a dict of queues and offsets")
        check_queues(offsets, "the queues of offsets")
        for offset in offsets.values():
            check_integer(offset, 0, OFFSET_MAX, "an offset")
        for queue, offset in offsets.items():
            self._client.run(self._offsets.commit(queue, offset))

    # --- within

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with self._changed:
                self._acknowledge()
        self.stop()

    def _begin(self) -> None:
        super()._begin()
        if self._assigned:
            self._take_assigned()

    def _take_assigned(self) -> None:
        queues = self._assigned or ()
        for topic in {queue.topic for queue in queues}:
            self._client.routes.get(topic)
        self._client.run(self._rebalancing.assign(queues))

    def _rebalance_topics(self) -> Sequence[str] | None:
        return tuple(self._subscriptions) if self._assigned is None else None

    def _finish(self, deadline_s: float) -> None:
        with self._changed:
            self._changed.notify_all()
        super()._finish(deadline_s)
