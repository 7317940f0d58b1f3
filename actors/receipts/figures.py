"""Figures of messages in flight, published for metrics, console and tools.

`Parts.receipts` is a SnapshotRef of ReceiptFigures. Any thread may read its value, which never
changes; Receipts publishes a new one every few seconds while it is used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from actors.receipts.ledger import EntryState, Ledger

SURVEYED_AT_ONCE = 4_000
"""Messages in flight that are counted without a pause: 3 ms."""


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


class Survey:
    """Counts all that is in flight, a limited number of messages at a time."""

    def __init__(self, ledgers: Iterable[Ledger]) -> None:
        self._left = [*ledgers]
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def go_on(self, most: int = SURVEYED_AT_ONCE) -> bool:
        """Look at ledgers until they had `most` messages; return whether none is left."""
        while self._left and most > 0:
            ledger = self._left.pop()
            most -= max(1, ledger.count)
            if ledger.count:
                place = ledger.group, ledger.topic
                self._tallies.setdefault(place, _Tally()).add(ledger)
        return not self._left

    def figures(self, now_ms: float, wall_ms: int) -> dict[tuple[str, str], InFlightFigures]:
        """Return what was counted, at this monotonic and wall clock time."""
        return {
            place: tally.figures(now_ms, wall_ms)
            for place, tally in self._tallies.items()
            if tally.count or tally.kept
        }


@dataclass(slots=True)
class _Tally:
    count: int = 0
    kept: int = 0
    tries: int = 0
    bound: int = 0
    oldest_ms: float = inf
    clients: dict[str, int] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)

    def add(self, ledger: Ledger) -> None:
        deliveries = Counter(ledger.held.values())
        for entry in ledger.entries.values():
            if entry.delivery is None or entry.state is EntryState.KEPT:
                self.kept += 1
            else:
                self.tries = max(self.tries, entry.tries)
                deliveries[entry.delivery] += 1
        for delivery, number in deliveries.items():
            self.bound += number * delivery.is_bound
            self.oldest_ms = min(self.oldest_ms, delivery.since_ms)
            remote = delivery.peer.remote
            self.clients[remote] = self.clients.get(remote, 0) + number
        if number := deliveries.total():
            self.count += number
            self.queues[ledger.queue_id] = self.queues.get(ledger.queue_id, 0) + number

    def figures(self, now_ms: float, wall_ms: int) -> InFlightFigures:
        oldest_wall = wall_ms - int(now_ms - self.oldest_ms) if self.count else 0
        numbers = self.count, self.kept, oldest_wall, self.tries, self.bound
        return InFlightFigures(*numbers, self.clients, self.queues)
