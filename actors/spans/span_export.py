"""SpanExport: makes spans of the loop's notes and sends them to a collector.

Owns: the connection to the collector.
Receives: nothing but its timer tick; it reads the span queue and the log.

    store TOPIC      SERVER, a send from arrival to answer; child of the producer's span
    deliver TOPIC    SERVER, a message of a pull; child of the producer's span

A failed or hanging collector delays no request. Rejected spans are lost and counted, then the
export pauses; the queue has a limit. A stop waits at most otelTracesTimeoutMillis, and sends the
rest once if the last export succeeded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging import CRITICAL, getLogger
from os import environ
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.server_log import get_logger
from actors.settings.telemetry_settings import SpanSettings, without_user
from actors.spans.span_queue import MARK, DeliveredNote, SpanQueue, StoredNote, carried
from protocol import span_names as names
from protocol.host import host_of
from protocol.java_numbers import plain_number
from protocol.message import RecordError, decode_records
from protocol.message_id import parse_message_id
from protocol.properties import UNIQ_KEY, parse
from protocol.span_names import AttributeValue, TraceParent
from storage.errors import StoreError
from storage.message_store import MessageStore

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = get_logger(__name__)

TICK_MS = 1000.0
BATCH_SPANS = 512
"""Spans per request."""
PAUSE_MS_MAX = 60_000.0
"""Maximum pause; the first failure pauses for a tick, each further one twice as long."""


@dataclass(frozen=True, slots=True)
class SpanMade:
    """A span before it is converted to the library's."""

    name: str
    parent: TraceParent
    begun_ns: int
    ended_ns: int
    attributes: dict[str, AttributeValue]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _Send:
    """Timer tick: send the waiting spans."""


