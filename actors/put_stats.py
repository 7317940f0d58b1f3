"""What PutMessage counts: puts and bytes of the broker, failures, the longest put."""

from dataclasses import dataclass


@dataclass(slots=True)
class PutStats:
    """Counters since the start; written by PutMessage, read by whoever reports."""

    put_count: int = 0
    put_bytes: int = 0
    failed_count: int = 0
    longest_put_ms: float = 0.0
    """From the first message of a batch handled to the batch written."""
