"""Base of the consumers of an event loop that are members of a group."""

from collections.abc import Sequence

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.local_address import local_address
from remoting.tls_options import Tls
from troupemq.client.aio.lifecycle import AioMember
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, Work, seconds_to
from troupemq.client.consuming.group_work import GroupTerms, GroupWork
from troupemq.client.consuming.local_offsets import INSTANCE_NAME


class AioGroupMember(AioMember, GroupWork):
    """A member of a consumer group; its flows are awaited one by one."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None,
        terms: GroupTerms,
        instance_name: str | None,
        client_ip: str | None,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address."""
        terms.check()
        if terms.broadcast:
            instance_name = instance_name or INSTANCE_NAME
        super().__init__(group, namesrv, instance_name, credentials, tls, client_ip)
        if terms.broadcast and client_ip is None:
            self._client.find_ip = local_address
        self._join(self._client, terms)

    async def subscribe(
        self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None
    ) -> None:
        """Subscribe to `topic`, to all messages or to those of some tags, before or after `start`.

        Arguments and errors are those of the threaded consumer.
        """
        self._check_usable()
        await self._client.run(self._subscribing(topic, expression, sql))

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic` and release its queues. Raises MessageIllegal."""
        self._unsubscribe(topic)

    # --- within

    async def _prepare(self) -> None:
        if self._local_offsets is not None:
            self._local_offsets.locate(self._client.id)
        await self._client.run(self._preparing())

    def _give_up_start(self) -> None:
        self._forget_member()

    def _begin(self) -> None:
        self._begin_rounds()

    def _work(self) -> Work:
        return self._handlers_running()

    async def _finish(self, deadline_s: float) -> int:
        try:
            self._rebalancing.close()
            await self._client.flows.stop(seconds_to(deadline_s))
            await self._finish_consuming(deadline_s)
            timeout_s = max(LAST_TIMEOUT_S, seconds_to(deadline_s))
            return await self._client.run(self._rebalancing.give_all_away(timeout_s))
        finally:
            self._forget_member()

    async def _finish_consuming(self, deadline_s: float) -> None:
        """Wait for running handlers, before the queues are released."""