class SpanExport(Actor):
    """Export of spans. Runs on a thread."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self, queue: SpanQueue, store: MessageStore, settings: SpanSettings, broker_name: str
    ) -> None:
        super().__init__()
        self._shown = without_user(settings.otel_endpoint)
        self._queue, self._store = queue, store
        self._settings, self._broker_name = settings, broker_name
        self._pause_ms, self._again_at_ms = 0.0, 0.0

    def on_start(self) -> None:
        self._collector = Collector(self._settings, self._broker_name)
        self.every(TICK_MS, _Send())

    @handles(_Send)
    def on_send(self, _: _Send) -> None:
        """Send all waiting spans, unless the collector has just failed."""
        if self.system.clock.monotonic_ms() < self._again_at_ms:
            return
        for _batch in range(1 + self._queue.waiting_count // BATCH_SPANS):
            if not self._send_some():
                return

    def on_stop(self) -> None:
        if not self._pause_ms:
            self._send_some()
        self._collector.close()

    def on_failure(self, *_: object) -> None:
        self._collector.close()

    def _send_some(self) -> bool:
        """Send a batch; return whether there may be more."""
        made: list[SpanMade] = []
        while len(made) < BATCH_SPANS and (found := self._queue.take()) is not None:
            made += self._spans_of(found)
        if not made:
            return False
        if self._collector.send(made):
            if self._pause_ms:
                log.info("span export recovered", endpoint=self._shown)
            self._pause_ms = 0.0
            self._queue.sent_count += len(made)
            return True
        self._queue.lost_count += len(made)
        if not self._pause_ms:
            log.warning("span export failed", endpoint=self._shown)
        self._pause_ms = min(max(2 * self._pause_ms, TICK_MS), PAUSE_MS_MAX)
        self._again_at_ms = self.system.clock.monotonic_ms() + self._pause_ms
        return False

    # --- spans of notes

    def _spans_of(self, found: StoredNote | DeliveredNote) -> Iterator[SpanMade]:
        if isinstance(found, DeliveredNote):
            return self._delivered(found)
        return self._stored(found) if found.parent is None else iter([_store(found, found.parent)])

    def _stored(self, batch: StoredNote) -> Iterator[SpanMade]:
        """Yield the spans of the sampled messages of a batch."""
        for each in batch.ids.split(","):
            _, offset = parse_message_id(each)
            record = self._store.commit_log.read_record(offset, self._store.damage)
            parent = None if record is None else carried(record.properties)
            if record is not None and parent is not None and self._queue.sampling.takes(parent):
                yield _store(batch, parent, each, len(record.body))

    def _delivered(self, pull: DeliveredNote) -> Iterator[SpanMade]:
        for start, end in pull.runs:
            try:
                data = bytes(self._store.commit_log.view(start, end - start))
                if MARK not in data:
                    continue
                records = list(decode_records(data))
            except (StoreError, RecordError, ValueError):  # deleted meanwhile, or damaged
                continue
            for record in records:
                parent = carried(record.properties)
                if parent is None or not self._queue.sampling.takes(parent):
                    continue
                attributes: dict[str, AttributeValue] = {
                    names.CONSUMER_GROUP: pull.group,
                    names.MESSAGE_ID: parse(bytes(record.properties)).get(UNIQ_KEY, ""),
                    names.BODY_SIZE: len(record.body),
                }
                name, client = f"deliver {record.topic}", pull.client
                attributes |= _common("deliver", record.topic, record.queue_id, client)
                yield SpanMade(name, parent, pull.begun_ns, pull.ended_ns, attributes)


def _store(found: StoredNote, parent: TraceParent, ids: str = "", body_bytes: int = -1) -> SpanMade:
    attributes: dict[str, AttributeValue] = {
        **_common("store", found.topic, found.queue_id, found.client),
        names.MESSAGE_ID: ids or found.ids,
        names.BODY_SIZE: found.body_bytes if body_bytes < 0 else body_bytes,
    }
    times = found.begun_ns, found.ended_ns
    return SpanMade(f"store {found.topic}", parent, *times, attributes, found.failure)


def _common(operation: str, topic: str, queue_id: int, client: str) -> dict[str, AttributeValue]:
    host, port = host_of(client), client.rpartition(":")[2]
    return {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: operation,
        names.DESTINATION: topic,
        names.PARTITION: str(queue_id),
        names.CLIENT_ADDRESS: host,
        names.CLIENT_PORT: plain_number(port) or 0,
    }


class Collector:
    """Client of OTLP, the only code that uses the library. For one thread."""

    def __init__(self, settings: SpanSettings, broker_name: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        getLogger("opentelemetry").setLevel(CRITICAL)  # this actor logs failures, once
        ended: list[ReadableSpan] = []

        class Keep(SpanProcessor):
            def on_end(self, span: "ReadableSpan") -> None:
                ended.append(span)

        names_of_us = {"service.name": environ.get("OTEL_SERVICE_NAME", "troupemq")}
        resource = Resource.create({**names_of_us, "service.instance.id": broker_name})
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        provider.add_span_processor(Keep())
        self._ended = ended
        self._tracer = provider.get_tracer("troupemq.broker")
        self._rocket = names.RocketNames(environ.get(names.OPT_IN, ""))
        self._timeout_s = settings.otel_timeout_ms / 1000
        self._exporter = OTLPSpanExporter(settings.otel_endpoint, timeout=self._timeout_s)
        self._asking: Thread | None = None

    def send(self, spans: Sequence[SpanMade]) -> bool:
        """Send spans within otelTracesTimeoutMillis; return whether the collector accepted them.

        The library applies the timeout to each piece of an answer. So it runs on a thread
        of its own, and an export that has not ended blocks the next.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        for each in spans:
            self._make(each)
        ended = [*self._ended]
        self._ended.clear()
        if self._asking is not None and self._asking.is_alive():
            return False
        said: list[SpanExportResult] = []
        self._asking = Thread(
            target=lambda: said.append(self._exporter.export(ended)), name="collector", daemon=True
        )
        self._asking.start()
        self._asking.join(self._timeout_s)
        return said == [SpanExportResult.SUCCESS]

    def _make(self, made: SpanMade) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            SpanKind,
            Status,
            StatusCode,
            TraceFlags,
            set_span_in_context,
        )

        parent = made.parent
        flags = TraceFlags(TraceFlags.SAMPLED)
        above = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
        span = self._tracer.start_span(
            made.name,
            context=set_span_in_context(NonRecordingSpan(above), Context()),
            kind=SpanKind.SERVER,
            attributes={**made.attributes, **self._rocket.of({names.NAMESPACE: ""})},
            start_time=made.begun_ns,
        )
        if made.failure:
            span.set_status(Status(StatusCode.ERROR, made.failure))
            span.set_attribute(names.ERROR_TYPE, "refused")
        span.end(made.ended_ns)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
