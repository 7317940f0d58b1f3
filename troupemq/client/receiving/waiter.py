"""Drivers of the flows, which carry out what they yield; here the one that blocks its caller."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait
from math import inf
from threading import Event, Lock
from time import monotonic
from typing import Generic, Protocol, TypeVar, assert_never

from protocol.frame import RemotingCommand
from troupemq.client.connection.calls import Blocking, LookUpRoute, Value, drive, finished
from troupemq.client.connection.client import Client, ClientCore
from troupemq.client.connection.pending import Answer
from troupemq.client.connection.route import Route
from troupemq.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.receiving.flows import Ask, Flow, Pause, Several, Wanted

SLACK_MS = 3000
"""Time for an answer beyond that for which the broker may hold the request."""
KEPT_S = 3600.0
"""Time for which an answer of a POP is waited for; it usually ends with its connection."""


class OpenRequest(Protocol):
    """Future of an answer, of a thread or of an event loop."""

    def done(self) -> bool: ...

    def cancel(self) -> bool: ...

    def result(self) -> RemotingCommand: ...

    def exception(self) -> BaseException | None: ...


Request = TypeVar("Request", bound=OpenRequest)


class FlowWaiter(ABC, Generic[Request]):
    """Runs flows for any number of callers. Coroutines of a subclass for threads never suspend.

    An answer to POP may arrive after its receive has given up, and its messages are in flight then.
    The next receive of that topic at that broker waits for it instead of sending another POP.
    """

    def __init__(self, client: ClientCore) -> None:
        self._core = client
        self._late: dict[tuple[str, str], list[tuple[Request, float]]] = {}
        """POPs by topic and broker that were not answered in time, each with its last deadline."""

        self._lock = Lock()

    @abstractmethod
    def _send(self, address: str, command: RemotingCommand, timeout_ms: float) -> Request:
        """Send a request, without waiting for its answer."""

    @abstractmethod
    async def _answer(self, request: Request) -> RemotingCommand:
        """Return the answer, or raise the ClientError of its absence."""

    @abstractmethod
    async def _wait(self, requests: Sequence[Request], timeout_s: float, *, for_all: bool) -> None:
        """Wait until one or all of the requests are done, at most for `timeout_s`."""

    @abstractmethod
    async def _look_up(self, topic: str) -> Route:
        """Return the known route of a topic, else that of a name server."""

    @abstractmethod
    async def _pause(self, seconds: float) -> bool:
        """Wait; return whether the consumer was stopped meanwhile."""

    @abstractmethod
    async def _blocking(self, work: Callable[[], object]) -> object:
        """Return the result of a function that takes long."""

    async def _carry_out(self, wanted: Wanted) -> object:
        match wanted:
            case Ask():
                return await self._ask(wanted)
            case Several():
                return await self._several(wanted)
            case LookUpRoute():
                return await self._look_up(wanted.topic)
            case Blocking():
                return await self._blocking(wanted.work)
            case Pause():
                if await self._pause(wanted.ms / 1000):
                    raise ClientClosed("the consumer is stopped")
                return None
        assert_never(wanted)

    async def _ask(self, ask: Ask) -> RemotingCommand:
        try:
            if ask.is_pop:
                return await self._pop(ask)
            return await self._answer(self._call(ask, ask.timeout_ms))
        except (ConnectionFailed, RequestTimeout, RouteNotFound):
            self._core.refresh_soon(ask.topic)
            raise

    def _call(self, ask: Ask, timeout_ms: float) -> Request:
        """Send the request. Raises RouteNotFound."""
        return self._send(self._core.routes.master(ask.broker_name), ask.command, timeout_ms)

    async def _pop(self, ask: Ask) -> RemotingCommand:
        key = ask.topic, ask.broker_name
        late = self._take_late(key) or (self._call(ask, inf), monotonic() + KEPT_S)
        answer, _ = late
        is_late = False
        try:
            await self._wait((answer,), (ask.timeout_ms + SLACK_MS) / 1000, for_all=True)
        finally:
            if is_late := not answer.done():  # after a timeout, a cancellation, or Ctrl-C
                with self._lock:
                    self._late.setdefault(key, []).append(late)
        if is_late:
            raise RequestTimeout(f"{ask.broker_name} did not answer in time")
        return answer.result()

    def _take_late(self, key: tuple[str, str]) -> tuple[Request, float] | None:
        with self._lock:
            while late := self._late.get(key):
                answer, until_s = late.pop()
                if answer.exception() is None if answer.done() else monotonic() < until_s:
                    return answer, until_s
        return None

    async def _several(self, several: Several) -> list[RemotingCommand | ClientError | None]:
        calls: list[Request | ClientError] = []
        for ask in several.asks:
            try:
                calls.append(self._call(ask, several.timeout_ms + SLACK_MS))
            except ClientError as error:
                calls.append(error)
        answers = [each for each in calls if not isinstance(each, ClientError)]
        if answers and (len(answers) == len(calls) or several.wait_all):
            await self._wait(answers, several.timeout_ms / 1000, for_all=several.wait_all)
        found: list[RemotingCommand | ClientError | None] = []
        for ask, call in zip(several.asks, calls, strict=True):
            result = call if isinstance(call, ClientError) else _result(call)
            if isinstance(result, ConnectionFailed | RouteNotFound):
                self._core.refresh_soon(ask.topic)
            found.append(result)
        return found


def _result(request: OpenRequest) -> RemotingCommand | ClientError | None:
    """Return an answer or its failure; one that is not there yet is dropped when it comes."""
    if not request.done():
        request.cancel()
        return None
    error = request.exception()
    return error if isinstance(error, ClientError) else request.result()


class Waiter(FlowWaiter[Answer]):
    """Runs flows for any number of threads."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._client = client
        self._stopping = Event()

    def stop(self) -> None:
        """End all pauses with ClientClosed; open requests end when the client stops."""
        self._stopping.set()

    def run(self, flow: Flow[Value]) -> Value:
        """Return the result of `flow`. Blocks; raises ClientError, always on the I/O thread."""
        self._client.remoting.check_may_wait()
        return drive(flow, lambda wanted: finished(self._carry_out(wanted)))

    def _send(self, address: str, command: RemotingCommand, timeout_ms: float) -> Answer:
        return self._client.remoting.call_async(address, command, timeout_ms)

    async def _answer(self, request: Answer) -> RemotingCommand:
        return request.result()

    async def _wait(self, requests: Sequence[Answer], timeout_s: float, *, for_all: bool) -> None:
        wait(requests, timeout_s, ALL_COMPLETED if for_all else FIRST_COMPLETED)

    async def _look_up(self, topic: str) -> Route:
        return self._client.routes.get(topic)

    async def _blocking(self, work: Callable[[], object]) -> object:
        return work()

    async def _pause(self, seconds: float) -> bool:
        return self._stopping.wait(seconds)
