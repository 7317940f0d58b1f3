"""The entry point for OpenTelemetry: spans of clients by an instrumentor, and without one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.patience import wait_until
from tests.support.runtimes import needs_installed

needs_installed("opentelemetry.instrumentation")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from protocol.span_names import TRACEPARENT  # noqa: E402
from troupemq import Message, Producer  # noqa: E402
from troupemq.client.span_making import SWITCH, ClientSpans  # noqa: E402
from troupemq.otel import TroupeMQInstrumentor  # noqa: E402
from troupemq.testing import running_broker  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Give the spans that instrumented clients make."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    instrumentor = TroupeMQInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield made
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    SWITCH.is_on = True


def test_instrumentor_switches_the_spans_of_a_running_client(
    exporter: InMemorySpanExporter,
) -> None:
    message = Message("Orders", b"one")
    with running_broker() as broker, Producer("shop", broker.namesrv) as producer:
        producer.send(message)
        wait_until(lambda: bool(exporter.get_finished_spans()), "the span of the send ends")
        assert [each.name for each in exporter.get_finished_spans()] == ["send Orders"]
        TroupeMQInstrumentor().uninstrument()
        producer.send(message)
        assert len(exporter.get_finished_spans()) == 1
        TroupeMQInstrumentor().instrument()
        producer.send(message)
        assert len(exporter.get_finished_spans()) == 1, "the application has set no provider"


def test_uninstrumented_client_passes_no_context_on(exporter: InMemorySpanExporter) -> None:
    TroupeMQInstrumentor().uninstrument()
    provider = TracerProvider()
    spans = ClientSpans("me", provider=provider)
    with trace.get_tracer("application", tracer_provider=provider).start_as_current_span("outer"):
        assert not spans.is_on


PROGRAM = """
import sys
from troupemq import Message, Producer
with Producer("shop", sys.argv[1]) as producer:
    producer.send(Message("Orders", b"one"))
"""


@pytest.mark.slow(seconds=3)
def test_command_of_opentelemetry_instruments_a_program(tmp_path: Path) -> None:
    """The entry point is read from the metadata of an installed distribution."""
    information = tmp_path / "troupemq_here-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: troupemq-here\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\ntroupemq = troupemq.otel:TroupeMQInstrumentor\n"
    )
    (tmp_path / "program.py").write_text(PROGRAM)
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    options = ("--traces_exporter=console", "--metrics_exporter=none", "--logs_exporter=none")
    with running_broker() as broker:
        done = subprocess.run(
            [command, *options, sys.executable, "program.py", broker.namesrv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert '"name": "send Orders"' in done.stdout
        (message,) = broker.messages("Orders")
        assert TRACEPARENT in message.properties
