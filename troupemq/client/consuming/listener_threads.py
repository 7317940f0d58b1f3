"""Pool of threads that calls a listener."""

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from troupemq.client.connection.calls import Wanted, drive
from troupemq.client.connection.client import Client
from troupemq.client.connection.workers import Workers
from troupemq.client.consuming.consume import Handle, ListenerFlow
from troupemq.client.consuming.listener import Listener, Outcome, call_listener
from troupemq.client.message import MessageView

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

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
