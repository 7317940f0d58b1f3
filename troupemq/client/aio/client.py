"""Connections, routes and heartbeats of one producer or consumer on an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, assert_never

from protocol.codes import COMPRESSED
from protocol.compression import CompressionError
from protocol.frame import RemotingCommand
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.aio.remoting import AioRemoting, driven, finished
from troupemq.client.arguments import check_instance
from troupemq.client.connection.calls import (
    Blocking,
    Call,
    Calls,
    Flow,
    FlowTasks,
    InTurn,
    LookUpRoute,
    RouteFlow,
    WaitFor,
    Wanted,
)
from troupemq.client.connection.client import (
    HEARTBEAT_INTERVAL_MS,
    HEARTBEAT_TIMEOUT_MS,
    ROUTE_INTERVAL_MS,
    ClientCore,
    local_ip,
    unregister_command,
)
from troupemq.client.connection.route import Route, RouteCache, writable
from troupemq.client.errors import ClientClosed, ClientError, RouteNotFound
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView

log = client_logger(__name__)

Value = TypeVar("Value")

COMPRESSED_BYTES_HERE_MAX = 16 << 10
"""Maximum compressed body that is decompressed on the loop: to 16 MiB at most, in 20 ms."""

APART_AGAIN_MS = 500
"""Pause before another try of work that no thread has done."""

CALLS_OF_A_TURN = 500
"""Requests sent at once before other tasks of the loop run: 15 ms."""

UNFOLDED_BYTES_MAX = 64 << 20
"""Bytes of bodies that are decompressed before an application reads them."""


async def happens(awaited: Coroutine[Any, Any, object], timeout_s: float | None) -> bool:
    """Await something; return False on timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await awaited
    except TimeoutError:
        return False
    return True


def with_long_bodies(views: Iterable[MessageView]) -> list[MessageView]:
    """Return the messages whose decompression may block the loop."""
    return [
        each
        for each in views
        if each.sys_flag & COMPRESSED and len(each.stored_body) > COMPRESSED_BYTES_HERE_MAX
    ]


def unfold(views: Sequence[MessageView]) -> None:
    """Decompress bodies, UNFOLDED_BYTES_MAX in all; the others are when they are read."""
    left = UNFOLDED_BYTES_MAX
    for view in views:
        with suppress(CompressionError):  # it is raised where the body is read
            left -= len(view.body)
        if left <= 0:
            return


class AioRoutes(RouteCache):
    """A route table of one event loop; look-ups of the same topic share one request."""

    def __init__(self, remoting: AioRemoting, namesrvs: Sequence[str], named_by: str) -> None:
        super().__init__(namesrvs, named_by)
        self._remoting = remoting
        self._running: dict[tuple[str, bool], asyncio.Task[Route]] = {}

    def _driven(self, flow: RouteFlow[Value]) -> Coroutine[Any, Any, Value]:
        return driven(flow, self._carry_out)

    async def _carry_out(self, wanted: Call | Blocking) -> object:
        if isinstance(wanted, Blocking):
            return await asyncio.to_thread(wanted.work)
        return await self._remoting.ask(*wanted)

    async def ask_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        """Return a success from the last good name server, else the next. Raises ClientError."""
        return await self._driven(self.asking_namesrv(command))

    async def publish_route(self, topic: str) -> Route:
        """Return the route for sends, as the threaded client does. Raises ClientError."""
        route = self.known(topic)
        if route is None or not route.publish_queues:
            route = await self.look_up(topic, or_default=True)
        return writable(topic, route)

    async def get(self, topic: str) -> Route:
        """Return the cached route of `topic`, else look it up. Raises as `look_up`."""
        return self.known(topic) or await self.look_up(topic)

    async def look_up(self, topic: str, *, or_default: bool = False) -> Route:
        """Ask a name server. Raises RouteNotFound and other ClientErrors, keeping the old route.

        A caller that is cancelled does not end the look-up of others.
        """
        key = topic, or_default
        running = self._running.get(key)
        if running is None:
            running = self._remoting.spawn(
                self._driven(self.looking_up(topic, or_default=or_default))
            )
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return await finished(running)

    async def refresh(self, topics: Iterable[str], *, and_known: bool = True) -> None:
        """Look up these topics and all known ones; keep the old route where that fails."""
        for topic, or_default in self.to_refresh(topics, and_known=and_known):
            try:
                await self.look_up(topic, or_default=or_default)
            except RouteNotFound:
                log.debug("topic route not found", topic=topic)
            except ClientError as error:
                log.warning("route refresh failed", topic=topic, error=str(error))
                return  # no name server answers: the next topic would fail as well
        self.forget_unused_brokers()


class LoopTasks:
    """Runner of short tasks on the event loop of a client."""

    def __init__(self, remoting: AioRemoting) -> None:
        self._remoting = remoting

    def post(self, task: Callable[[], object]) -> None:
        self._remoting.loop.call_soon(task)

    def apart(self, work: Callable[[], Value], then: Callable[[Value], object]) -> None:
        async def run() -> None:
            try:
                value = await asyncio.to_thread(work)
            except BaseException:  # no thread, or something cancels all tasks: `then` must come
                self.later(APART_AGAIN_MS, lambda: self.apart(work, then))
                raise
            then(value)

        self._remoting.spawn(run())

    def later(self, delay_ms: float, task: Callable[[], object]) -> None:
        self._remoting.unless_closed(delay_ms, task)

    def every(self, interval_ms: float, task: Callable[[], object], *, first_ms: float = 0) -> None:
        def run() -> None:
            try:
                task()
            finally:
                self.later(interval_ms, run)

        self.later(first_ms, run)


