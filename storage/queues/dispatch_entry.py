"""The entry of a record for the files that are derived of the log."""

from typing import Protocol, TypeAlias

DispatchEntry: TypeAlias = tuple[
    bytes,  # topic
    int,  # queue_id
    int,  # queue_offset
    int,  # physical_offset
    int,  # record_bytes
    int,  # tags_code, or the due time (ms) of a delayed message
    int,  # store_timestamp, ms
    int,  # sys_flag
    tuple[bytes, ...],  # index keys: UNIQ_KEY first, then the words of KEYS
]
"""What a consume queue and the index want to know of one record."""


class BitMaps(Protocol):
    """Says which subscriptions' expressions are true for a message; asked in log order."""

    def __call__(self, entry: DispatchEntry) -> bytes | None:
        """The bits for the queue's extension; None where nobody filters by an expression."""
