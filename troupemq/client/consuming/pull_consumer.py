"""PullConsumer: the application polls for messages and controls the offsets.

Messages are prefetched, and `poll` returns those of a queue in order. A message counts as consumed
at the next `poll` after the one that returned it, or at `commit`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Condition
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import check_flag, method_names_checked, names_checked
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.group_member import GroupMember
from troupemq.client.consuming.group_work import GroupTerms
from troupemq.client.consuming.pull_work import (
    BATCH_COUNT_MAX,
    BATCH_WAIT_MS,
    POLL_COUNT_MAX,
    POLL_TIMEOUT_MS,
    PullWork,
)
from troupemq.client.errors import ClientClosed
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import ConsumerSettings
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from pathlib import Path


@partial(names_checked, settings=ConsumerSettings)
class PullConsumer(GroupMember, PullWork):
    """A consumer without a listener: a member of a group (`subscribe`), or with fixed queues.

        with PullConsumer("reports", namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders")
            for message in consumer:
                print(message.body)

    An iteration ends when the consumer stops. A message counts as consumed when the next one is
    requested. `poll` returns several messages of a queue at once, and stops waiting at a time.
    `batches` yields messages of all queues together.

    `assign` sets fixed queues instead of `subscribe`. There are no retries and no dead letters:
    the application handles failures itself, for example with `seek`. One thread calls `poll`; all
    other methods are for any thread.

    With `auto_commit`, offsets are committed every `commit_interval_ms`, when queues are released,
    and at the stop. If an exception ends the `with` block, the messages of the last poll do not
    count as consumed. Without `auto_commit`, only `commit` and `seek` store offsets.
    """

    stop_timeout_s = 10.0

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
        terms = GroupTerms(settings, begin, begin_ms, broadcast, offsets_folder)
        super().__init__(group, namesrv, terms, instance_name, client_ip, credentials, tls)
        self._lock = self._changed = Condition()
        self._spans = spans_of(self.client_id)
        self._build(assign, self._pull_tasks, auto_commit=auto_commit)

    # --- queues

    @method_names_checked
    def subscribe(self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None) -> None:
        """Subscribe to `topic` as a member of the group, as PushConsumer does.

        Raises ClientError after `assign`, else as PushConsumer.
        """
        self._check_may_subscribe()
        super().subscribe(topic, expression, sql=sql)

    def assign(self, queues: Iterable[MessageQueue], expression: str = ALL_TAGS) -> None:
        """Consume exactly these queues, without a rebalance; `expression`: tags, `a || b`.

            consumer.assign(consumer.fetch_queues("Orders")[:1])

        Other consumers may have the same queues. Blocks while it runs. Raises ClientError after
        `subscribe`, and if an offset cannot be read.
        """
        self.check_not_stopped()
        self._client.run(self._assigning(queues, expression))

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of `topic`. Raises RouteNotFound, MessageIllegal."""
        return self._client.run(self._fetching_queues(topic))

    # --- messages

    def poll(
        self, timeout_ms: float = POLL_TIMEOUT_MS, count_max: int = POLL_COUNT_MAX
    ) -> Sequence[MessageView]:
        """Return the next messages of one queue, in order; none after `timeout_ms` without any.

        Raises ClientClosed, and ClientError without a subscription or an assignment.
        """
        self.check_running()
        self._check_poll(timeout_ms, count_max)
        begun_ns = time_ns()
        deadline_s = monotonic() + timeout_ms / 1000
        with self._changed:
            self._acknowledge()
            while not (views := self._take(count_max)) and self._waits(deadline_s):
                pass
        self._record(views, begun_ns)
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

    def batches(
        self, count_max: int = BATCH_COUNT_MAX, wait_ms: float = BATCH_WAIT_MS
    ) -> Iterator[Sequence[MessageView]]:
        """Yield up to `count_max` messages of all queues, until the consumer stops.

        A batch is complete after `wait_ms` as well, if it has a message then. Those of a queue are
        in order. A batch counts as consumed when the next one is requested. Raises as `poll`.
        """
        self.check_running()
        self._check_poll(wait_ms, count_max)
        while self.is_running:
            begun_ns = time_ns()
            deadline_s = monotonic() + wait_ms / 1000
            with self._changed:
                self._acknowledge()
                while self._ready() < count_max and self._waits(deadline_s):
                    pass
                views = self._take_batch(count_max)
                if not views:  # wait_ms may be 0
                    self._waits(monotonic() + POLL_TIMEOUT_MS / 1000)
            self._record(views, begun_ns)
            if views:
                yield views

    def _waits(self, deadline_s: float) -> bool:
        """Wait for a change; return False at the deadline or a stop. The caller holds the lock."""
        left_s = deadline_s - monotonic()
        if left_s <= 0 or not self.is_running:
            return False
        self._changed.wait(left_s)
        return True

    def _wake(self) -> None:
        self._changed.notify_all()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Exclude queues from polls until `resume`; queues that are not assigned are ignored."""
        self._rest(queues, True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Include paused queues in polls again."""
        self._rest(queues, False)

    # --- offsets

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset` with the next poll, and store the offset at once.

        Blocks. Raises ClientError for a queue that is not assigned, MessageIllegal for an offset
        outside the queue's min and max offset.
        """
        self.check_running()
        self._client.run(self._seeking(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue `queue` at its first message. Raises as `seek`."""
        self.check_running()
        self._client.run(self._seeking_to(queue, self._ends.first))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue `queue` behind its last message. Raises as `seek`."""
        self.check_running()
        self._client.run(self._seeking_to(queue, self._ends.end))

    def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at or after `time_ms` (since 1970).

        If all are older, TroupeMQ answers the max offset, 4.9.7 that of the last message. Blocks;
        raises ClientError.
        """
        return self._client.run(self._finding_time(queue, time_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of `queue`, or None. Blocks; raises ClientError."""
        return self._client.run(self._reading_committed(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store `offsets`, or those behind all polled messages, and wait for the confirmations.

            consumer.commit({queue: 17})

        Raises ClientError.
        """
        self.check_running()
        self._client.run(self._committing(offsets))

    # --- within

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with self._changed:
                self._acknowledge()
        self.stop()

    def _prepare(self) -> None:
        super()._prepare()
        try:
            self._client.run(self._taking_assigned())
        except BaseException:
            self._forget_member()  # the start may be repeated
            raise

    def _finish(self, deadline_s: float) -> int:
        with self._changed:
            self._wake()
        return super()._finish(deadline_s)