class LoopFlows(FlowTasks):
    """Runs flows one by one on the event loop of a client."""

    def __init__(self, client: "AioClient") -> None:
        self._client = client
        self._waiting: deque[Callable[[], Flow[None]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._runs = self._stopped = False

    def post(self, work: Callable[[], Flow[None]]) -> None:
        if self._stopped:
            return
        self._waiting.append(work)
        self._start()

    def _start(self) -> None:
        if self._waiting and not (self._runs or self._client.remoting.is_closed):
            self._runs = True  # before the spawn: an eager task may end within it
            self._task = self._client.remoting.spawn(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        """Go on with flows that were posted meanwhile, also after a task that was cancelled."""
        self._runs = False
        self._start()

    def later(self, delay_ms: float, work: Callable[[], Flow[None]]) -> None:
        if not self._stopped:
            self._client.remoting.unless_closed(delay_ms, lambda: self.post(work))

    async def stop(self, timeout_s: float) -> None:
        """Drop waiting flows and wait for the running one; cancel it on timeout."""
        self._stopped = True
        self._waiting.clear()
        if (task := self._task) is not None:
            await asyncio.wait((task,), timeout=timeout_s)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _run(self) -> None:
        while self._waiting:
            work = self._waiting.popleft()
            try:
                await self._client.run(work())
            except Exception:  # a failed flow must not silently end those behind it
                log.error("task failed", exc_info=True)


class AioClient(ClientCore):
    """A client whose connections, routes and heartbeats live on one event loop."""

    remoting: AioRemoting
    routes: AioRoutes
    housekeeping: LoopTasks
    flows: LoopFlows

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        ip: str | None = None,
    ) -> None:
        """Take the arguments of the threaded client, with the same errors; do no I/O."""
        if ip is not None:
            check_instance(ip, str, "client_ip is a string")
        super().__init__(namesrv, instance_name, credentials, tls)
        self.find_ip: Callable[[], str] = lambda: ip or local_ip(self.addresses[0])
        """Return this machine's address; may block."""

        self.remoting = AioRemoting(
            self.on_request, self.greeting, self.credentials, self.tls_context
        )
        self.routes = AioRoutes(self.remoting, self.addresses, self.named_by)
        self.housekeeping = LoopTasks(self.remoting)
        self.flows = LoopFlows(self)
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        if self.ip:
            return  # this start repeats one that failed later
        self.remoting.open()
        # A host name of a name server may take seconds to resolve.
        ip = await asyncio.to_thread(self.find_ip)
        if self.remoting.is_closed:
            raise ClientClosed("the client was stopped while it started")
        self.ip = ip
        self._every(ROUTE_INTERVAL_MS, lambda: self.routes.refresh(self.topics()))
        self._every(HEARTBEAT_INTERVAL_MS, self.heartbeat)

    def _every(self, interval_ms: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin `work` periodically, also if a round fails or something cancels its task."""
        every = self.housekeeping.every
        every(interval_ms, lambda: self.remoting.spawn(work()), first_ms=interval_ms)

    async def stop(self, timeout_s: float) -> None:
        """Unregister from all connected brokers and close the connections."""
        timeout_ms = min(HEARTBEAT_TIMEOUT_MS, timeout_s * 1000)
        try:
            answers = [
                (address, self.remoting.call(address, unregister_command(header), timeout_ms))
                for address in self.routes.all_addresses(masters_only=False)
                if self.remoting.is_connected(address)
                for header in self.goodbyes()
            ]
            for address, answer in answers:
                try:
                    await answer
                except ClientError as error:
                    log.info("client unregistration failed", address=address, reason=str(error))
            await self.remoting.flush(timeout_s)
        finally:
            await self.remoting.close()

    async def heartbeat(self) -> None:
        """Send a heartbeat with groups and subscriptions to every broker."""
        await self.run(self.heartbeating())

    def run(self, flow: Flow[Value]) -> Coroutine[Any, Any, Value]:
        """Return the result of `flow`, once awaited. Raises ClientError."""
        return driven(flow, self.carry_out)

    async def carry_out(self, wanted: Wanted) -> object:
        """Return the answer to what a flow yields. Raises ClientError."""
        match wanted:
            case Call(address, command, timeout_ms):
                return await self.remoting.ask(address, command, timeout_ms)
            case Calls(calls):
                return await self._ask_all(calls)
            case LookUpRoute(topic, again, publish):
                if publish:
                    return await self.routes.publish_route(topic)
                return await (self.routes.look_up(topic) if again else self.routes.get(topic))
            case Blocking(work):
                return await asyncio.to_thread(work)
            case WaitFor(register, timeout_s):
                called = asyncio.Event()
                register(called.set)
                return await happens(called.wait(), timeout_s)
            case InTurn(flow):
                async with self._turn:
                    return await self.run(flow)
        assert_never(wanted)

    async def _ask_all(self, calls: Sequence[Call]) -> list[RemotingCommand | BaseException]:
        """Return the answers or errors of requests, which are sent in turns of the loop."""
        ask, asks = self.remoting.ask, list[asyncio.Task[RemotingCommand]]()
        try:
            for start in range(0, len(calls), CALLS_OF_A_TURN):
                if start:
                    await asyncio.sleep(0)
                some = calls[start : start + CALLS_OF_A_TURN]
                asks += [self.remoting.loop.create_task(ask(*each)) for each in some]
            return await asyncio.gather(*asks, return_exceptions=True)
        except asyncio.CancelledError:
            for each in asks:
                each.cancel()
            raise

    def _refresh_route(self, topic: str) -> None:
        self.remoting.spawn(self.routes.refresh((topic,), and_known=False))
