"""Callers: the requests and waits of operations (operations.py), here those that block."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

from protocol.frame import RemotingCommand
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.connection.client import Client
from troupemq.client.connection.route import Route
from troupemq.client.errors import ClientError
from troupemq.client.message import Message, MessageQueue, SendResult
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ProducerSettings

PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"

Value = TypeVar("Value")


class SendingProducer(Protocol):
    """A producer as operations use it, that of asyncio or a BlockingSender."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: type[BaseException] | None, /, *_: object) -> None: ...
    async def send(
        self, message: Message, /, *, queue: MessageQueue | None = None
    ) -> SendResult: ...
    async def recall(self, topic: str, handle: str, /) -> str: ...


class Caller(Protocol):
    """Connections and routes of an Admin; coroutines that raise ClientError."""

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Return the answer of `address` with any code."""

    async def call_together(
        self, address: str, commands: Sequence[RemotingCommand], timeout_ms: float
    ) -> list[RemotingCommand | ClientError]:
        """Send requests without waiting between them; return the answer or error of each."""

    async def ask_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        """Return a success of one name server."""

    async def look_up(self, topic: str) -> Route:
        """Return the route of a topic as a name server knows it now."""

    async def master_of(self, queue: MessageQueue) -> str:
        """Return the address of a queue's master, from a known route."""

    async def blocking(self, work: Callable[..., Value], *given: object) -> Value:
        """Return the result of a function that may block, such as a look-up of a host name."""

    def producer(self, group: str, settings: ProducerSettings | None) -> Any:
        """Return a new producer of the caller's kind."""

    def sender(self, producer: Any) -> SendingProducer:
        """Return a producer of the caller's kind as operations use it."""


class BlockingSender:
    """A threaded producer whose coroutines block."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        self._producer.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._producer.stop()

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        return self._producer.send(message, queue=queue)

    async def recall(self, topic: str, handle: str) -> str:
        return self._producer.recall(topic, handle)


class BlockingCaller:
    """A Caller over the threaded client: its coroutines block, and never suspend."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        self.client = Client(namesrv, credentials=credentials, tls=tls)
        self._options: dict[str, Any] = {
            "namesrv": namesrv,
            "credentials": credentials,
            "tls": tls,
        }

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        return self.client.remoting.call(address, command, timeout_ms)

    async def call_together(
        self, address: str, commands: Sequence[RemotingCommand], timeout_ms: float
    ) -> list[RemotingCommand | ClientError]:
        remoting = self.client.remoting
        waiting = [remoting.call_async(address, each, timeout_ms) for each in commands]
        found: list[RemotingCommand | ClientError] = []
        for each in waiting:
            try:
                found.append(each.result())
            except ClientError as error:
                found.append(error)
        return found

    async def ask_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        return self.client.routes.ask_namesrv(command)

    async def look_up(self, topic: str) -> Route:
        return self.client.routes.look_up(topic)

    async def master_of(self, queue: MessageQueue) -> str:
        self.client.routes.get(queue.topic)
        return self.client.routes.master(queue.broker_name)

    async def blocking(self, work: Callable[..., Value], *given: object) -> Value:
        return work(*given)

    def producer(self, group: str, settings: ProducerSettings | None) -> Producer:
        return Producer(group, settings=settings, **self._options)

    def sender(self, producer: Producer) -> BlockingSender:
        return BlockingSender(producer)
