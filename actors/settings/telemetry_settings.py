"""Settings of metrics, with RocketMQ 5's keys where it has them.

Settings of the spans that a broker sends to an OpenTelemetry collector; TroupeMQ extension.
"""

from dataclasses import dataclass
from re import compile as compile_pattern
from re import error as PatternError
from urllib.parse import urlsplit

from actors.settings.linear_pattern import LinearPattern
from storage.config import key
from storage.errors import WrongSetting

DISABLE, PROMETHEUS = "DISABLE", "PROM"
SERIES_MIN = 10


@dataclass(frozen=True)
class MetricsSettings:
    """Address, protocol and content of the metrics."""

    metrics_type: str = key("metricsExporterType", default=DISABLE)
    metrics_host: str = key("metricsPromExporterHost", default="127.0.0.1")
    metrics_port: int = key("metricsPromExporterPort", default=5557)
    """Port; 0: a free one."""
    metrics_series_max: int = key("metricsOtelCardinalityLimit", default=20_000)
    """Maximum series per metric: the busiest topics and groups, and one for the rest."""
    metrics_topic_pattern: str = key("metricsTopicPattern", default="")
    metrics_group_pattern: str = key("metricsGroupPattern", default="")
    """Patterns that shown topics and groups match as a whole; empty: all. TroupeMQ extension."""
    monitoring_hosts: str = key("monitoringHosts", default="")
    """Host names by which metrics and health may be called, separated by `,`; `*`: any.

    Addresses, localhost, this machine's name and those of brokerIP1 and bindAddress are always
    allowed. TroupeMQ extension.
    """
    metrics_system_topics: bool = key("metricsSystemTopics", default=False)
    """Whether retry topics and system topics are shown, too. TroupeMQ extension."""

    def check_metrics(self) -> None:
        if self.metrics_type not in (DISABLE, PROMETHEUS):
            raise WrongSetting(
                f"metricsExporterType is {self.metrics_type}: it may be {DISABLE} or {PROMETHEUS};"
                " an OpenTelemetry collector can scrape the latter."
            )
        if not 0 <= self.metrics_port <= 65_535:
            raise WrongSetting(
                f"metricsPromExporterPort is {self.metrics_port}: it must be 0 to 65535."
            )
        if self.metrics_series_max < SERIES_MIN:
            raise WrongSetting(
                f"metricsOtelCardinalityLimit is {self.metrics_series_max}:"
                f" it must be {SERIES_MIN} or more."
            )
        compiled_pattern("metricsTopicPattern", self.metrics_topic_pattern)
        compiled_pattern("metricsGroupPattern", self.metrics_group_pattern)

    @property
    def serves_metrics(self) -> bool:
        return self.metrics_type == PROMETHEUS


@dataclass(frozen=True)
class NamesrvMetricsSettings(MetricsSettings):
    """Settings of a name server: a different default port, as it may run beside a broker."""

    metrics_port: int = key("metricsPromExporterPort", default=5558)


def compiled_pattern(name: str, text: str) -> LinearPattern | None:
    """Return the compiled pattern, None for an empty text.

    Raises WrongSetting for an invalid pattern, or one that cannot be matched in linear time.
    """
    if not text:
        return None
    try:
        return LinearPattern(text)
    except PatternError as error:
        raise WrongSetting(
            f"{name} is {text}: {error}; write a pattern such as Orders.*|Pay.*"
        ) from None


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
