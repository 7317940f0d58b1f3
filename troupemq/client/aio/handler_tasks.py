"""Tasks of an event loop that call a handler."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

from troupemq.client.aio.client import AioClient, unfold, with_long_bodies
from troupemq.client.arguments import check_integer
from troupemq.client.connection.calls import Wanted
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S
from troupemq.client.consuming.consume import Handle, ListenerFlow
from troupemq.client.consuming.listener import (
    FAILED,
    FINE,
    ListenersByTopic,
    Outcome,
    Result,
    RetryLater,
    by_topic,
    failure_of,
    retry_of,
)
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

log = client_logger(__name__)

Handler = Callable[[Sequence[MessageView]], Awaitable[Result]]
"""Coroutine function of up to `consume_batch_size` messages of one queue, one by default."""

CONCURRENCY = 100
CONCURRENCY_MAX = 100_000
SLICE_S = 0.005
"""Time after which handlers that never wait let other tasks of the loop run."""


class HandlerTasks:
    """Drives flows with handler calls in up to `concurrency` tasks, which live on.

    A task takes one flow after the other. While it waits, another task takes the next one.
    A task that is cancelled ends, and its flow goes on in another one: the call has failed.
    """

    def __init__(
        self, client: AioClient, group: str, handlers: ListenersByTopic[Handler], concurrency: int
    ) -> None:
        """Raise ArgumentIllegal for an invalid `concurrency`."""
        check_integer(concurrency, 1, CONCURRENCY_MAX, "concurrency")
        self.concurrency = concurrency
        self._client, self._group, self._handlers = client, group, handlers
        self._waiting: deque[ListenerFlow[None]] = deque()
        self._cancelled: dict[ListenerFlow[None], tuple[Wanted | Handle, BaseException]] = {}
        """Requests of waiting flows whose tasks were cancelled."""

        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._will_look = self._stopping = self._abandons = False
        self._slice_s = 0.0
        self._spans: ClientSpans | None = None
        self._model = ""

    def start(self, spans: "ClientSpans | None", model: str) -> None:
        self._spans, self._model = spans, model
        self._context = copy_context()

    def run(self, flow: ListenerFlow[None]) -> None:
        self._waiting.append(flow)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._will_look:
            self._will_look = True
            self._client.remoting.loop.call_soon(self._look)

    def _look(self) -> None:
        """Have one task take a flow; that task has the next one looked for."""
        self._will_look = False
        while self._waiting and self._idle:
            turn = self._idle.pop()
            if not turn.done():
                turn.set_result(None)
                return
        if self._waiting and len(self._tasks) < self.concurrency:
            self._spawn(self._work())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        loop = self._client.remoting.loop
        task = loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed", exc_info=task.exception())
        if self._waiting and not self._abandons:
            self._look_soon()

    async def _work(self) -> None:
        waiting = self._waiting
        while not self._stopping or waiting:
            if not waiting:
                turn = self._client.remoting.loop.create_future()
                self._idle.append(turn)
                await turn
                continue
            flow = waiting.popleft()
            if waiting:
                self._look_soon()
            await self._drive(flow)
            if copy_context() != self._context:
                return  # the next call does not see what this one has set

    async def _drive(self, flow: ListenerFlow[None]) -> None:
        """Carry a flow out. A cancelled task leaves it to another one: a call has failed then."""
        is_left = False
        cancelled: BaseException | None = None
        try:
            if flow in self._cancelled:
                wanted, cancelled = self._cancelled.pop(flow)
            else:
                wanted = next(flow)
            while True:
                try:
                    if not isinstance(wanted, Handle):
                        answer: object = await self._client.carry_out(wanted)
                    elif cancelled is not None:
                        answer = Outcome(None, cancelled, FAILED), 0.0
                    else:
                        answer = await self._call(wanted.views)
                except ClientError as error:
                    wanted = flow.throw(error)
                except asyncio.CancelledError as error:
                    is_left = not self._abandons
                    if is_left:
                        self._cancelled[flow] = wanted, error
                        self._waiting.appendleft(flow)
                    raise
                else:
                    cancelled = None
                    wanted = flow.send(answer)
        except StopIteration:
            return
        finally:
            if not is_left:
                flow.close()

    async def _call(self, views: Sequence[MessageView]) -> tuple[Outcome, float]:
        if long := with_long_bodies(views):
            with suppress(Exception):  # no thread: bodies are decompressed where they are read
                await asyncio.to_thread(unfold, long)
        begun_s, spans = monotonic(), self._spans
        if begun_s - self._slice_s > SLICE_S:
            await asyncio.sleep(0)
            self._slice_s = begun_s = monotonic()
        if spans is None or not spans.wants(views):
            outcome = await self._outcome(views)
        else:
            with spans.process(self._group, views, self._model) as span:
                outcome = await self._outcome(views)
                if outcome.failed is not None:
                    spans.to_be_retried(span, outcome.error)
        return outcome, (monotonic() - begun_s) * 1000

    async def _outcome(self, views: Sequence[MessageView]) -> Outcome:
        topic = views[0].topic
        if len(views) == 1 or all(view.topic == topic for view in views):
            return await self._called(topic, views)
        outcomes = [(await self._called(topic, own), own) for topic, own in by_topic(views)]
        retry = retry_of(outcomes)
        return FINE if retry is None else Outcome(retry, None, retry)

    async def _called(self, topic: str, views: Sequence[MessageView]) -> Outcome:
        """Call the handler of a topic and return the outcome."""
        try:
            try:
                result: Result = await self._handlers.of(topic)(views)
            except RetryLater as raised:
                result = raised
            failed = failure_of(result, views)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # retry after any exception, also sys.exit
            return Outcome(None, error, FAILED)
        return FINE if failed is None else Outcome(result, None, failed)

    async def stop(self, timeout_s: float) -> bool:
        """End the tasks after their flows; return False on timeout."""
        self._stopping = True
        while self._idle:
            turn = self._idle.pop()
            if not turn.done():
                turn.set_result(None)
        if others := self._others():
            await asyncio.wait(others, timeout=timeout_s)
        return not self._others()

    async def abandon(self) -> None:
        """Cancel all calls; their messages are delivered again."""
        self._stopping = self._abandons = True
        if others := self._others():
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=LAST_TIMEOUT_S)
        while self._waiting:
            self._waiting.popleft().close()

    def is_own_task(self) -> bool:
        """Return whether the caller is one of the tasks, such as a handler that stops."""
        return asyncio.current_task() in self._tasks

    def _others(self) -> list[asyncio.Task[None]]:
        """Return the tasks but the one that calls, which may be a handler that stops."""
        own = asyncio.current_task()
        return [task for task in self._tasks if task is not own]
