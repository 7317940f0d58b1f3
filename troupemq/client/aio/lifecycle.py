"""Bases of the classes of an event loop: a client, one start and one stop, and a group."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.aio.client import AioClient, happens
from troupemq.client.arguments import MS_MAX, check_range
from troupemq.client.connection.lifecycle import (
    LAST_TIMEOUT_S,
    Lifecycle,
    LifecycleState,
    StopReport,
)
from troupemq.client.message import check_own_group
from troupemq.client.spans import spans_class

spans_class()  # imports OpenTelemetry now: an event loop would wait for it at the first start


class AioLifecycle(Lifecycle):
    """Owner of a client; call `start` and `stop`, or use `async with`.

    It belongs to the event loop that runs at its start. A failed start may be repeated; after a
    stop, make a new one.
    """

    _client: AioClient

    def __init__(self, client: AioClient) -> None:
        self._client = client
        self._starting = asyncio.Lock()
        self._stopped = asyncio.Event()
        """Set at the end of the stop."""

    async def start(self) -> None:
        """Start; do nothing if it runs. Raises ClientError.

        That is ClientClosed after a stop, and if it runs on another event loop. A call while
        another one starts waits for that one. A stop meanwhile ends the start.
        """
        async with self._starting:
            if self._state is LifecycleState.RUNNING:
                self.check_running()
                return
            self._check(LifecycleState.NEW)
            try:
                await self._open()
                await self._prepare()
                self._check(LifecycleState.NEW)
            except BaseException:
                self._give_up_start()
                raise
            self._state = LifecycleState.RUNNING
            self._begin()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Finish in-flight work within `timeout_s`, then unregister from the brokers.

        The log line "client stopped" says what it waited for (docs/sending.md). Does nothing if it
        is stopped. A call while another one stops waits for that one, within its own timeout. A
        cancelled stop closes the connections at once. Raises ClientClosed on another event loop,
        and in a forked process.
        """
        if timeout_s is not None:
            check_range(timeout_s, 0, MS_MAX, "timeout_s")
        if self.is_running:
            self.check_running()
        timeout_s = self.stop_timeout_s if timeout_s is None else timeout_s
        before, self._state = self._state, LifecycleState.STOPPED
        if before is LifecycleState.STOPPED:
            if not self._is_own_task():  # for which the other call may wait
                await happens(self._stopped.wait(), timeout_s + LAST_TIMEOUT_S)
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        try:
            if before is LifecycleState.RUNNING:
                report = StopReport(self.kind, self.group, self._work())
                report.log(await self._finish(deadline_s))
                await self._client.stop(max(LAST_TIMEOUT_S, deadline_s - loop.time()))
        finally:
            try:
                await self._client.remoting.close()
            finally:
                try:
                    await self._abandon()
                finally:
                    self._stopped.set()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()

    def check_running(self) -> None:
        """Raise ClientClosed unless it runs, on this event loop and in this process."""
        super().check_running()
        _ = self._client.remoting.loop

    def _check_usable(self) -> None:
        """Raise ClientClosed after a stop, on another loop and in another process."""
        self.check_not_stopped()
        if self.is_running:
            self.check_running()

    async def _open(self) -> None:
        await self._client.start()

    async def _prepare(self) -> None:
        """Run the steps of a start that may fail, before it counts as running."""

    def _give_up_start(self) -> None:
        """Undo what `_prepare` has done: the start may be repeated."""

    async def _abandon(self) -> None:
        """End own tasks that still run, after the connections are closed."""

    def _is_own_task(self) -> bool:
        """Return whether the caller is a task that a stop waits for, such as a handler."""
        return False

    @abstractmethod
    async def _finish(self, deadline_s: float) -> int | None:
        """Reject new work and wait for in-flight work, until `deadline_s` of the loop.

        Return the number of committed offsets; None for a client without any.
        """


class AioMember(AioLifecycle):
    """A producer or consumer: a member of a group."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None,
        instance_name: str | None,
        credentials: Credentials | None,
        tls: Tls | None,
        ip: str | None = None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address."""
        check_own_group(group, self.kind)
        self.group = group
        super().__init__(AioClient(namesrv, instance_name, credentials, tls, ip))
