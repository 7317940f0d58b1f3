"""Admin for an event loop: the operations of client/admin/, awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.fields import Header
from protocol.json_body import Body
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.admin.base import TIMEOUT_MS
from troupemq.client.admin.callers import PRODUCER_GROUP
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.reading import TOOLS_GROUP, ReaderFlows
from troupemq.client.aio.client import AioClient
from troupemq.client.aio.lifecycle import AioLifecycle
from troupemq.client.aio.producer import Producer
from troupemq.client.connection.lifecycle import Work
from troupemq.client.connection.route import Route
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import ProducerSettings

Answered = TypeVar("Answered", bound=Body)
Value = TypeVar("Value")


class AioCaller:
    """A Caller over the client of one event loop."""

    def __init__(self, client: AioClient, options: dict[str, Any]) -> None:
        """`options`: the arguments of its producers."""
        self._client, self._options = client, options

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        return await self._client.remoting.call(address, command, timeout_ms)

    async def call_together(
        self, address: str, commands: Sequence[RemotingCommand], timeout_ms: float
    ) -> list[RemotingCommand | ClientError]:
        calls = [self._client.remoting.call(address, each, timeout_ms) for each in commands]
        found: list[RemotingCommand | ClientError] = []
        for call in calls:
            try:
                found.append(await call)
            except ClientError as error:
                found.append(error)
        return found

    async def ask_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        return await self._client.routes.ask_namesrv(command)

    async def look_up(self, topic: str) -> Route:
        return await self._client.routes.look_up(topic)

    async def master_of(self, queue: MessageQueue) -> str:
        await self._client.routes.get(queue.topic)
        return self._client.routes.master(queue.broker_name)

    async def blocking(self, work: Callable[..., Value], *given: object) -> Value:
        return await asyncio.to_thread(work, *given)

    def producer(self, group: str, settings: ProducerSettings | None) -> Producer:
        return Producer(group, settings=settings, **self._options)

    def sender(self, producer: Producer) -> Producer:
        return producer


class QueueReader(ReaderFlows):
    """A reader of a queue, outside of any group; its methods are coroutines."""

    def messages(self, first: int, last: int) -> AsyncIterator[MessageView]:
        """Yield the messages from `first` on and before `last`, for an `async for`."""
        return self._messages(first, last)


class Admin(AdminFlows, AioLifecycle):
    """Asks and changes brokers and name servers, with the methods of `troupemq.Admin`.

        async with aio.Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("Orders", queue_count=8)
            progress = await admin.group_progress("billing")
            print(sum(each.lag for each in progress), progress.failures)

    Methods raise ClientError. Those that ask several servers return complete Answers: a sequence
    of results, and the failures of servers that did not answer. Several may be awaited at once.
    """

    kind = "Admin"
    stop_timeout_s = 1.0

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        silent_s: float = 0.0,
    ) -> None:
        """Take the arguments of `troupemq.Admin`, with the same errors; do no I/O."""
        client = AioClient(namesrv, credentials=credentials, tls=tls)
        AioLifecycle.__init__(self, client)
        options = {"namesrv": namesrv, "credentials": credentials, "tls": tls}
        AdminFlows.__init__(self, AioCaller(client, options), client.addresses, silent_s)
        self.namesrv = namesrv

    def producer(
        self, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None
    ) -> Producer:
        """Return a producer with the same name servers, account and TLS options."""
        producer: Producer = self._caller.producer(group, settings)
        return producer

    async def reader(
        self, queue: MessageQueue, expression: str = ALL_TAGS, group: str | None = None
    ) -> QueueReader:
        """Return a reader of a queue, which changes no offsets. Raises RouteNotFound."""
        address = await self._address_of(queue)
        return QueueReader(self, address, queue, expression, group or TOOLS_GROUP)

    async def read(
        self,
        kind: type[Answered],
        address: str,
        code: RequestCode,
        header: Header | None = None,
        timeout_ms: float = TIMEOUT_MS,
    ) -> Answered:
        """Return the decoded body of an answer. Raises BadAnswer for one that is not a `kind`."""
        return await self._read(kind, address, code, header, timeout_ms)

    async def _open(self) -> None:
        self._client.remoting.open()

    def _work(self) -> Work:
        return {}

    async def _finish(self, deadline_s: float) -> None:
        """Wait for nothing: open requests fail with ClientClosed."""
