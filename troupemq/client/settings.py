"""Settings of producers (timeouts, retries, limits) and consumers (threads, batches, intervals)."""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.codes import ResponseCode
from protocol.compression import COMPRESS_OVER_BYTES
from troupemq.client.arguments import (
    MS_MAX,
    check_integer,
    check_range,
    check_ranges,
    names_checked,
)
from troupemq.client.errors import ArgumentIllegal

RETRIED_CODES: frozenset[int] = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Codes after which another broker is tried, as in the Java client; SYSTEM_BUSY is not one."""

MESSAGE_BYTES_MAX = 4 << 20
"""Default of maxMessageSize in brokers and clients."""

_PRODUCER_RANGES = {
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
        check_ranges(self, _PRODUCER_RANGES)
        if self.try_timeout_ms is not None:
            check_range(self.try_timeout_ms, 1, MS_MAX, "try_timeout_ms")
        if not isinstance(self.retried_codes, Collection) or isinstance(self.retried_codes, str):
            raise ArgumentIllegal(
                f"retried_codes are a collection of codes, and not {self.retried_codes!r}"
            )
        for code in self.retried_codes:
            check_integer(code, 0, MS_MAX, "a code of retried_codes")


UNLIMITED = -1
MIB = 1 << 20

_CONSUMER_RANGES = {
    "consume_threads": (1, 1000),
    "consume_batch_size": (1, 1024),
    "pull_batch_size": (1, 1024),
    "queue_count_max": (1, 65_535),
    "queue_bytes_max": (1, 1024 * MIB),
    "queue_span_max": (1, 65_535),
    "max_reconsume_times": (UNLIMITED, (1 << 31) - 1),
    "suspend_ms": (0, MS_MAX),
    "pull_timeout_ms": (1, MS_MAX),
    "pull_error_delay_ms": (0, MS_MAX),
    "commit_interval_ms": (1, MS_MAX),
    "rebalance_interval_ms": (1, MS_MAX),
    "consume_timeout_ms": (1, MS_MAX),
    "again_after_ms": (0, MS_MAX),
    "suspend_queue_ms": (0, MS_MAX),
    "continuous_ms": (0, MS_MAX),
    "lock_interval_ms": (1, MS_MAX),
    "lock_valid_ms": (1, MS_MAX),
    "settle_ms": (0, MS_MAX),
    "drop_wait_ms": (0, MS_MAX),
}
"""Ranges by setting; those up to max_reconsume_times are as in the Java client."""


@names_checked
@dataclass(frozen=True)
class ConsumerSettings:
    """Settings of a consumer; the defaults are the Java client's where it has them.

        PushConsumer("billing", listen, settings=ConsumerSettings(consume_threads=4))

    Raises ArgumentIllegal, a ValueError, for a value outside its range.
    """

    consume_threads: int = 20
    consume_batch_size: int = 1
    """Maximum messages of one listener call."""

    pull_batch_size: int = 32
    queue_count_max: int = 1000
    """Pulled messages of one queue that are not consumed; at this limit its pulls pause."""

    queue_bytes_max: int = 100 * MIB
    queue_span_max: int = 2000
    """Limit of offsets between the first and the last pulled message of one queue.

    A slow message holds the consumer offset, and all messages behind it are delivered again after
    a crash. Not for orderly consumers.
    """

    suspend_ms: int = 15_000
    """Time that a broker holds a pull that finds no message."""

    pull_timeout_ms: int = 30_000
    pull_error_delay_ms: int = 3000
    """Pause after a failed pull."""

    commit_interval_ms: int = 5000
    rebalance_interval_ms: int = 20_000
    max_reconsume_times: int = UNLIMITED
    """Retries before a message becomes a dead letter.

    -1 means 16, and no limit for an orderly consumer: its queue pauses meanwhile.
    """

    consume_timeout_ms: int = 15 * 60_000
    """Time in a listener call after which a message returns to the broker for a retry.

    This releases the consumer offset. Not for orderly consumers.
    """

    again_after_ms: int = 5000
    """Pause before a local retry of a failed message that no broker took back."""

    suspend_queue_ms: int = 1000
    """Pause of an orderly queue after a failure; limited to 10 ms to 30 s."""

    continuous_ms: int = 60_000
    """Time that a thread consumes one orderly queue before it turns to others."""

    lock_interval_ms: int = 20_000
    lock_valid_ms: int = 30_000
    """Time that an orderly consumer trusts a lock without a renewal; the lease is 60 s."""

    settle_ms: int = 500
    """Wait before a new queue is pulled, so that its former owner can commit its offset.

    Without it, uncommitted messages are delivered twice. The Java client does not wait.
    """

    drop_wait_ms: int = 1000
    """Time that a rebalance waits for running listener calls of a queue that it releases."""

    def __post_init__(self) -> None:
        check_ranges(self, _CONSUMER_RANGES)
