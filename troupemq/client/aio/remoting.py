"""Calls to brokers and name servers on one event loop: one connection per address."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from socket import AI_NUMERICHOST, SOCK_STREAM, gaierror
from ssl import SSLContext, SSLError
from typing import Any, TypeVar

from protocol.frame import RemotingCommand
from protocol.signature import Credentials
from remoting.tls import plain_hint
from troupemq.client.aio.connection import AioConnection, failed
from troupemq.client.connection.calls import Asked
from troupemq.client.connection.connection import resolved, split_address
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S
from troupemq.client.connection.remoting import (
    CONNECT_TIMEOUT_MS,
    Greeting,
    OnRequest,
    RequestSender,
    check_success,
)
from troupemq.client.errors import FORKED, ClientClosed, ClientError, ConnectionFailed
from troupemq.client.log import client_logger

log = client_logger(__name__)

Value = TypeVar("Value")

FLUSH_LOOK_S = 0.001


class Pending(asyncio.Future[Value]):
    """Future of an answer; an answer after its cancellation is dropped.

    asyncio logs no error of it that nothing waits for any more, such as that of a stop.
    """

    def set_result(self, result: Value, /) -> None:
        if not self.done():
            super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        if not self.done():
            super().set_exception(exception)
            self.exception()  # counts as retrieved


async def finished(task: asyncio.Task[Value]) -> Value:
    """Return the result of a task of a client, which goes on if this call is cancelled.

    Raises what the task raises, and ClientClosed if its client has ended it.
    """
    await asyncio.wait((task,))
    if task.cancelled():
        raise ClientClosed("the client is stopped")
    return task.result()


async def driven(
    flow: Generator[Asked, Any, Value], ask: Callable[[Asked], Awaitable[object]]
) -> Value:
    """Return the result of a flow whose requests `ask` awaits. Raises what the flow raises."""
    try:
        wanted = next(flow)
        while True:
            try:
                answer = await ask(wanted)
            except ClientError as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(answer)
    except StopIteration as done:
        value: Value = done.value
        return value
    finally:
        flow.close()


class AioRemoting(RequestSender[AioConnection]):
    """All connections of a client, between `open` and `close`, on the loop that opened it."""

    def __init__(
        self,
        on_request: OnRequest,
        greeting: Greeting = lambda address: None,
        credentials: Credentials | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        """Open nothing yet. With `credentials` every request is signed."""
        super().__init__(on_request, credentials)
        self._greeting, self._tls = greeting, tls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[asyncio.TimerHandle, Callable[[], object] | None] = {}
        """Timers with what has to run at the close, in their place."""

        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0

    def open(self) -> None:
        """Bind the client to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._process_id = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this client. Raises ClientClosed on another loop or in another process."""
        if self._loop is None:
            raise ClientClosed("the client is not started")
        if os.getpid() != self._process_id:
            raise ClientClosed(f"the client {FORKED}")
        if asyncio.get_running_loop() is not self._loop:
            raise ClientClosed("the client belongs to another event loop: make one for each loop")
        return self._loop

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # --- calls

    async def ask(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Return a successful answer. Raises BrokerError for any other code."""
        return check_success(await self.call(address, command, timeout_ms), address)

    def call(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> "Pending[RemotingCommand]":
        """Return a future of the answer with any code."""
        answer: Pending[RemotingCommand] = Pending(loop=self.loop)
        self.call_for(answer, address, command, timeout_ms)
        return answer

    # --- tasks of this client

    def later(self, delay_ms: float, task: Callable[[], object]) -> None:
        """Run `task` after `delay_ms`; at the close, so that waiting callers learn of the end."""
        if self._closed:
            self.loop.call_soon(task)
        else:
            self._start_timer(delay_ms, task, at_close=task)

    def unless_closed(self, delay_ms: float, task: Callable[[], object]) -> None:
        """Run `task` after `delay_ms`, unless the client is closed before."""
        if not self._closed:
            self._start_timer(delay_ms, task, at_close=None)

    def _start_timer(
        self, delay_ms: float, task: Callable[[], object], at_close: Callable[[], object] | None
    ) -> None:
        def run() -> None:
            self._timers.pop(timer, None)
            task()

        timer = self.loop.call_later(delay_ms / 1000, run)
        self._timers[timer] = at_close

    def spawn(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Run a coroutine until the client closes; a failure is logged."""
        try:
            loop = self.loop
        except ClientClosed:
            work.close()
            raise
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientError):
            log.error("task failed", exc_info=error)

    async def flush(self, timeout_s: float) -> None:
        """Wait until all requests are written, such as those without an answer."""
        deadline_s = self.loop.time() + timeout_s
        while any(each.unsent_bytes for each in self._connections.values()):
            if self.loop.time() >= deadline_s:
                return
            await asyncio.sleep(FLUSH_LOOK_S)

    async def close(self) -> None:
        """Close all connections and end all tasks; open requests fail with ClientClosed."""
        if self._closed or self._loop is None:
            self._closed = True
            return
        self._closed = True
        timers, self._timers = self._timers, {}
        for connection in [*self._connections.values()]:
            connection.end(ClientClosed("the client is stopped"))
        for timer, task in timers.items():
            timer.cancel()
            if task is not None:
                task()
        own = asyncio.current_task()
        tasks = [each for each in self._tasks if each is not own]
        for each in tasks:
            each.cancel()
        if tasks:  # A check of a transaction may ignore its cancellation.
            await asyncio.wait(tasks, timeout=LAST_TIMEOUT_S)

    # --- connections

    def _connection(self, address: str) -> AioConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.broken_by is None:
            return connection
        if self._closed:
            raise ClientClosed("the client is stopped")
        split_address(address)
        greeting = self._greeting(address)
        loop = self.loop
        connection = AioConnection(
            address, self._command, self._end, loop, has_tls=self._tls is not None
        )
        if greeting is not None:  # one way: if it fails, the next heartbeat makes up for it
            connection.submit(self.framed(greeting), greeting.opaque, None)
        self._connections[address] = connection
        self.spawn(self._connect(connection))
        return connection

    async def _connect(self, connection: AioConnection) -> None:
        address = connection.address
        host, port = split_address(address)
        try:
            await self._open(connection, host, port)
        except TimeoutError:
            reason = f"{address}: no connection in {CONNECT_TIMEOUT_MS} ms"
            connection.end(ConnectionFailed(reason))
        except UnicodeError:  # longer than any host name
            connection.end(ConnectionFailed(f"{address}: invalid host name"))
        except (OSError, ValueError) as error:
            hint = plain_hint(error) if self._tls is not None else ""
            connection.end(failed(address, error, hint=hint))
        finally:
            if not connection.is_open:
                connection.end(ConnectionFailed(f"{address}: the connection was given up"))

    async def _open(self, connection: AioConnection, host: str, port: int) -> None:
        """Try the addresses of a host in turn. Raises OSError, UnicodeError and ValueError."""
        targets = await self._targets(host, port)
        for number, target in enumerate(targets, 1):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                    await self.loop.create_connection(
                        lambda: connection,
                        *target[:2],
                        ssl=self._tls,
                        server_hostname=host if self._tls is not None else None,
                    )
                return
            except OSError as error:  # such as a TimeoutError: that of a dead machine
                if number == len(targets) or isinstance(error, SSLError):
                    raise

    async def _targets(self, host: str, port: int) -> list[Any]:
        try:
            return [target for _, target in resolved(host, port, AI_NUMERICHOST)]
        except gaierror:  # a host name: a thread of the loop resolves it
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                found = await self.loop.getaddrinfo(host, port, type=SOCK_STREAM)
        return [target for *_, target in found]

    def _end(self, connection: AioConnection, reason: ClientError) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        log.debug("connection closed", address=connection.address, reason=str(reason))
        self._lost(connection, reason)
