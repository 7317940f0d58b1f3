"""Settings of a consumer: threads, batch sizes, limits, intervals."""

from dataclasses import dataclass

from troupemq.client.arguments import MS_MAX, check_ranges, names_checked

UNLIMITED = -1
MIB = 1 << 20

_RANGES = {
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
"""The first as the Java client checks them."""


@names_checked
@dataclass(frozen=True)
class ConsumerSettings:
    """The defaults are the Java client's. Raises ArgumentIllegal, a ValueError, for what it
    would refuse."""

    consume_threads: int = 20
    consume_batch_size: int = 1
    """Messages of one listener call, at most."""

    pull_batch_size: int = 32
    queue_count_max: int = 1000
    """Messages of one queue that wait in the client; then it pulls no more of them."""

    queue_bytes_max: int = 100 * MIB
    queue_span_max: int = 2000
    """Between the first and the last message of one queue that wait: one that takes long holds the
    offset, and all behind it comes again after a crash. Not for orderly consumers."""

    suspend_ms: int = 15_000
    """How long a broker holds a pull that finds nothing."""

    pull_timeout_ms: int = 30_000
    pull_error_delay_ms: int = 3000
    """Before the next pull after one that failed."""

    commit_interval_ms: int = 5000
    rebalance_interval_ms: int = 20_000
    max_reconsume_times: int = UNLIMITED
    """How often a failed message comes again before it is a dead letter: by default 16 times, and
    for an orderly consumer, whose queue waits meanwhile, without end."""

    consume_timeout_ms: int = 15 * 60_000
    """A message that a listener has for longer is given back to the broker, to come again, so
    that it does not hold the offset. Not for orderly consumers."""

    again_after_ms: int = 5000
    """A failed message that its broker did not take back is tried here again after this time."""

    suspend_queue_ms: int = 1000
    """How long an orderly queue rests after a failure; 10 ms to 30 s."""

    continuous_ms: int = 60_000
    """How long a thread stays with one orderly queue before others have their turn."""

    lock_interval_ms: int = 20_000
    lock_valid_ms: int = 30_000
    """How long an orderly consumer trusts a lock that was not renewed; the lease is 60 s."""

    settle_ms: int = 500
    """How long a queue that was another member's is left to it before it is pulled: what it has
    not committed would come twice. The Java client does not wait."""

    drop_wait_ms: int = 1000
    """How long a rebalance waits for listener calls of a queue that it gives away."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
