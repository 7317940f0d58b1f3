"""The settings of the spans that a broker sends to an OpenTelemetry collector; all are ours."""

from dataclasses import dataclass
from re import compile as compile_pattern
from urllib.parse import urlsplit

from storage.config import key
from storage.errors import WrongSetting

QUEUE_MIN = 16
TIMEOUT_MS_MAX = 10_000
"""A stop waits that long for a collector that hangs."""


_USER = compile_pattern(r"((?<=://)|^)[^/?#\s]*@")


def without_user(text: str) -> str:
    """An address as it may be shown: without the name and password that may stand in it."""
    return _USER.sub("***@", text)


@dataclass(frozen=True)
class SpanSettings:
    """Whether spans are sent, where to, and of how many messages. Raises WrongSetting."""

    otel_traces: bool = key("otelTraces", default=False)
    otel_endpoint: str = key("otelTracesEndpoint", default="http://127.0.0.1:4318/v1/traces")
    """Of OTLP over HTTP, its path included."""
    otel_sample_ratio: float = key("otelTracesSampleRatio", default=1.0)
    """Of the traces that producers have sampled, by their ids: every broker chooses the same."""
    otel_queue_max: int = key("otelTracesQueueSize", default=4096)
    """Sends and pulls that wait to be made spans of; those beyond are dropped and counted."""
    otel_timeout_ms: int = key("otelTracesTimeoutMillis", default=3000)
    """How long the collector may take."""

    def check_spans(self) -> None:
        """Raises WrongSetting with a sentence."""
        parts = urlsplit(self.otel_endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongSetting(
                f"otelTracesEndpoint is {without_user(self.otel_endpoint)}: it is an"
                " address of HTTP, such as http://127.0.0.1:4318/v1/traces."
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
