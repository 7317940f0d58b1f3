"""A handler that notes what it gets, and the consumer of the tests of it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from troupemq import ConsumeFrom, ConsumerSettings, Message, MessageView, Producer
from troupemq.aio import PushConsumer
from troupemq.testing import LocalBroker

QUEUES = 4
QUICK = ConsumerSettings(
    rebalance_interval_ms=50,
    commit_interval_ms=50,
    settle_ms=10,
    suspend_queue_ms=10,
    again_after_ms=20,
    drop_wait_ms=200,
)


def send(broker: LocalBroker, *bodies: str, topic: str = "Orders", tags: str | None = None) -> None:
    """Send messages, to the queue of the number before a hyphen if there is one."""
    with Producer("shop", broker.namesrv) as producer:
        queues = sorted(producer.queues(topic))
        for body in bodies:
            number, hyphen, _ = body.partition("-")
            queue = queues[int(number)] if hyphen else None
            producer.send(Message(topic, body.encode(), tags=tags, keys=body), queue=queue)


def numbered(count: int) -> list[str]:
    return [f"{number % QUEUES}-{number // QUEUES:05}" for number in range(count)]


class Handled:
    """A handler that notes the bodies that it gets, and does what it is told before."""

    def __init__(self, act: Callable[[MessageView], Any] | None = None) -> None:
        self.bodies: list[str] = []
        self.views: list[MessageView] = []
        self.running = self.most_at_once = 0
        self._act = act
        self._changed = asyncio.Condition()

    async def __call__(self, messages: Sequence[MessageView]) -> Any:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            result = None
            for view in messages:
                if self._act is not None:
                    result = self._act(view)
                    if asyncio.iscoroutine(result):
                        result = await result
                if result is None:
                    self.bodies.append(view.body.decode())
                    self.views.append(view)
            return result
        finally:
            self.running -= 1
            async with self._changed:
                self._changed.notify_all()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(set(self.bodies)) >= count)


def consumer(broker: LocalBroker, handled: Any, **options: Any) -> PushConsumer:
    options = {"begin": ConsumeFrom.FIRST_OFFSET, "settings": QUICK, **options}
    return PushConsumer("billing", handled, broker.namesrv, **options)


async def apart(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **named)


def in_order(bodies: Sequence[str]) -> bool:
    by_queue = defaultdict(list)
    for body in bodies:
        by_queue[body.partition("-")[0]].append(body)
    return all(each == sorted(each) for each in by_queue.values())
