"""Tests of actors/spans/span_export.py: a broker's spans, as a collector on loopback gets them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from time import monotonic, process_time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from structlog.testing import capture_logs

from actors.broker_server import start_broker
from actors.config import settings_of
from actors.engine.system import ActorSystem
from actors.settings.telemetry_settings import SpanSettings
from protocol.batch import BatchMessage, encode_batch
from remoting.sync_connection import SyncConnection
from storage.errors import StoreError
from storage.files.disk import RealDisk
from tests.support.brokers import BROKER, SimulatedBroker, send_command, store_in
from tests.support.metrics import Scraper, value

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-5bf92f3577b34da6a3ce929d0e0e4736-10f067aa0ba902b7-01"
WAIT_S = 30.0


class Collector:
    """A collector of OpenTelemetry that accepts spans, fails or hangs."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.status = 200
        self.let_go = Event()
        self.let_go.set()
        self.asked = Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.set()
                outer.let_go.wait(WAIT_S)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = decompress(body)
                if outer.status == 200:
                    outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Drop the log line."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for each in resource.resource.attributes:
                if each.key == "service.instance.id":
                    self.services.add(each.value.string_value)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def broker(collector: Collector, **settings: object) -> SimulatedBroker:
    config = replace(
        BROKER,
        otel_traces=True,
        otel_endpoint=collector.url.replace("://", "://me:secret@"),
        **settings,  # type: ignore[arg-type]
    )
    made = SimulatedBroker(1, config=config)
    made.make_topic()
    made.make_group()
    made.subscribe()
    return made


def parent_of(span: Span) -> str:
    return f"00-{span.trace_id.hex()}-{span.parent_span_id.hex()}-01"


def attributes(span: Span) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_store_and_deliver_spans_are_children_of_the_producers_span(collector: Collector) -> None:
    made = broker(collector)
    properties = f"UNIQ_KEY\x01ID\x02traceparent\x01{PARENT}\x02"
    made.send(b"12345", properties=properties)
    made.send(b"untraced")
    made.send(b"unsampled", properties=f"traceparent\x01{PARENT[:-2]}00\x02")
    made.pull(0)
    made.system.advance(2000)
    assert [(each.name, parent_of(each)) for each in collector.spans] == [
        ("store Topic", PARENT),
        ("deliver Topic", PARENT),
    ]
    store, deliver = collector.spans
    assert collector.services == {"broker-a"}
    assert store.end_time_unix_nano >= store.start_time_unix_nano > 0
    assert attributes(store)["messaging.message.body.size"] == 5
    found = attributes(deliver)
    assert found["messaging.consumer.group.name"] == "consumers"
    assert found["messaging.message.id"] == "ID" and found["messaging.system"] == "rocketmq"
    said = Scraper(made).found()
    assert value(said, "troupemq_spans_total", result="sent") == 2
    assert value(said, "troupemq_span_notes_dropped_total") == 0


def test_each_message_of_a_batch_has_its_own_parent_span(collector: Collector) -> None:
    made = broker(collector)
    texts = [f"traceparent\x01{each}\x02".encode() for each in (PARENT, OTHER)]
    bodies = (b"one", texts[0]), (b"no", b""), (b"three", texts[1])
    body = encode_batch([BatchMessage(*each) for each in bodies])
    made.ask(send_command(body, batch=True))
    made.system.advance(2000)
    assert [parent_of(each) for each in collector.spans] == [PARENT, OTHER]


def test_a_refused_send_marks_its_span_as_failed(collector: Collector) -> None:
    made = broker(collector, auto_create_topic_enable=False)
    made.ask(
        send_command(topic="Nowhere", properties=f"traceparent\x01{PARENT}\x02"),
    )
    made.system.advance(2000)
    (span,) = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert "Nowhere" in span.status.message


def test_the_sampling_ratio_omits_traces(collector: Collector) -> None:
    made = broker(collector, otel_sample_ratio=0.0)
    made.send(properties=f"traceparent\x01{PARENT}\x02")
    made.pull(0)
    made.system.advance(2000)
    assert collector.spans == []


def test_spans_refused_by_the_collector_are_dropped_and_export_pauses(
    collector: Collector,
) -> None:
    made = broker(collector)
    collector.status = 400
    with capture_logs() as logs:
        for _ in range(4):
            made.send(properties=f"traceparent\x01{PARENT}\x02")
            made.system.advance(1000)
        collector.status = 200
        made.send(properties=f"traceparent\x01{PARENT}\x02")
        made.system.advance(10_000)
    told = [each["event"] for each in logs if "span export" in each["event"]]
    assert told == ["span export failed", "span export recovered"]
    assert "secret" not in str(logs) and "***@" in str(logs)
    queue = made.broker.spans
    assert queue is not None and queue.lost_count > 0
    assert queue.lost_count + queue.sent_count == 5 and queue.sent_count == len(collector.spans)


