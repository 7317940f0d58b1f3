"""Driver of the receiving flows for an event loop: awaits what they yield."""

import asyncio
from collections.abc import Coroutine
from math import inf
from time import monotonic
from typing import Any, assert_never

from protocol.command import RemotingCommand
from troupemq.client.aio.client import AioClient
from troupemq.client.aio.remoting import Pending, driven
from troupemq.client.connection.calls import LookUpRoute, Value
from troupemq.client.connection.route import Route
from troupemq.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.receiving.flows import Ask, Flow, Pause, Several, Wanted
from troupemq.client.receiving.waiter import KEPT_S, SLACK_MS


class AioWaiter:
    """Runs flows for any number of coroutines of one loop."""

    def __init__(self, client: AioClient) -> None:
        self._client = client
        self._stopping = asyncio.Event()
        self._late: dict[tuple[str, str], list[tuple[Pending[RemotingCommand], float]]] = {}
        """Requests for messages that were not answered in time, by topic and broker.

        Each is with the end of the wait for it.
        """

    def stop(self) -> None:
        """End all pauses with ClientClosed; open requests end when the client stops."""
        self._stopping.set()

    def run(self, flow: Flow[Value]) -> Coroutine[Any, Any, Value]:
        """Return the result of `flow`, once awaited. Raises ClientError."""
        return driven(flow, self._carry_out)

    async def _carry_out(
        self, wanted: Wanted
    ) -> RemotingCommand | list[RemotingCommand | ClientError | None] | Route | None:
        match wanted:
            case Ask():
                return await self._ask(wanted)
            case Several():
                return await self._several(wanted)
            case LookUpRoute():
                return await self._client.routes.get(wanted.topic)
            case Pause():
                await self._pause(wanted.ms / 1000)
                return None
        assert_never(wanted)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise ClientClosed("the consumer is stopped")

    async def _ask(self, ask: Ask) -> RemotingCommand:
        try:
            if ask.is_pop:
                return await self._pop(ask)
            return await self._call(ask, ask.timeout_ms)
        except (ConnectionFailed, RequestTimeout, RouteNotFound):
            self._client.refresh_soon(ask.topic)
            raise

    def _call(self, ask: Ask, timeout_ms: float) -> Pending[RemotingCommand]:
        """Send the request. Raises RouteNotFound."""
        address = self._client.routes.master(ask.broker_name)
        return self._client.remoting.call(address, ask.command, timeout_ms)

    async def _pop(self, ask: Ask) -> RemotingCommand:
        key = ask.topic, ask.broker_name
        late = self._take_late(key) or (self._call(ask, inf), monotonic() + KEPT_S)
        answer, _ = late
        try:
            await asyncio.wait((answer,), timeout=(ask.timeout_ms + SLACK_MS) / 1000)
        finally:
            if not answer.done():
                self._late.setdefault(key, []).append(late)
        if not answer.done():
            raise RequestTimeout(f"{ask.broker_name} did not answer in time")
        return answer.result()

    def _take_late(self, key: tuple[str, str]) -> tuple[Pending[RemotingCommand], float] | None:
        while late := self._late.get(key):
            answer, until_s = late.pop()
            if answer.exception() is None if answer.done() else monotonic() < until_s:
                return answer, until_s
        return None

    async def _several(self, several: Several) -> list[RemotingCommand | ClientError | None]:
        calls: list[Pending[RemotingCommand] | ClientError] = []
        for ask in several.asks:
            try:
                calls.append(self._call(ask, several.timeout_ms + SLACK_MS))
            except ClientError as error:
                calls.append(error)
        answers = [each for each in calls if not isinstance(each, ClientError)]
        if answers and (len(answers) == len(calls) or several.wait_all):
            enough = asyncio.ALL_COMPLETED if several.wait_all else asyncio.FIRST_COMPLETED
            await asyncio.wait(answers, timeout=several.timeout_ms / 1000, return_when=enough)
        found: list[RemotingCommand | ClientError | None] = []
        for ask, call in zip(several.asks, calls, strict=True):
            result = call if isinstance(call, ClientError) else _result(call)
            if isinstance(result, ConnectionFailed | RouteNotFound):
                self._client.refresh_soon(ask.topic)
            found.append(result)
        return found


def _result(answer: Pending[RemotingCommand]) -> RemotingCommand | ClientError | None:
    """Return an answer or its failure; one that is not there yet is dropped when it comes."""
    if not answer.done():
        answer.cancel()
        return None
    error = answer.exception()
    return error if isinstance(error, ClientError) else answer.result()
