"""Base of the threaded push and pull consumers."""

from collections.abc import Sequence

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import method_names_checked
from troupemq.client.connection.lifecycle import LAST_TIMEOUT_S, ClientMember, Work, seconds_to
from troupemq.client.connection.task_thread import TaskThread
from troupemq.client.consuming.group_work import GroupTerms, GroupWork


class GroupMember(ClientMember, GroupWork):
    """A member of a consumer group with threads; the flows block the housekeeping thread."""

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
            from remoting.local_address import local_address
            from troupemq.client.consuming.local_offsets import INSTANCE_NAME

            instance_name = instance_name or INSTANCE_NAME
            client_ip = client_ip or local_address()
        super().__init__(group, namesrv, instance_name, client_ip, credentials, tls)
        self._join(self._client, terms)
        if self._local_offsets is not None:
            self._local_offsets.locate(self._client.id)
        self._pull_tasks = TaskThread(f"troupemq-pull-{group}")

    @method_names_checked
    def subscribe(self, topic: str, expression: str = ALL_TAGS, *, sql: str | None = None) -> None:
        """Subscribe to `topic`, to all messages or to those of some tags, before or after `start`.

            consumer.subscribe("Orders", "new || paid")
            consumer.subscribe("Payments", sql="amount > 100 AND currency = 'EUR'")

        `sql` filters by properties in SQL92; it needs enablePropertyFilter at the broker. All
        members of a group must have the same subscriptions. Raises MessageIllegal for invalid
        arguments, ClientClosed after a stop, and while it runs, BrokerError for a rejected `sql`.
        """
        self.check_not_stopped()
        self._client.run(self._subscribing(topic, expression, sql))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic` and release its queues. Raises MessageIllegal."""
        self._unsubscribe(topic)

    # --- within

    def _prepare(self) -> None:
        self._client.run(self._preparing())

    def _begin(self) -> None:
        self._pull_tasks.start()
        self._begin_rounds()

    def _work(self) -> Work:
        return self._handlers_running()

    def _finish(self, deadline_s: float) -> int:
        try:
            return self._give_up_membership(deadline_s)
        finally:
            self._forget_member()

    def _give_up_membership(self, deadline_s: float) -> int:
        self._rebalancing.close()
        self._pull_tasks.stop(seconds_to(deadline_s))
        self._finish_consuming(deadline_s)  # with heartbeats, or others would get its queues
        self._client.housekeeping.stop(seconds_to(deadline_s))
        timeout_s = max(LAST_TIMEOUT_S, seconds_to(deadline_s))
        return self._client.run(self._rebalancing.give_all_away(timeout_s))

    def _finish_consuming(self, deadline_s: float) -> None:
        """Wait for running listener calls, before the queues are released."""
