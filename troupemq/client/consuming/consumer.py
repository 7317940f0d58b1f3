"""PushConsumer: pulls the messages of its subscriptions and passes them to a listener."""

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.arguments import check_flag, method_names_checked, names_checked
from troupemq.client.connection.calls import Wanted, drive
from troupemq.client.connection.client import Client, ThreadFlows
from troupemq.client.connection.lifecycle import seconds_to
from troupemq.client.connection.task_thread import TaskThread, Workers
from troupemq.client.consuming.assignment import Assignment, averagely, check_assignment
from troupemq.client.consuming.consume import Handle, ListenerFlow
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.group_member import GroupMember
from troupemq.client.consuming.group_work import GroupTerms
from troupemq.client.consuming.listener import Listener, Outcome, TopicListeners, call_listener
from troupemq.client.consuming.push_work import PushWork
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView
from troupemq.client.settings import ConsumerSettings
from troupemq.client.spans import spans_of

if TYPE_CHECKING:
    from pathlib import Path

    from troupemq.client.span_making import ClientSpans

log = client_logger(__name__)

WORKER_NAME = "troupemq-consume"
"""Start of the names of threads that call listeners; the group follows."""


class ListenerThreads:
    """Drives flows with listener calls on a pool of threads, which block for all requests."""

    def __init__(self, client: Client, group: str, listener: Listener, count: int) -> None:
        self._client, self._group, self._listener = client, group, listener
        self.workers = Workers(f"{WORKER_NAME}-{group}", count)
        self._spans: ClientSpans | None = None
        self._model = ""

    def start(self, spans: "ClientSpans | None", model: str) -> None:
        self._spans, self._model = spans, model
        self.workers.start()

    def stop(self, timeout_s: float) -> bool:
        """End the threads after their flows; return False on timeout."""
        return self.workers.stop(timeout_s)

    def run(self, flow: ListenerFlow[None]) -> None:
        self.workers.run(lambda: drive(flow, self._carry_out))

    def _carry_out(self, wanted: Wanted | Handle) -> object:
        if isinstance(wanted, Handle):
            return self._call(wanted.views)
        return self._client.carry_out(wanted)

    def _call(self, views: Sequence[MessageView]) -> tuple[Outcome, float]:
        begun_s, spans = monotonic(), self._spans
        if spans is None or not spans.wants(views):
            outcome = call_listener(self._listener, views)
        else:
            with spans.process(self._group, views, self._model) as span:
                outcome = call_listener(self._listener, views)
                if outcome.failed is not None:
                    spans.to_be_retried(span, outcome.error)
        return outcome, (monotonic() - begun_s) * 1000


@partial(names_checked, settings=ConsumerSettings)
class PushConsumer(GroupMember, PushWork):
    """A member of a consumer group; each message goes to one member, or to all with `broadcast`.

        def listen(messages):
            for message in messages:
                print(message.tags, message.body)

        with PushConsumer("billing", listen, namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders", "new || paid")
            ...

    Delivery is at least once: a message is consumed when its listener call returns None or
    SUCCESS. It may be delivered again after a crash, a rebalance or a failure. No message is
    skipped. A failed message is retried later, and becomes a dead letter after
    `max_reconsume_times`; a broadcasting consumer does not retry. With `orderly` the messages of a
    queue are delivered in order, one call at a time. A failed one is retried before those behind
    it.

    `start` raises ClientError if no name server answers or a broker rejects an SQL92 expression.
    A missing topic is consumed as soon as it exists. `stop` waits for running listener calls, then
    commits. Calls over its timeout are abandoned, and their messages are delivered again.
    """

    stop_timeout_s = 30.0
    exit_hint = (
        "its listener gets no more messages: let the main thread wait, as with Event().wait(),"
        " or stop the consumer before the program ends"
    )

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        namesrv: str | Sequence[str] | None = None,
        *,
        orderly: bool = False,
        broadcast: bool = False,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        begin_ms: int | None = None,
        settings: ConsumerSettings | None = None,
        assign: Assignment = averagely,
        instance_name: str | None = None,
        client_ip: str | None = None,
        offsets_folder: "Path | None" = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Raise ArgumentIllegal, and ConnectionFailed for an invalid address.

        * `listener`: gets the messages of all topics that have no listener of their own.
        * `begin`: start in queues that the group has never consumed.
        * `begin_ms`: time for ConsumeFrom.TIMESTAMP, ms since 1970. [default: 30 minutes ago]
        * `offsets_folder`: files of broadcast offsets, by client id. [default: as in Java]
        * `instance_name`: must differ between broadcasting consumers of a group on one machine.
        """
        self._listeners = TopicListeners(listener)
        check_assignment(assign)
        check_flag(orderly, "orderly")
        settings = settings or ConsumerSettings()
        terms = GroupTerms(settings, begin, begin_ms, broadcast, offsets_folder)
        super().__init__(group, namesrv, terms, instance_name, client_ip, credentials, tls)
        self.orderly = orderly
        threads = self.settings.consume_threads
        self._listening = ListenerThreads(self._client, group, self._listeners, threads)
        self._order_thread = TaskThread(f"troupemq-order-{group}")
        flows = ThreadFlows(self._order_thread, self._client.run)
        self._build(assign, self._listening, self._pull_tasks, flows)

    @property
    def concurrency(self) -> int:
        return self.settings.consume_threads

    @method_names_checked
    def subscribe(
        self,
        topic: str,
        expression: str = ALL_TAGS,
        *,
        sql: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Subscribe to `topic`, to all messages or to those of some tags, before or after `start`.

            consumer.subscribe("Orders", "new || paid")
            consumer.subscribe("Payments", sql="amount > 100", listener=book)

        `listener` gets the messages of this topic in place of the consumer's. `sql` filters by
        properties in SQL92; it needs enablePropertyFilter at the broker. All members of a group
        must have the same subscriptions. Raises ArgumentIllegal for a topic without a listener,
        MessageIllegal for invalid arguments, ClientClosed after a stop, and while it runs,
        BrokerError for a rejected `sql`.
        """
        self._listeners.set(topic, listener)
        super().subscribe(topic, expression, sql=sql)

    # --- within

    def _begin(self) -> None:
        self._listening.start(spans_of(self.client_id), self.message_model.lower())
        self._order_thread.start()
        super()._begin()

    def _finish_consuming(self, deadline_s: float) -> None:
        self._log_calls(log.info, "stop waits for listeners")
        if not self._listening.stop(seconds_to(deadline_s)):
            self._log_calls(log.warning, "listeners still running at stop")
        self._order_thread.stop(seconds_to(deadline_s))  # which has renewed the locks meanwhile
