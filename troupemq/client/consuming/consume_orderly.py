"""Orderly listener calls: one at a time per queue, the next only after a success.

A queue is consumed while the broker's lock on it is valid. A failed message is retried here while
its queue pauses. At the retry limit it is sent to the retry topic, where the broker makes it a
dead letter, and the queue continues.

Source: client/impl/consumer/ConsumeMessageOrderlyService.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from troupemq.client.connection.calls import Flow
from troupemq.client.consuming.consume import Consuming, Handle, ListenerFlow
from troupemq.client.consuming.listener import Outcome, RetryLater
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.queue_locks import MemberLocks
from troupemq.client.message import MessageView

REST_MS_MIN = 10
REST_MS_MAX = 30_000
LOCK_AGAIN_MS = 3000


@dataclass(eq=False)
class OrderlyConsuming(Consuming):
    """Consumes each queue in the order of its messages, with one call at a time."""

    locks: MemberLocks | None
    """None for broadcasting."""
    now_s: Callable[[], float] = monotonic

    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        if process_queue.claim():
            self._go_on(process_queue)

    def _go_on(self, process_queue: ProcessQueue) -> None:
        self.listening.run(self._run(process_queue))

    def _later(self, process_queue: ProcessQueue, delay_ms: float) -> None:
        self.tasks.later(delay_ms, lambda: self._resumed(process_queue))

    def _resumed(self, process_queue: ProcessQueue) -> Flow[None]:
        yield from ()  # a flow, though it waits for nothing
        self._go_on(process_queue)

    def _run(self, process_queue: ProcessQueue) -> ListenerFlow[None]:
        """Consume the claimed queue until it is empty or fails, or other queues are due."""
        begun_s = self.now_s()
        settings = self.settings
        while not process_queue.dropped:
            if self.locks is not None and not process_queue.lock_is_valid(settings.lock_valid_ms):
                self.tasks.later(REST_MS_MIN, lambda: self._lock_again(process_queue))
                return
            if (self.now_s() - begun_s) * 1000 > settings.continuous_ms:
                self._go_on(process_queue)  # behind the queues that wait for a thread
                return
            views = process_queue.first(settings.consume_batch_size)
            if not views:
                return
            rest_ms = yield from self._consume(process_queue, views)
            if rest_ms is not None:
                self._later(process_queue, rest_ms)
                return
        process_queue.release()

    def _lock_again(self, process_queue: ProcessQueue) -> Flow[None]:
        assert self.locks is not None
        if not process_queue.dropped:
            ours = yield from self.locks.renew([process_queue])
            self._later(process_queue, REST_MS_MIN if ours else LOCK_AGAIN_MS)

    def _consume(
        self, process_queue: ProcessQueue, views: Sequence[MessageView]
    ) -> ListenerFlow[float | None]:
        """Call the listener; return the queue's pause in ms, or None if it continues."""
        if not process_queue.begin(views):
            return None  # the queue is dropped: the loop ends
        try:
            outcome, took_ms = yield Handle(views)
            good, bad = outcome.split(views)
            self._count(process_queue, good, bad, took_ms)
            if outcome.failed is None:
                self._done(process_queue, views)
                return None
            first_bad = next(
                (n for n, view in enumerate(views) if bad and view is bad[0]), len(views)
            )
            self._done(process_queue, views[:first_bad])
            rest = views[first_bad:]
            return (yield from self._failed(process_queue, rest, outcome, outcome.failed))
        finally:
            process_queue.end()

    def _failed(
        self,
        process_queue: ProcessQueue,
        views: Sequence[MessageView],
        outcome: Outcome,
        failed: RetryLater,
    ) -> Flow[float | None]:
        rest_ms = self.settings.suspend_queue_ms if failed.suspend_ms is None else failed.suspend_ms
        rest_ms = min(max(rest_ms, REST_MS_MIN), REST_MS_MAX)
        if views:
            next_try = f"in {rest_ms:g} ms, its queue waits"
            if self._is_at_its_limit(views[0]):
                next_try = "none, it becomes a dead letter"
            self._log_failure(views, outcome, next_try)
        given_up: list[MessageView] = []
        for view in views:
            if (yield from self._gives_up(view, outcome.reason)):
                given_up.append(view)
        self._done(process_queue, given_up)
        return None if len(given_up) == len(views) else rest_ms

    def _is_at_its_limit(self, view: MessageView) -> bool:
        back = self.sending_back
        return back is not None and view.reconsume_times >= back.retries_max

    def _gives_up(self, view: MessageView, reason: str) -> Flow[bool]:
        """Return whether the broker took the message as a dead letter; else count the try."""
        back = self.sending_back
        if (
            back is not None
            and self._is_at_its_limit(view)
            and (yield from back.send_again(view, view.reconsume_times, reason))
        ):
            return True
        view.reconsume_times += 1
        return False
