"""Broker for taskiq: tasks are messages of one topic, and each worker receives them one by one.

    broker = TroupeMQBroker("10.0.0.1:9876")

    @broker.task
    async def resize(picture: str) -> None: ...

    await resize.kicker().with_labels(delay=60).kiq("cat.png")

taskiq                   TroupeMQ
task id, task name       KEYS, TAGS of the message
label `delay`, seconds   timer of the broker
label `priority`         order of the tasks that wait, with `max_priority`
ack                      acknowledgement of the message, at the time that the task's ack type says
lost or stopped worker   the message is delivered again; after `redeliveries_max` a dead letter
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from protocol.compression import CompressionError
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.aio.producer import Producer
from troupemq.client.aio.simple_consumer import Delivery, SimpleConsumer
from troupemq.client.arguments import check_integer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import DEAD_LETTER, RetryLater
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientClosed, ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import check_topic, word_of
from troupemq.client.producing.priorities import PriorityMessage, by_priority
from troupemq.client.receiving.receive_work import RECEIVE_COUNT_MAX

log = client_logger(__name__)

WAIT_MS = 1000
"""Time for which the broker holds a receive; a worker that stops waits for the end of one."""
REST_S = 1.0
"""Pause after a refused receive, or a settlement that failed."""
REDELIVERIES_MAX = 16
PRIORITY_MAX = 255
"""Limit of `max_priority`, as in taskiq's broker for RabbitMQ."""


