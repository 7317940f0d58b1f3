"""Locks of queues by consumers, for orderly consumption.

A lock lives for a minute; consumers renew theirs every 20 s.  Times are monotonic.

Source: broker/client/rebalance/RebalanceLockManager.java.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.bodies import MessageQueue

LOCK_LIVES_MS = 60_000


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: float


class QueueLocks:
    """Owned by one actor."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float
    ) -> list[MessageQueue]:
        """Those of `queues` that the client holds now: free, expired, or its own already."""
        held = self._locks.setdefault(group, {})
        granted = []
        for queue in dict.fromkeys(queues):
            lock = held.get(queue)
            if (
                lock is None
                or lock.client_id == client_id
                or now_ms - lock.renewed_ms > LOCK_LIVES_MS
            ):
                held[queue] = _Lock(client_id, now_ms)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Gives back what the client holds of `queues`."""
        held = self._locks.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            self._locks.pop(group, None)

    def expire(self, now_ms: float) -> None:
        """Forgets what nobody renews, so that the table does not grow for ever."""
        for group, held in self._locks.copy().items():
            for queue in [
                queue for queue, own in held.items() if now_ms - own.renewed_ms > LOCK_LIVES_MS
            ]:
                del held[queue]
            if not held:
                del self._locks[group]
