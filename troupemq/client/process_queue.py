"""What was pulled from one queue and is not consumed yet; it knows how far the group has come."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Condition

from troupemq.client.message import MessageQueue, MessageView


class ProcessQueue:
    """Filled by the pulling thread, emptied by the consuming ones.

    `committable` never passes a message that is not consumed, whatever order they finish in.
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        """`offset` is where the group goes on: the first message not consumed yet."""
        self.queue = queue
        self.pull_offset = offset
        """The next message to pull; the pulling thread's own."""

        self.broker_id = 0
        """Which broker of the name to pull from; the pulling thread's own."""

        self._changed = Condition()
        self._waiting: OrderedDict[int, int] = OrderedDict()  # queue offset → bytes
        self._waiting_bytes = 0
        self._come_to = offset
        self._running = 0
        self._dropped = False
        self._paused = False

    @property
    def dropped(self) -> bool:
        """Whether the queue is another consumer's now, or the consumer stops."""
        return self._dropped

    def put(self, views: Sequence[MessageView], next_offset: int) -> None:
        """Adds what a pull brought; everything before `next_offset` has been seen with it."""
        with self._changed:
            for view in views:
                self._waiting[view.queue_offset] = view.stored_bytes
                self._waiting_bytes += view.stored_bytes
            self._come_to = next_offset

    def move_to(self, offset: int) -> None:
        """Goes on at `offset`, before or behind: the queue does not hold what was wanted."""
        with self._changed:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._come_to = offset

    def pause_if_full(self, count_max: int, bytes_max: int) -> bool:
        """True if too much waits; then `done` says when the next pull may go."""
        with self._changed:
            self._paused = len(self._waiting) >= count_max or self._waiting_bytes >= bytes_max
            return self._paused

    def begin(self) -> bool:
        """Before the listener is called; False means it must not be."""
        with self._changed:
            if self._dropped:
                return False
            self._running += 1
            return True

    def end(self) -> None:
        """After the listener's call, and what followed from it, is over."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def done(self, offsets: Iterable[int], count_max: int, bytes_max: int) -> bool:
        """These are consumed. True if the queue was full and is half empty again: pull."""
        with self._changed:
            for offset in offsets:
                self._waiting_bytes -= self._waiting.pop(offset, 0)
            if not self._paused:
                return False
            roomy = 2 * len(self._waiting) <= count_max and 2 * self._waiting_bytes <= bytes_max
            self._paused = not roomy
            return roomy

    def committable(self) -> int:
        """The group need not see anything before this offset again."""
        with self._changed:
            return next(iter(self._waiting), self._come_to)

    def waiting_count(self) -> int:
        """Messages pulled and not consumed."""
        return len(self._waiting)

    def drop(self, timeout_s: float) -> bool:
        """No more listener calls from now on; waits for those under way. False if they take
        longer: what they consume will be consumed again by whoever has the queue next."""
        with self._changed:
            self._dropped = True
            return self._changed.wait_for(lambda: self._running == 0, timeout_s)
