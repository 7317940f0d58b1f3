"""ProcessQueue: the pulled and not yet consumed messages of one queue, and the consumer offset."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from troupemq.client.connection.client import now_ms
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import MIB, ConsumerSettings

if TYPE_CHECKING:
    from protocol.bodies_client import MessageInHand, ProcessQueueInfo

IN_HAND_MAX = 32
"""Limit of messages in listener calls that a queue reports."""


class ProcessQueue:
    """Pulled messages of one queue; the pulling thread adds, the consuming threads remove them.

    `committable` never passes an unconsumed message, in whichever order messages are consumed.
    No method waits, so that threads and event loops may call them.
    """

    def __init__(
        self, queue: MessageQueue, offset: int, now_s: Callable[[], float] = monotonic
    ) -> None:
        """Begin at `offset`, the group's consumer offset."""
        self.queue = queue
        self.pull_offset = offset
        """Offset of the next pull; only for the pulling thread."""

        self.broker_id = 0
        """Id of the broker to pull from; only for the pulling thread."""

        self.pull_is_under_way = False
        """Whether a pull is open; only for the pulling thread."""

        self.was_moved = False
        """Whether the last answer had moved the offset; only for the pulling thread."""

        self.rests = False
        """Whether the application has paused the queue (pull consumers)."""

        self.acknowledged = offset
        """Offset to commit (pull consumers): earlier messages were returned by earlier polls."""

        self.locked_at_s: float | None = None
        """Monotonic time of the last lock or renewal; None without a lock (orderly consumers)."""

        self.last_lock_ms = 0
        self.last_pull_ms = now_ms()
        self.last_consume_ms = now_ms()
        self.unlock_tries = 0
        self._now_s = now_s
        self._lock = Lock()
        self._when_idle: list[Callable[[], object]] = []
        self._waiting: OrderedDict[int, MessageView] = OrderedDict()
        self._begun: dict[int, tuple[MessageView, float]] = {}
        self._last_finished: MessageView | None = None
        self._waiting_bytes = 0
        self._last_offset = offset
        self._come_to = offset
        self._running = 0
        self._dropped = False
        self._paused = False
        self._claimed = False

    @property
    def dropped(self) -> bool:
        """Whether the queue is released, or the consumer stops."""
        return self._dropped

    @property
    def running(self) -> int:
        """Number of listener calls that are running."""
        return self._running

    # --- pulled messages

    def put(self, views: Sequence[MessageView], next_offset: int) -> None:
        """Add the messages of a pull, which covers all offsets before `next_offset`."""
        with self._lock:
            for view in views:
                self._waiting[view.queue_offset] = view
                self._waiting_bytes += view.stored_bytes
            if views:
                self._last_offset = views[-1].queue_offset
            self._come_to = next_offset

    def move_to(self, offset: int) -> None:
        """Drop all messages and continue at `offset`, as the queue lacks the pulled offset."""
        with self._lock:
            self._waiting.clear()
            self._begun.clear()
            self._waiting_bytes = 0
            self._come_to = offset

    def pause_if_full(self, settings: ConsumerSettings, *, spans: bool = True) -> bool:
        """Return whether a limit is reached (messages, bytes, offsets); `done` ends the pause."""
        with self._lock:
            self._paused = (
                len(self._waiting) >= settings.queue_count_max
                or self._waiting_bytes >= settings.queue_bytes_max
                or (spans and self._span() > settings.queue_span_max)
            )
            return self._paused

    def _span(self) -> int:
        return self._last_offset - next(iter(self._waiting)) if self._waiting else 0

    # --- listener calls

    def begin(self, views: Sequence[MessageView] = ()) -> bool:
        """Register a listener call; return False if the queue is dropped: do not call then."""
        with self._lock:
            if self._dropped:
                return False
            self._running += 1
            now_s = self._now_s()
            for view in views:
                self._begun[view.queue_offset] = view, now_s
            return True

    def end(self) -> None:
        """Unregister a listener call after its result is handled."""
        with self._lock:
            self._running -= 1
            if self._running or not self._when_idle:
                return
            called, self._when_idle = self._when_idle, []
        for each in called:
            each()

    def done(
        self, views: Sequence[MessageView], settings: ConsumerSettings, *, in_call: bool = False
    ) -> bool:
        """Remove consumed messages; return whether a full queue has room for pulls again.

        `in_call`: they are returned to the broker, and their listener calls still run.
        """
        if not in_call:
            self.last_consume_ms = now_ms()
        with self._lock:
            if views and not in_call:
                self._last_finished = views[-1]
            for view in views:
                if not in_call:
                    self._begun.pop(view.queue_offset, None)
                if self._waiting.get(view.queue_offset) is view:
                    del self._waiting[view.queue_offset]
                    self._waiting_bytes -= view.stored_bytes
            if not self._paused:
                return False
            roomy = (
                2 * len(self._waiting) <= settings.queue_count_max
                and 2 * self._waiting_bytes <= settings.queue_bytes_max
                and self._span() <= settings.queue_span_max
            )
            self._paused = not roomy
            return roomy

    def holds(self, view: MessageView) -> bool:
        return self._waiting.get(view.queue_offset) is view

    def overdue(self, timeout_ms: float) -> MessageView | None:
        """Return the first message, which holds the offset, if its call exceeds `timeout_ms`."""
        with self._lock:
            for offset, view in self._waiting.items():
                _, begun_s = self._begun.get(offset, (None, self._now_s()))
                return view if (self._now_s() - begun_s) * 1000 > timeout_ms else None
            return None

    # --- orderly consuming

    def claim(self) -> bool:
        """Claim a queue with messages for one orderly task; return whether that succeeded."""
        with self._lock:
            if self._claimed or not self._waiting:
                return False
            self._claimed = True
            return True

    def first(self, count: int) -> Sequence[MessageView]:
        """Return up to `count` first messages; without any, end the claim."""
        with self._lock:
            views = [view for view, _ in zip(self._waiting.values(), range(count), strict=False)]
            self._claimed = bool(views)
            return views

    def release(self) -> None:
        with self._lock:
            self._claimed = False

    def lock_is_valid(self, valid_ms: float) -> bool:
        """Return whether the lock was confirmed at most `valid_ms` ago."""
        locked_at_s = self.locked_at_s
        return locked_at_s is not None and (self._now_s() - locked_at_s) * 1000 <= valid_ms

    def set_locked(self, is_ours: bool) -> None:
        self.locked_at_s = self._now_s() if is_ours else None
        if is_ours:
            self.last_lock_ms = now_ms()

    # --- consumer offset

    def committable(self) -> int:
        """Return the consumer offset: all messages before it are consumed."""
        with self._lock:
            return next(iter(self._waiting), self._come_to)

    def drop(self) -> bool:
        """Allow no more listener calls; return whether none is running.

        The next owner of the queue consumes the messages of running calls again.
        """
        with self._lock:
            self._dropped = True
            return self._running == 0

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call `call` once, as soon as no listener call is running."""
        with self._lock:
            if self._running:
                self._when_idle.append(call)
                return
        call()

    def info(self) -> "ProcessQueueInfo":
        from protocol.bodies_client import ProcessQueueInfo

        with self._lock:
            first, last = next(iter(self._waiting), 0), self._last_finished
            return ProcessQueueInfo(
                commit_offset=first if self._waiting else self._come_to,
                cached_msg_min_offset=first,
                cached_msg_max_offset=self._last_offset if self._waiting else 0,
                cached_msg_count=len(self._waiting),
                cached_msg_size_in_mi_b=self._waiting_bytes // MIB,
                transaction_msg_min_offset=first if self._claimed and self._begun else 0,
                transaction_msg_max_offset=max(self._begun, default=0) if self._claimed else 0,
                transaction_msg_count=len(self._begun) if self._claimed else 0,
                locked=self.locked_at_s is not None,
                try_unlock_times=self.unlock_tries,
                last_lock_timestamp=self.last_lock_ms,
                droped=self._dropped,
                last_pull_timestamp=self.last_pull_ms,
                last_consume_timestamp=self.last_consume_ms,
                last_consumed_msg_id=None if last is None else last.message_id,
                last_consumed_offset=-1 if last is None else last.queue_offset,
                in_hand=self._in_hand(),
            )

    def _in_hand(self) -> "list[MessageInHand]":
        from protocol.bodies_client import MessageInHand

        wall_ms, now_s = now_ms(), self._now_s()
        return [
            MessageInHand(
                view.message_id,
                offset,
                wall_ms - round((now_s - begun_s) * 1000),
                view.reconsume_times,
            )
            for offset, (view, begun_s) in sorted(self._begun.items())[:IN_HAND_MAX]
        ]