class TroupeMQBroker(AsyncBroker):
    """A taskiq broker whose workers share the tasks of one topic.

    A task is held for its worker as long as the worker's connection lives, so it may take hours.
    The task of a lost worker is delivered to another one about a second later. Nothing is
    prefetched but for what the worker asks for (`--max-prefetch`).
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        topic: str = "taskiq",
        group: str | None = None,
        fetch_count: int = 1,
        redeliveries_max: int = REDELIVERIES_MAX,
        max_priority: int | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Do no I/O; `startup` raises the errors of a client. Raises ArgumentIllegal.

        * `namesrv`: "host:port;host:port". [default: NAMESRV_ADDR, else 127.0.0.1:9876]
        * `group`: the group of the workers. [default: the topic]
        * `fetch_count`: tasks of one request, 32 at most. With more than one, tasks for which a
          worker has no slot wait for it, not for others: for many short tasks only.
        * `redeliveries_max`: deliveries of a task after the first one, then it is a dead letter.
        * `max_priority`: highest label `priority` of a task, 255 at most; tasks with a higher one
          are received first, by workers with this argument. [default: no order]
        """
        if max_priority is not None:
            check_integer(max_priority, 1, PRIORITY_MAX, "max_priority")
        check_integer(fetch_count, 1, RECEIVE_COUNT_MAX, "fetch_count")
        check_topic(topic)
        super().__init__()
        self.max_priority = max_priority
        self.topic, self.group = topic, group or topic
        self._fetch_count, self._redeliveries_max = fetch_count, redeliveries_max
        self._namesrv, self._credentials, self._tls = namesrv, credentials, tls
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None
        self._late: set[asyncio.Task[None]] = set()
        """Settlements that failed and are tried again."""

    async def startup(self) -> None:
        """Connect to the name server. Raises ConnectionFailed."""
        if self._producer is None:
            producer = Producer(
                self.group,
                self._namesrv,
                choose=None if self.max_priority is None else by_priority(self.max_priority),
                credentials=self._credentials,
                tls=self._tls,
            )
            await producer.start()
            self._producer = producer
        await super().startup()

    async def shutdown(self) -> None:
        """Give back the tasks that are not acknowledged, and close the connections."""
        await super().shutdown()
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        for client in (consumer, producer):
            if client is not None:
                await client.stop()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and return when the broker has stored it.

        Raises ArgumentIllegal before `startup` and for a label `delay` or `priority` that is no
        number, and other ClientErrors.
        """
        if self._producer is None:
            raise ArgumentIllegal("the broker is not started: await broker.startup() first")
        priority = None if self.max_priority is None else _number(message, "priority")
        await self._producer.send(
            PriorityMessage(
                self.topic,
                message.message,
                tags=message.task_name,
                keys=word_of(message.task_id) or (),
                delay=None if self._is_of_retries(message) else _number(message, "delay"),
                priority=priority or 0,
            )
        )

    def _is_of_retries(self, message: BrokerMessage) -> bool:
        """Return whether `delay` is the time between tries that a task's definition has.

        taskiq's SmartRetryMiddleware has a label of that name; its retries have `_retries`, too.
        """
        task = self.find_task(message.task_name)
        own = {} if task is None else task.labels
        is_own = "delay" in own and str(own["delay"]) == str(message.labels.get("delay"))
        return is_own and "retry_on_error" in own and "_retries" not in message.labels

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks until the broker is shut down; wait while brokers refuse.

        Raises NotSupported for a broker that does not settle messages one by one.
        """
        consumer = await self._listening()
        ready: list[Delivery] = []
        try:
            while consumer.is_running:
                try:
                    ready = await consumer.receive(self._fetch_count, WAIT_MS)
                except asyncio.CancelledError:  # the receive goes on: give back what it brings
                    if consumer.is_running:
                        ready = await consumer.receive(wait_ms=WAIT_MS)
                    raise
                except BrokerError as error:  # taskiq would end the process with its tasks
                    log.warning("tasks not received", topic=self.topic, error=str(error))
                    await asyncio.sleep(REST_S)
                    continue
                while ready:
                    delivery = ready.pop(0)
                    try:
                        body = delivery.message.body
                    except CompressionError as error:
                        await self._give_up(delivery, str(error))
                        continue
                    yield AckableMessage(data=body, ack=partial(self._ack, delivery))
        finally:
            for delivery in ready if consumer.is_running else ():
                await delivery.retry(seconds=0)

    async def _give_up(self, delivery: Delivery, reason: str) -> None:
        """Make a task with an unreadable body a dead letter."""
        log.warning("message not understood", id=delivery.message.message_id, error=reason)
        try:
            await delivery.retry(DEAD_LETTER, reason=reason)
        except ClientError:
            self._settle_later(delivery, partial(delivery.retry, DEAD_LETTER, reason=reason))

    async def _ack(self, delivery: Delivery) -> None:
        """Acknowledge a task; give back one that was cancelled, which taskiq takes for a failure.

        A settlement that fails goes on in the background: the connection may hold the task for
        days, and its end would have it run again.
        """
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling() > 0
        async with delivery:
            if is_cancelled:
                raise RetryLater(seconds=0)
        if not delivery.is_settled:
            self._settle_later(
                delivery, partial(delivery.retry, seconds=0) if is_cancelled else delivery.ack
            )

    def _settle_later(self, delivery: Delivery, settle: Callable[[], Awaitable[None]]) -> None:
        late = asyncio.create_task(_settled(delivery, settle))
        self._late.add(late)
        late.add_done_callback(self._late.discard)

    async def _listening(self) -> SimpleConsumer:
        """Return the consumer, which all calls of `listen` share."""
        if self._consumer is None:
            self._consumer = consumer = SimpleConsumer(
                self.group,
                self._namesrv,
                auto_extend=True,
                begin=ConsumeFrom.FIRST_OFFSET,
                max_reconsume_times=self._redeliveries_max,
                highest_queue_first=self.max_priority is not None,
                credentials=self._credentials,
                tls=self._tls,
            )
            await consumer.subscribe(self.topic)
            await consumer.start()
        return self._consumer


def _number(message: BrokerMessage, name: str) -> Any:
    """Return a label, as a number if it is a text. Raises ArgumentIllegal."""
    label = message.labels.get(name)
    if not isinstance(label, str):  # which labels are, after a formatter or a scheduler
        return label
    try:
        return float(label)
    except ValueError:
        raise ArgumentIllegal(f"the label {name} is a number, and not {label!r}") from None


async def _settled(delivery: Delivery, settle: Callable[[], Awaitable[None]]) -> None:
    """Settle a task as soon as its broker can."""
    while not delivery.is_settled:
        await asyncio.sleep(REST_S)
        try:
            await settle()
        except ClientClosed:
            return
        except ClientError as error:
            log.warning("task not settled", id=delivery.message.message_id, error=str(error))
