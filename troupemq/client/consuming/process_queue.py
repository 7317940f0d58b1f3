"""Messages pulled from one queue and not consumed yet; it knows how far the group has come."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Condition
from time import monotonic

from protocol.bodies_client import ProcessQueueInfo
from troupemq.client.connection.client import now_ms
from troupemq.client.consuming.consumer_settings import MIB, ConsumerSettings
from troupemq.client.message import MessageQueue, MessageView


class ProcessQueue:
    """Filled by the pulling thread, emptied by the consuming ones.

    `committable` never passes a message that is not consumed, whatever order they finish in.
    """

    def __init__(
        self, queue: MessageQueue, offset: int, now_s: Callable[[], float] = monotonic
    ) -> None:
        """`offset` is where the group goes on: the first message not consumed yet."""
        self.queue = queue
        self.pull_offset = offset
        """The next message to pull; the pulling thread's own."""

        self.broker_id = 0
        """Which broker of the name to pull from; the pulling thread's own."""

        self.pull_is_under_way = False
        """The pulling thread's own."""

        self.rests = False
        """Whether the application has paused it (pull consumers)."""

        self.acknowledged = offset
        """Where it is safe to go on (pull consumers): what was before had been handed out when the
        application asked for more."""

        self.locked_at_s: float | None = None
        """When the broker last said that it is ours (orderly consumers)."""

        self.last_lock_ms = 0
        self.last_pull_ms = now_ms()
        self.last_consume_ms = now_ms()
        self.unlock_tries = 0
        self._now_s = now_s
        self._changed = Condition()
        self._waiting: OrderedDict[int, MessageView] = OrderedDict()
        self._begun_s: dict[int, float] = {}
        self._waiting_bytes = 0
        self._last_offset = offset
        self._come_to = offset
        self._running = 0
        self._dropped = False
        self._paused = False
        self._claimed = False

    @property
    def dropped(self) -> bool:
        """Whether the queue is another consumer's now, or the consumer stops."""
        return self._dropped

    # --- what comes

    def put(self, views: Sequence[MessageView], next_offset: int) -> None:
        """Adds what a pull brought; everything before `next_offset` has been seen with it."""
        with self._changed:
            for view in views:
                self._waiting[view.queue_offset] = view
                self._waiting_bytes += view.stored_bytes
            if views:
                self._last_offset = views[-1].queue_offset
            self._come_to = next_offset

    def move_to(self, offset: int) -> None:
        """Goes on at `offset`, before or behind: the queue does not hold what was wanted."""
        with self._changed:
            self._waiting.clear()
            self._begun_s.clear()
            self._waiting_bytes = 0
            self._come_to = offset

    def pause_if_full(self, settings: ConsumerSettings, *, spans: bool = True) -> bool:
        """True if too much waits, or lies too far apart; then `done` says when the next pull may
        go."""
        with self._changed:
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
        """Before the listener is called with these; False means it must not be."""
        with self._changed:
            if self._dropped:
                return False
            self._running += 1
            now_s = self._now_s()
            for view in views:
                self._begun_s[view.queue_offset] = now_s
            return True

    def end(self) -> None:
        """After the listener's call, and what followed from it, is over."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def done(self, views: Sequence[MessageView], settings: ConsumerSettings) -> bool:
        """These are consumed. True if the queue was full and is half empty again: pull."""
        self.last_consume_ms = now_ms()
        with self._changed:
            for view in views:
                if self._waiting.get(view.queue_offset) is view:
                    del self._waiting[view.queue_offset]
                    self._waiting_bytes -= view.stored_bytes
                    self._begun_s.pop(view.queue_offset, None)
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
        """Whether this message is still to be consumed."""
        return self._waiting.get(view.queue_offset) is view

    def overdue(self, timeout_ms: float) -> MessageView | None:
        """The first message, if a listener has had it for longer than that: it holds the offset.
        None if that is not so."""
        with self._changed:
            for offset, view in self._waiting.items():
                begun_s = self._begun_s.get(offset)
                late = begun_s is not None and (self._now_s() - begun_s) * 1000 > timeout_ms
                return view if late else None
            return None

    # --- in order

    def claim(self) -> bool:
        """True if messages wait and nobody consumes them in order yet: whoever asked does now."""
        with self._changed:
            if self._claimed or not self._waiting:
                return False
            self._claimed = True
            return True

    def first(self, count: int) -> Sequence[MessageView]:
        """The first messages that wait; without any the claim is over."""
        with self._changed:
            views = [view for view, _ in zip(self._waiting.values(), range(count), strict=False)]
            self._claimed = bool(views)
            return views

    def release(self) -> None:
        """Gives the claim back."""
        with self._changed:
            self._claimed = False

    def lock_is_valid(self, valid_ms: float) -> bool:
        """Whether the broker said less than that ago that the queue is ours."""
        locked_at_s = self.locked_at_s
        return locked_at_s is not None and (self._now_s() - locked_at_s) * 1000 <= valid_ms

    def set_locked(self, is_ours: bool) -> None:
        """The broker's word on the lock."""
        self.locked_at_s = self._now_s() if is_ours else None
        if is_ours:
            self.last_lock_ms = now_ms()

    # --- how far

    def committable(self) -> int:
        """The group need not see anything before this offset again."""
        with self._changed:
            return next(iter(self._waiting), self._come_to)

    def drop(self, timeout_s: float) -> bool:
        """No more listener calls from now on; waits for those under way. False if they take
        longer: what they consume will be consumed again by whoever has the queue next."""
        with self._changed:
            self._dropped = True
            return self._changed.wait_for(lambda: self._running == 0, timeout_s)

    def info(self) -> ProcessQueueInfo:
        """What administrators see of it."""
        with self._changed:
            first = next(iter(self._waiting), 0)
            return ProcessQueueInfo(
                commit_offset=first if self._waiting else self._come_to,
                cached_msg_min_offset=first,
                cached_msg_max_offset=self._last_offset if self._waiting else 0,
                cached_msg_count=len(self._waiting),
                cached_msg_size_in_mi_b=self._waiting_bytes // MIB,
                transaction_msg_min_offset=first if self._claimed and self._begun_s else 0,
                transaction_msg_max_offset=max(self._begun_s, default=0) if self._claimed else 0,
                transaction_msg_count=len(self._begun_s) if self._claimed else 0,
                locked=self.locked_at_s is not None,
                try_unlock_times=self.unlock_tries,
                last_lock_timestamp=self.last_lock_ms,
                droped=self._dropped,
                last_pull_timestamp=self.last_pull_ms,
                last_consume_timestamp=self.last_consume_ms,
            )
