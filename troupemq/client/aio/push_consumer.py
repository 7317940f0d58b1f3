"""PushConsumer for an event loop: passes the messages of its subscriptions to a coroutine."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.aio.client import LoopFlows
from troupemq.client.aio.group_member import AioGroupMember
from troupemq.client.aio.handler_tasks import CONCURRENCY, Handler, HandlerTasks
from troupemq.client.arguments import check_flag, names_checked
from troupemq.client.callbacks import check_coroutine
from troupemq.client.connection.lifecycle import seconds_to
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.group_work import GroupTerms
from troupemq.client.consuming.listener import ListenersByTopic
from troupemq.client.consuming.push_work import PushWork
from troupemq.client.log import client_logger
from troupemq.client.settings import ConsumerSettings
from troupemq.client.spans import spans_of

log = client_logger(__name__)


@partial(names_checked, settings=ConsumerSettings)
class PushConsumer(AioGroupMember, PushWork):
    """A member of a consumer group; each message goes to one member, or to all with `broadcast`.

        async def handle(messages):
            for message in messages:
                print(message.tags, message.body)

        async with aio.PushConsumer("billing", handle, namesrv="127.0.0.1:9876") as consumer:
            await consumer.subscribe("Orders", "new || paid")
            ...

    Handlers return what listeners of the threaded PushConsumer return, with the same retries, dead
    letters and order. Up to `concurrency` of them run at once; it replaces the setting
    `consume_threads`. A handler that is cancelled has failed: its messages are retried.

    Pulling pauses at the limits of the settings, and nothing is dropped. `stop` ends pulling, waits
    for running handlers and commits. It cancels those over its timeout, and their messages are
    delivered again.
    """

    stop_timeout_s = 30.0

    def __init__(
        self,
        group: str,
        handler: Handler | None = None,
        namesrv: str | Sequence[str] | None = None,
        *,
        orderly: bool = False,
        broadcast: bool = False,
        concurrency: int = CONCURRENCY,
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
        """Take the arguments of `troupemq.PushConsumer`, with the same errors; do no I/O."""
        self._handlers = ListenersByTopic(handler, _check_handler)
        check_assignment(assign)
        check_flag(orderly, "orderly")
        settings = settings or ConsumerSettings()
        terms = GroupTerms(settings, begin, begin_ms, broadcast, offsets_folder)
        super().__init__(group, namesrv, terms, instance_name, client_ip, credentials, tls)
        self.orderly = orderly
        self._calls = HandlerTasks(self._client, group, self._handlers, concurrency)
        self._order_flows = LoopFlows(self._client)
        self._build(assign, self._calls, self._client.housekeeping, self._order_flows)

    @property
    def concurrency(self) -> int:
        """Limit of handlers that run at once."""
        return self._calls.concurrency

    async def subscribe(
        self,
        topic: str,
        expression: str = ALL_TAGS,
        *,
        sql: str | None = None,
        listener: Handler | None = None,
    ) -> None:
        """Subscribe to `topic`, before or after `start`, as `troupemq.PushConsumer.subscribe`.

        `listener` is a handler that gets the messages of this topic in place of the consumer's.
        """
        self._handlers.set(topic, listener)
        await super().subscribe(topic, expression, sql=sql)

    async def run(self) -> None:
        """Start and serve until the call is cancelled, or another task stops the consumer.

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consumer.run())

        A cancelled call stops the consumer as `stop` does. Raises as `start`.
        """
        async with self:
            await self._stopped.wait()

    # --- within

    def _begin(self) -> None:
        self._calls.start(spans_of(self.client_id), self.message_model.lower())
        super()._begin()

    async def _finish_consuming(self, deadline_s: float) -> None:
        self._log_calls(log.info, "stop waits for handlers")
        if not await self._calls.stop(seconds_to(deadline_s)):
            self._log_calls(log.warning, "handlers cancelled by the stop")
        await self._order_flows.stop(seconds_to(deadline_s))  # which has renewed the locks

    async def _abandon(self) -> None:
        await self._calls.abandon()

    def _is_own_task(self) -> bool:
        return self._calls.is_own_task()


def _check_handler(value: object, what: str) -> None:
    check_coroutine(value, what, "messages")
