"""Driver of the receiving flows for an event loop: awaits what they yield."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from protocol.command import RemotingCommand
from troupemq.client.aio.client import AioClient, happens
from troupemq.client.aio.remoting import Pending, driven
from troupemq.client.connection.calls import Value
from troupemq.client.connection.route import Route
from troupemq.client.receiving.flows import Flow
from troupemq.client.receiving.waiter import FlowWaiter


class AioWaiter(FlowWaiter[Pending[RemotingCommand]]):
    """Runs flows for any number of coroutines of one loop."""

    def __init__(self, client: AioClient) -> None:
        super().__init__(client)
        self._client = client
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all pauses with ClientClosed; open requests end when the client stops."""
        self._stopping.set()

    def run(self, flow: Flow[Value]) -> Coroutine[Any, Any, Value]:
        """Return the result of `flow`, once awaited. Raises ClientError."""
        return driven(flow, self._carry_out)

    def _send(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> Pending[RemotingCommand]:
        return self._client.remoting.call(address, command, timeout_ms)

    async def _answer(self, request: Pending[RemotingCommand]) -> RemotingCommand:
        return await request

    async def _wait(
        self, requests: Sequence[Pending[RemotingCommand]], timeout_s: float, *, for_all: bool
    ) -> None:
        enough = asyncio.ALL_COMPLETED if for_all else asyncio.FIRST_COMPLETED
        await asyncio.wait(requests, timeout=timeout_s, return_when=enough)

    async def _look_up(self, topic: str) -> Route:
        return await self._client.routes.get(topic)

    async def _pause(self, seconds: float) -> bool:
        return await happens(self._stopping.wait(), seconds)
