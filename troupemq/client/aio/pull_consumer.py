"""PullConsumer for an event loop: the application polls for messages and controls the offsets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.aio.client import happens, unfold, with_long_bodies
from troupemq.client.aio.group_member import AioGroupMember
from troupemq.client.arguments import check_flag, names_checked
from troupemq.client.connection.lifecycle import LifecycleState
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.group_work import GroupTerms
from troupemq.client.consuming.pull_work import (
    BATCH_COUNT_MAX,
    BATCH_WAIT_MS,
    POLL_COUNT_MAX,
    POLL_TIMEOUT_MS,
    PullWork,
)
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import ConsumerSettings
from troupemq.client.spans import spans_of

Found = TypeVar("Found")

TURN_S = 0.005
"""Time after which a poll lets other coroutines run, though messages are there already."""


@partial(names_checked, settings=ConsumerSettings)
class PullConsumer(AioGroupMember, PullWork):
    """A consumer without a handler: a member of a group (`subscribe`), or with fixed queues.

        async with aio.PullConsumer("reports", namesrv="127.0.0.1:9876") as consumer:
            await consumer.subscribe("Orders")
            async for message in consumer:
                print(message.body)

    An iteration ends only when the consumer stops. A message counts as consumed when the next one
    is requested; a batch, when the next batch is. A cancelled iteration or poll loses no message:
    the next one returns it. One coroutine polls or iterates; all others may call other methods.

    Offsets, `assign` and `auto_commit` are those of `troupemq.PullConsumer`. If an exception or a
    cancellation ends the `async with` block, the messages of the last poll do not count as
    consumed.
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
        offsets_folder: Path | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Take the arguments of `troupemq.PullConsumer`, with the same errors; do no I/O."""
        check_assignment(assign)
        check_flag(auto_commit, "auto_commit")
        settings = settings or ConsumerSettings()
        terms = GroupTerms(settings, begin, begin_ms, broadcast, offsets_folder)
        super().__init__(group, namesrv, terms, instance_name, client_ip, credentials, tls)
        self._lock = nullcontext()
        self._changed = asyncio.Event()
        self._turn_since_s = 0.0
        self._spans = None
        self._build(assign, self._client.housekeeping, auto_commit=auto_commit)

    # --- queues

    async def subscribe(
        self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None
    ) -> None:
        """Subscribe to `topic`, as `troupemq.PullConsumer.subscribe`."""
        self._check_may_subscribe()
        await super().subscribe(topic, expression, sql=sql)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL_TAGS) -> None:
        """Consume exactly these queues, as `troupemq.PullConsumer.assign`."""
        self._check_usable()
        await self._client.run(self._assigning(queues, expression))

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of `topic`. Raises RouteNotFound, MessageIllegal."""
        return await self._client.run(self._fetching_queues(topic))

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Exclude queues from polls until `resume`; queues that are not assigned are ignored."""
        self._check_usable()
        self._rest(queues, True)

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Include paused queues in polls again."""
        self._check_usable()
        self._rest(queues, False)

    # --- messages

    async def poll(
        self, timeout_ms: float = POLL_TIMEOUT_MS, count_max: int = POLL_COUNT_MAX
    ) -> Sequence[MessageView]:
        """Return the next messages of one queue, as `troupemq.PullConsumer.poll`."""
        self.check_running()
        self._check_poll(timeout_ms, count_max)
        return await self._next(timeout_ms, lambda: self._ready() > 0, self._take, count_max)

    def __aiter__(self) -> AsyncIterator[MessageView]:
        """Yield messages until the consumer stops. Raises as `poll`."""
        return _Iteration(self._following)

    def batches(
        self, count_max: int = BATCH_COUNT_MAX, wait_ms: float = BATCH_WAIT_MS
    ) -> AsyncIterator[Sequence[MessageView]]:
        """Yield messages of all queues, as `troupemq.PullConsumer.batches`."""
        self._check_poll(wait_ms, count_max)

        async def following() -> Sequence[MessageView]:
            return await self._iterated(
                wait_ms, lambda: self._ready() >= count_max, self._take_batch, count_max
            )

        return _Iteration(following)

    async def _following(self) -> MessageView:
        (view,) = await self._iterated(POLL_TIMEOUT_MS, lambda: self._ready() > 0, self._take, 1)
        return view

    async def _iterated(
        self,
        wait_ms: float,
        is_ready: Callable[[], bool],
        take: Callable[[int], Sequence[MessageView]],
        count_max: int,
    ) -> Sequence[MessageView]:
        """Return messages, at least one; raise StopAsyncIteration after a stop."""
        while self._state is not LifecycleState.STOPPED:
            self.check_running()
            self._check_poll(wait_ms, count_max)
            if views := await self._next(wait_ms, is_ready, take, count_max):
                return views
            if self.is_running:  # wait_ms may be 0
                self._changed.clear()
                await happens(self._changed.wait(), POLL_TIMEOUT_MS / 1000)
        raise StopAsyncIteration

    async def _next(
        self,
        wait_ms: float,
        is_ready: Callable[[], bool],
        take: Callable[[int], Sequence[MessageView]],
        count_max: int,
    ) -> Sequence[MessageView]:
        """Wait until messages are ready, at most for `wait_ms`, and take them in a last step."""
        begun_ns, loop = time_ns(), asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1000
        self._acknowledge()
        if loop.time() - self._turn_since_s > TURN_S:
            await asyncio.sleep(0)
            self._turn_since_s = loop.time()
        while self.is_running and not is_ready() and (left_s := deadline_s - loop.time()) > 0:
            self._changed.clear()
            await happens(self._changed.wait(), left_s)
        fetched = (view for each in self._fetched for view in each.views)
        if long := with_long_bodies(islice(fetched, count_max)):
            await asyncio.to_thread(unfold, long)
        views = take(count_max) if self.is_running else ()
        self._record(views, begun_ns)
        return views

    def _wake(self) -> None:
        self._changed.set()

    # --- offsets

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset`, as `troupemq.PullConsumer.seek`."""
        self.check_running()
        await self._client.run(self._seeking(queue, offset))

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue `queue` at its first message. Raises as `seek`."""
        self.check_running()
        await self._client.run(self._seeking_to(queue, self._ends.first))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue `queue` behind its last message. Raises as `seek`."""
        self.check_running()
        await self._client.run(self._seeking_to(queue, self._ends.end))

    async def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        """Return an offset, as `troupemq.PullConsumer.offset_for_timestamp`."""
        return await self._client.run(self._finding_time(queue, time_ms))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of `queue`, or None. Raises ClientError."""
        return await self._client.run(self._reading_committed(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store `offsets`, or those behind all polled messages, and await the confirmations."""
        self.check_running()
        await self._client.run(self._committing(offsets))

    # --- within

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._acknowledge()
        await self.stop()

    async def _prepare(self) -> None:
        self._spans = spans_of(self.client_id)
        await super()._prepare()
        await self._client.run(self._taking_assigned())

    async def _finish(self, deadline_s: float) -> int:
        self._wake()
        return await super()._finish(deadline_s)


class _Iteration(AsyncIterator[Found]):
    """An iterator that a cancelled step does not end, as it would end a generator."""

    def __init__(self, following: Callable[[], Coroutine[Any, Any, Found]]) -> None:
        self._following = following

    async def __anext__(self) -> Found:
        return await self._following()
