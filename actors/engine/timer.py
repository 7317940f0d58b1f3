"""One heap of due times for all actors of a system, which only sends messages.

Times are milliseconds of the monotonic clock. A timer belongs to one incarnation of an actor and is
dropped with it.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.engine.actor_address import ActorAddress

CANCELLED_MAX = 256
"""Cancelled timers that may stay in the heap; more are removed once they exceed half of it."""


class TimerHandle:
    """A message to be sent to one actor at a due time, once or repeatedly."""

    __slots__ = (
        "_timers",
        "address",
        "cancelled",
        "due_ms",
        "incarnation",
        "interval_ms",
        "message",
    )

    def __init__(
        self, address: "ActorAddress", message: object, due_ms: float, interval_ms: float = 0
    ) -> None:
        self.address = address
        self.incarnation = address.incarnation
        self.message: object = message
        self.due_ms = due_ms
        self.interval_ms = interval_ms
        self.cancelled = False
        self._timers: Timers | None = None

    def cancel(self) -> None:
        """Cancel the timer; a message that is already on its way still arrives. Any thread."""
        if self.cancelled:
            return
        self.cancelled = True
        self.message = None  # frees what the message refers to now, not at the due time
        if self._timers is not None:
            self._timers.cancelled_count += 1

    def armed_in(self, timers: "Timers") -> None:
        self._timers = timers

    def disarmed(self) -> None:
        self._timers = None


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._serial = count()
        self.cancelled_count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, timer: TimerHandle) -> None:
        if timer.cancelled:
            return
        if self.cancelled_count > CANCELLED_MAX and self.cancelled_count * 2 > len(self._heap):
            self._clean()
        timer.armed_in(self)
        heappush(self._heap, (timer.due_ms, next(self._serial), timer))

    def next_due_ms(self) -> float | None:
        """Return when the next timer is due; None if no timer is armed."""
        heap = self._heap
        while heap and heap[0][2].cancelled:
            self._forget(heappop(heap)[2])
        return heap[0][0] if heap else None

    def tell_due(self, now_ms: float) -> int:
        """Send all due messages; return their number."""
        told = 0
        due: list[TimerHandle] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due.append(heappop(heap)[2])
        for timer in due:
            message = timer.message  # read before `cancelled`: another thread may cancel it now
            if timer.cancelled:
                self._forget(timer)
                continue
            timer.disarmed()
            if timer.incarnation != timer.address.incarnation or not timer.address.is_up:
                continue
            timer.address.tell(message)
            told += 1
            if timer.interval_ms:
                # Send one message for all missed ticks; keep the period.
                missed = (now_ms - timer.due_ms) // timer.interval_ms
                timer.due_ms += timer.interval_ms * (missed + 1)
                self.arm(timer)
        return told

    def clear(self) -> None:
        self._heap.clear()
        self.cancelled_count = 0

    def _forget(self, timer: TimerHandle) -> None:
        timer.disarmed()
        self.cancelled_count = max(0, self.cancelled_count - 1)

    def _clean(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].cancelled]
        heapify(self._heap)
        self.cancelled_count = 0
