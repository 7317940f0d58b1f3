"""Settings of the spans that a broker sends to an OpenTelemetry collector; TroupeMQ extension."""

from dataclasses import dataclass
from re import compile as compile_pattern
from urllib.parse import urlsplit

from storage.config import key
from storage.errors import WrongSetting

QUEUE_MIN = 16
TIMEOUT_MS_MAX = 10_000
"""Maximum; a stop waits that long for a collector that hangs."""


_USER = compile_pattern(r"((?<=://)|^)[^/?#\s]*@")


def without_user(text: str) -> str:
    return _USER.sub("***@", text)


@dataclass(frozen=True)
class SpanSettings:
    """Whether spans are sent, their receiver, and the share of traces."""

    otel_traces: bool = key("otelTraces", default=False)
    otel_endpoint: str = key("otelTracesEndpoint", default="http://127.0.0.1:4318/v1/traces")
    """URL of OTLP over HTTP, with path."""
    otel_sample_ratio: float = key("otelTracesSampleRatio", default=1.0)
    """Share of the traces sampled by producers; chosen by id, so that all brokers agree."""
    otel_queue_max: int = key("otelTracesQueueSize", default=4096)
    """Maximum sends and pulls waiting for export; more are dropped and counted."""
    otel_timeout_ms: int = key("otelTracesTimeoutMillis", default=3000)
    """Timeout of the collector, ms."""

    def check_spans(self) -> None:
        parts = urlsplit(self.otel_endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongSetting(
                f"otelTracesEndpoint is {without_user(self.otel_endpoint)}: it must be"
                " an HTTP address such as http://127.0.0.1:4318/v1/traces."
            )
        if not 0.0 <= self.otel_sample_ratio <= 1.0:
            raise WrongSetting(
                f"otelTracesSampleRatio is {self.otel_sample_ratio}: it must be from 0 to 1."
            )
        if self.otel_queue_max < QUEUE_MIN:
            raise WrongSetting(
                f"otelTracesQueueSize is {self.otel_queue_max}: it must be {QUEUE_MIN} or more."
            )
        if not 1 <= self.otel_timeout_ms <= TIMEOUT_MS_MAX:
            raise WrongSetting(
                f"otelTracesTimeoutMillis is {self.otel_timeout_ms}: it must be from 1 to"
                f" {TIMEOUT_MS_MAX}."
            )