@pytest.mark.heavy
def test_a_hanging_collector_delays_no_send_and_no_stop(
    collector: Collector, tmp_path: Path
) -> None:
    collector.let_go.clear()
    config = replace(
        BROKER,
        listen_port=0,
        bind_address="127.0.0.1",
        otel_traces=True,
        otel_endpoint=collector.url,
        otel_timeout_ms=300,
        otel_queue_max=16,
    )
    store = store_in(tmp_path / "store")
    running = start_broker(config, store, system=ActorSystem.real(disk=RealDisk()))
    with ProducerOf(running.ports.main) as send:
        for _ in range(10):
            send(PARENT)
        assert collector.asked.wait(WAIT_S), "it is asked, and says nothing"
        cpu_s, began_s = process_time(), monotonic()
        for _ in range(100):
            send(PARENT)
        assert process_time() - cpu_s < 5 and monotonic() - began_s < WAIT_S
    queue = running.broker.spans
    assert queue is not None and queue.waiting_count <= 16
    assert queue.dropped_count + queue.lost_count > 0
    assert running.stop(WAIT_S), "in order"


@contextmanager
def dribbling() -> Iterator[tuple[str, Event]]:
    """A collector that answers each request a byte at a time, and never comes to the end; its
    address, and whether it has begun."""
    begun, over = Event(), Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            begun.set()
            with suppress(OSError):
                while not over.wait(0.02):
                    self.request.sendall(b"x")

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        serving = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", begun
        over.set()
        server.shutdown()
        serving.join()


def test_a_slowly_answering_collector_is_abandoned_until_its_answer_ends() -> None:
    with dribbling() as (url, begun):
        made = SimulatedBroker(
            7,
            config=replace(
                BROKER, otel_traces=True, otel_endpoint=url, otel_timeout_ms=300, otel_queue_max=16
            ),
        )
        made.make_topic()
        made.send(properties=f"traceparent\x01{PARENT}\x02")
        began_s = monotonic()
        made.system.advance(1000)
        assert begun.is_set(), "it has been asked, and would answer until the end of all days"
        queue = made.broker.spans
        assert queue is not None and (queue.lost_count, queue.sent_count) == (1, 0)
        for _ in range(3):
            made.send(properties=f"traceparent\x01{PARENT}\x02")
            made.system.advance(10_000)
        assert queue.lost_count == 4, "no second request while an answer is missing"
        made.stop()
        assert monotonic() - began_s < WAIT_S


class ProducerOf:
    """Sends one message after the other to one broker."""

    def __init__(self, port: int) -> None:
        self._line = SyncConnection(f"127.0.0.1:{port}", timeout_ms=int(WAIT_S * 1000))

    def __enter__(self) -> "ProducerOf":
        self._line.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.__exit__(None, None, None)

    def __call__(self, parent: str) -> None:
        properties = f"traceparent\x01{parent}\x02"
        answer = self._line.call(send_command(properties=properties))
        assert answer.code == 0, answer.remark


def test_without_spans_sends_and_pulls_have_no_hook() -> None:
    made = SimulatedBroker(1)
    assert made.broker.spans is None
    assert not made.broker.hooks.see_sends and not made.broker.hooks.see_pulls
    assert not made.system.up(["span_export"])


def test_the_collectors_password_appears_in_no_output() -> None:
    url = "http://me:secret@192.0.2.7:4318/v1/traces"
    config = replace(BROKER, otel_endpoint=url)
    assert settings_of(config)["otelTracesEndpoint"] == "http://***@192.0.2.7:4318/v1/traces"
    assert config.otel_endpoint == url


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"otel_endpoint": "collector:4317"}, "otelTracesEndpoint is collector:4317: it must be"),
        ({"otel_endpoint": "grpc://c:4317"}, "otelTracesEndpoint is grpc://c:4317"),
        ({"otel_endpoint": "me:secret@c:4317"}, r"otelTracesEndpoint is \*\*\*@c:4317"),
        ({"otel_sample_ratio": 1.5}, "otelTracesSampleRatio is 1.5: it must be from 0 to 1."),
        ({"otel_queue_max": 1}, "otelTracesQueueSize is 1: it must be 16 or more."),
        ({"otel_timeout_ms": 0}, "otelTracesTimeoutMillis is 0: it must be from 1 to 10000."),
    ],
)
def test_impossible_span_settings_are_a_one_sentence_error(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(StoreError, match=sentence):
        SpanSettings(**settings).check_spans()  # type: ignore[arg-type]
