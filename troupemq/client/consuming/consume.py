"""Concurrent listener calls, with a few messages each.

A failed message returns to the broker, which delivers it later through the group's retry topic.
If the broker does not accept it, the client keeps it and retries. A broadcasting consumer has no
retries: it drops a failed message with a warning.

The listener calls are flows (connection/calls.py). They yield a `Handle` for the call itself. A
runner drives them: a pool of threads (consumer.py), or the tasks of an event loop.

Source: client/impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from troupemq.client.connection.calls import Flow, FlowTasks, Value, Wanted
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.consumer_statistics import ConsumerStatistics
from troupemq.client.consuming.listener import Outcome, RetryLater
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.sending_back import SendingBack
from troupemq.client.errors import ResultUnknown
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView

log = client_logger(__name__)

OVERDUE_LEVEL = 3
"""Delay level of a message with an overdue listener call."""

OVERDUE_MAX = 16
"""Limit of overdue messages returned per queue and round."""

NAMED_MAX = 5
"""Limit of messages that the log line of a failed call names."""


@dataclass(slots=True)
class Handle:
    """Call the listener; receive its Outcome, and the ms that it took."""

    views: Sequence[MessageView]


ListenerFlow: TypeAlias = Generator[Wanted | Handle, Any, Value]


class ListenerRunner(Protocol):
    """Runner of flows with listener calls, a limited number of them at once."""

    def run(self, flow: ListenerFlow[None]) -> None:
        """Drive `flow` as soon as one of those before it ends, or at once."""


@dataclass(eq=False)
class Consuming(ABC):
    """Base of concurrent and orderly consuming: the flows of listener calls."""

    group: str
    listening: ListenerRunner
    settings: ConsumerSettings
    statistics: ConsumerStatistics
    on_room: Callable[[ProcessQueue], None]
    """Function that gets a queue that was full and has room again."""
    sending_back: SendingBack | None
    """None for broadcasting."""
    tasks: FlowTasks
    """Runner of other flows."""

    @abstractmethod
    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        """Consume messages that the queue already holds."""

    def directly(self, view: MessageView, then: Callable[[Outcome, float], None]) -> None:
        """Consume one message for an administrator; `then` gets the outcome and the ms it took."""

        def consume() -> ListenerFlow[None]:
            outcome, took_ms = yield Handle((view,))
            self._log_failure((view,), outcome, "none, an administrator asked for this call")
            then(outcome, took_ms)

        self.listening.run(consume())

    def _log_failure(self, views: Sequence[MessageView], outcome: Outcome, next_try: str) -> None:
        if outcome.error is None:
            return
        named = views[:NAMED_MAX]
        more = f" +{len(views) - NAMED_MAX}" if len(views) > NAMED_MAX else ""
        log.error(
            "listener failed",
            group=self.group,
            topic=views[0].topic,
            queue=str(views[0].queue),
            id=",".join(view.message_id for view in named) + more,
            keys=",".join(key for view in named for key in view.keys) or "-",
            attempt=max(view.reconsume_times for view in views) + 1,
            next_try=next_try,
            error=outcome.reason,
            exc_info=None if isinstance(outcome.error, ResultUnknown) else outcome.error,
        )

    def _count(
        self,
        process_queue: ProcessQueue,
        good: Sequence[MessageView],
        bad: Sequence[MessageView],
        took_ms: float,
    ) -> None:
        self.statistics.consumed(process_queue.queue.topic, len(good), len(bad), took_ms)

    def _done(
        self, process_queue: ProcessQueue, views: Sequence[MessageView], *, in_call: bool = False
    ) -> None:
        if process_queue.done(views, self.settings, in_call=in_call):
            self.on_room(process_queue)


class ConcurrentConsuming(Consuming):
    """Consumes messages of all queues concurrently, in no order."""

    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        size = self.settings.consume_batch_size
        for first in range(0, len(views), size):
            self.listening.run(self._run(process_queue, views[first : first + size]))

    def _run(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> ListenerFlow[None]:
        if not process_queue.begin(views):
            return
        try:
            outcome, took_ms = yield Handle(views)
            if outcome.failed is None:
                self._count(process_queue, views, (), took_ms)
                self._done(process_queue, views)
            else:
                yield from self._failed(process_queue, views, outcome, outcome.failed, took_ms)
        finally:
            process_queue.end()

    def _failed(
        self,
        process_queue: ProcessQueue,
        views: Sequence[MessageView],
        outcome: Outcome,
        failed: RetryLater,
        took_ms: float,
    ) -> Flow[None]:
        good, bad = outcome.split(views)
        self._count(process_queue, good, bad, took_ms)
        self._done(process_queue, good)
        if process_queue.dropped:
            return  # the queue's next owner gets the failed messages again
        kept: list[MessageView] = []
        back, level, seconds = self.sending_back, failed.delay_level, failed.seconds
        if bad:
            next_try = "none, broadcast" if back is None else back.next_try(bad[0], level, seconds)
            self._log_failure(bad, outcome, next_try)
        for view in bad:
            if back is None:
                log.warning("broadcast message dropped", group=self.group, id=view.message_id)
            elif process_queue.holds(view) and not (
                yield from back.give_back(view, level, outcome.reason, seconds)
            ):
                view.reconsume_times += 1
                kept.append(view)
        kept_ids = {id(view) for view in kept}
        self._done(process_queue, [view for view in bad if id(view) not in kept_ids])
        if kept:
            again = partial(self._again, process_queue, kept)
            self.tasks.later(self.settings.again_after_ms, again)

    def _again(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> Flow[None]:
        yield from ()  # a flow, though it waits for nothing
        self.submit(process_queue, views)

    def give_back_overdue(self, process_queues: Iterable[ProcessQueue]) -> Flow[None]:
        """Return messages with calls over `consume_timeout_ms` to the broker."""
        if self.sending_back is None:
            return
        late = f"its listener took longer than {self.settings.consume_timeout_ms} ms"
        for process_queue in process_queues:
            for _ in range(OVERDUE_MAX):
                view = process_queue.overdue(self.settings.consume_timeout_ms)
                if view is None:
                    break
                if not (yield from self.sending_back.give_back(view, OVERDUE_LEVEL, late)):
                    break
                log.warning("overdue message returned to broker", id=view.message_id)
                self._done(process_queue, (view,), in_call=True)
