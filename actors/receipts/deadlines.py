"""Deadlines of deliveries, and deliveries that live with a connection: a plain table.

Deliveries are found by the tick of their deadline, so that a tick costs what is due. A delivery
that lives with its connection has no deadline until the connection closes.
"""

from collections import deque
from typing import TypeVar

from actors.receipts.ledger import Delivery

Key = TypeVar("Key")

ENDED_AT_ONCE = 5_000
"""Deliveries of closed connections that get a deadline in one tick: 5 ms."""

TICK_MS = 100
"""Accuracy of deadlines."""

GRACE_MS = 1_000.0
"""Time between the end of a connection and the return of its messages."""


class Deadlines:
    """All deliveries with messages in flight. One owner; times are monotonic."""

    def __init__(self, now_ms: float) -> None:
        self._by_tick: dict[int, dict[Delivery, None]] = {}
        self._by_peer: dict[int, dict[str, dict[Delivery, None]]] = {}
        """Deliveries that live with their connection, by its id and their group."""
        self._ending: deque[tuple[float, deque[Delivery]]] = deque()
        """Deliveries that get this deadline, some at each call of `due`."""
        self._tick = int(now_ms) // TICK_MS
        """The next tick to look at."""
        self.now_ms = now_ms
        """Time of the last call of `due`."""

    def add(self, delivery: Delivery) -> None:
        """Note a delivery: by its deadline, or by its connection."""
        if delivery.is_bound:
            groups = self._by_peer.setdefault(delivery.peer.peer_id, {})
            groups.setdefault(delivery.ledger.group, {})[delivery] = None
        else:
            self._by_tick.setdefault(self._tick_of(delivery), {})[delivery] = None

    def leave(self, delivery: Delivery, count: int = 1) -> None:
        """Note that messages have left their delivery; forget an empty one."""
        delivery.left -= count
        if delivery.left == 0:
            self._remove(delivery)

    def _remove(self, delivery: Delivery) -> None:
        if not delivery.is_bound:
            _drop(self._by_tick, self._tick_of(delivery), delivery)
        elif groups := self._by_peer.get(delivery.peer.peer_id):
            _drop(groups, delivery.ledger.group, delivery)
            if not groups:
                del self._by_peer[delivery.peer.peer_id]

    def _tick_of(self, delivery: Delivery) -> int:
        """Return the first tick at or behind the deadline."""
        return max(self._tick, -(-int(delivery.deadline_ms) // TICK_MS))

    def due(self, now_ms: float) -> list[Delivery]:
        """Remove and return the deliveries past their deadline, the earliest first."""
        self.now_ms = now_ms
        self._end_some()
        found: list[Delivery] = []
        last = int(now_ms) // TICK_MS
        if last - self._tick > len(self._by_tick):  # after a pause, or with few deliveries
            ticks = sorted(tick for tick in self._by_tick if tick <= last)
        else:
            ticks = [*range(self._tick, last + 1)]
        for tick in ticks:
            found += self._by_tick.pop(tick, ())
        self._tick = last + 1
        return found

    def end(self, peer_id: int, deadline_ms: float, group: str | None = None) -> None:
        """Give the deliveries of a connection a deadline: those of one group, or all."""
        groups = self._by_peer.get(peer_id, {})
        for each in [*groups] if group is None else [group]:
            if each in groups:
                self._ending.append((deadline_ms, deque(groups.pop(each))))
        if not groups:
            self._by_peer.pop(peer_id, None)
        self._end_some()

    def _end_some(self) -> None:
        rest = ENDED_AT_ONCE
        while self._ending and rest:
            deadline_ms, deliveries = self._ending[0]
            while deliveries and rest:
                delivery = deliveries.popleft()
                rest -= 1
                if delivery.left:
                    delivery.deadline_ms = deadline_ms
                    self.add(delivery)
            if not deliveries:
                self._ending.popleft()


def _drop(table: dict[Key, dict[Delivery, None]], key: Key, delivery: Delivery) -> None:
    found = table.get(key)
    if found is not None and delivery in found:
        del found[delivery]
        if not found:
            del table[key]
