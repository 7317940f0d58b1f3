"""Figures of messages in flight, published for metrics, console and tools.

`Parts.receipts` is a SnapshotRef of ReceiptFigures. Any thread may read its value, which never
changes; Receipts publishes a new one every few seconds while it is used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from actors.receipts.ledger import EntryState, Ledger


@dataclass(frozen=True, slots=True)
class InFlightFigures:
    """Messages of one group in one topic, or in its retry topic, that are not settled."""

    count: int = 0
    """Messages that clients hold, or that are on their way to a copy."""
    kept: int = 0
    """Retries that wait for a receive of their topic."""
    oldest_ms: int = 0
    """Wall clock time of the oldest receive with a message in flight; 0 without any."""
    tries_max: int = 0
    """Most deliveries before the present one."""
    with_connection: int = 0
    """Messages held as long as the connection of their client lives."""
    clients: Mapping[str, int] = field(default_factory=dict)
    """Messages by client, as `address:port`."""
    queues: Mapping[int, int] = field(default_factory=dict)
    """Messages by queue id."""


@dataclass(frozen=True, slots=True)
class ReceiptFigures:
    """EntryState of all receives of a broker."""

    in_flight: Mapping[tuple[str, str], InFlightFigures] = field(default_factory=dict)
    """Figures by group and topic, of those with messages in flight or kept."""
    waiting: int = 0
    """Receives and notifications that wait for messages."""
    received: int = 0
    """Messages handed out since the start."""
    settled: int = 0
    """Messages acknowledged since the start."""
    returned: int = 0
    """Messages copied to a retry topic or dead-letter queue since the start."""
    moved: int = 0
    """Messages stored again because their queue was crowded."""

    @property
    def count(self) -> int:
        """Messages in flight of all groups."""
        return sum(each.count for each in self.in_flight.values())


def in_flight_of(
    ledgers: Iterable[Ledger], now_ms: float, wall_ms: int
) -> dict[tuple[str, str], InFlightFigures]:
    """Return the figures of all ledgers, at this monotonic and wall clock time."""
    grouped: dict[tuple[str, str], list[Ledger]] = {}
    for ledger in ledgers:
        if ledger.count:
            grouped.setdefault((ledger.group, ledger.topic), []).append(ledger)
    return {place: _figures(found, now_ms, wall_ms) for place, found in grouped.items()}


def _figures(ledgers: Iterable[Ledger], now_ms: float, wall_ms: int) -> InFlightFigures:
    count = kept = tries = bound = 0
    oldest_ms = now_ms
    clients: dict[str, int] = {}
    queues: dict[int, int] = {}
    for ledger in ledgers:
        deliveries = Counter(ledger.held.values())  # 200,000 messages: 10 ms
        for entry in ledger.entries.values():
            if entry.delivery is None or entry.state is EntryState.KEPT:
                kept += 1
            else:
                tries = max(tries, entry.tries)
                deliveries[entry.delivery] += 1
        for delivery, number in deliveries.items():
            count += number
            bound += number * delivery.is_bound
            oldest_ms = min(oldest_ms, delivery.since_ms)
            clients[delivery.peer.remote] = clients.get(delivery.peer.remote, 0) + number
            queues[ledger.queue_id] = queues.get(ledger.queue_id, 0) + number
    oldest_wall = wall_ms - int(now_ms - oldest_ms) if count else 0
    return InFlightFigures(count, kept, oldest_wall, tries, bound, clients, queues)
