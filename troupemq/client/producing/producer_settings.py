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
from troupemq.client.producing.batches import MESSAGE_BYTES_MAX
from troupemq.client.producing.sending import RETRIED_CODES

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
    """What a producer does by itself; the defaults are the Java client's where it has them."""

    send_timeout_ms: int = 3000
    """For a send as a whole, all its tries."""

    try_timeout_ms: int | None = None
    """For one try; None gives the first one all the time there is."""

    retries: int = 2
    """Further tries, on another broker where there is one, after a failure that may pass."""

    retried_codes: frozenset[int] = RETRIED_CODES
    """The response codes that may pass; a lost connection and a timeout may always."""

    retry_another_broker_when_not_ok: bool = False
    """Whether a message that is stored, but not as safely as the broker's settings ask, is sent to
    another broker too; the first one keeps it as well."""

    max_message_bytes: int = MESSAGE_BYTES_MAX
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    """Bodies of single messages that are so long or longer are compressed (zlib)."""

    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 32 << 20
    """Sends under way, and their bytes: the next one waits for room, within its timeout;
    `send_async` in an event loop fails instead."""

    trace: bool = False
    """Whether a line about each send goes to RMQ_SYS_TRACE_TOPIC."""

    def __post_init__(self) -> None:
        """Raises ArgumentIllegal for a number that makes no sense."""
        check_ranges(self, _RANGES)
        if self.try_timeout_ms is not None:
            check_range(self.try_timeout_ms, 1, MS_MAX, "try_timeout_ms")
        if not isinstance(self.retried_codes, Collection) or isinstance(self.retried_codes, str):
            raise ArgumentIllegal(
                f"retried_codes are several codes, and not {self.retried_codes!r}"
            )
        for code in self.retried_codes:
            check_integer(code, 0, MS_MAX, "a code of retried_codes")
