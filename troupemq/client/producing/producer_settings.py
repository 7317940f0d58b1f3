"""Settings of a producer: timeouts, retries, limits."""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.compression import COMPRESS_OVER_BYTES
from troupemq.client.arguments import (
    MS_MAX,
    check_integer,
    check_range,
    check_ranges,
    names_checked,
)
from troupemq.client.errors import ArgumentIllegal
from troupemq.client.producing.sending import RETRIED_CODES

MESSAGE_BYTES_MAX = 4 << 20
"""Default of maxMessageSize in brokers and clients."""

_RANGES = {
    "send_timeout_ms": (1, MS_MAX),
    "retries": (0, MS_MAX),
    "max_message_bytes": (1, (1 << 31) - 1),
    "compress_over_bytes": (0, (1 << 31) - 1),
    "in_flight_max": (1, (1 << 31) - 1),
    "in_flight_bytes_max": (1, 1 << 40),
}


@names_checked
@dataclass(frozen=True)
class ProducerSettings:
    """Settings of a producer; the defaults are the Java client's where it has them.

        Producer("orders", settings=ProducerSettings(send_timeout_ms=10_000, retries=5))

    Raises ArgumentIllegal for a value outside its range.
    """

    send_timeout_ms: int = 3000
    """Timeout of a send with all its retries."""

    try_timeout_ms: int | None = None
    """Timeout of one try; None lets the first try use all of `send_timeout_ms`."""

    retries: int = 2
    """Further tries after a temporary failure, at another broker if there is one."""

    retried_codes: frozenset[int] = RETRIED_CODES
    """Response codes of temporary failures; lost connections and timeouts always count as such."""

    retry_another_broker_when_not_ok: bool = False
    """Whether a message stored with another status than OK also goes to another broker."""

    max_message_bytes: int = MESSAGE_BYTES_MAX
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    """Minimum body size for compression (zlib); batches are not compressed."""

    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 32 << 20
    """Limits of in-flight sends and of their bytes.

    At a limit the next send waits for room within its timeout. In an event loop and in callbacks
    `send_async` fails with ClientBusy instead.
    """

    trace: bool = False
    """Whether to send a trace of each message to RMQ_SYS_TRACE_TOPIC."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.try_timeout_ms is not None:
            check_range(self.try_timeout_ms, 1, MS_MAX, "try_timeout_ms")
        if not isinstance(self.retried_codes, Collection) or isinstance(self.retried_codes, str):
            raise ArgumentIllegal(
                f"retried_codes are a collection of codes, and not {self.retried_codes!r}"
            )
        for code in self.retried_codes:
            check_integer(code, 0, MS_MAX, "a code of retried_codes")
