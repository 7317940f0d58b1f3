"""Queue locks of consumers, for orderly consumption.

A lock lasts a minute; consumers renew theirs every 20 s. Times are monotonic.

Source: broker/client/rebalance/RebalanceLockManager.java.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from actors.access.grant import Grant
from protocol.bodies import LockBatchRequest, MessageQueue
from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError

LOCK_LIVES_MS = 60_000
REQUEST_QUEUES_MAX = 4096
"""Queues in one request; each takes 7 µs on the event loop."""
LOCKS_MAX = 150_000
"""Locks of all groups; 0.3 KiB each, 45 MiB with usual names."""
NAME_CHARS_MAX = 1024
"""Length of a group, a client id, or topic plus broker; twice the longest valid one."""
EXPIRE_MS = 5000
"""Interval between two scans of a full table."""


def wanted_locks(body: bytes | memoryview | None) -> LockBatchRequest:
    """Return the request in a body.

    Raises RemoteError for too many queues, before they are decoded, and for names that are too
    long.
    """
    if body is not None and bytes(body).count(b"{") - 1 > REQUEST_QUEUES_MAX:
        remark = f"a request locks or unlocks at most {REQUEST_QUEUES_MAX} queues"
        raise LimitReached(
            ResponseCode.SYSTEM_ERROR, remark, "queue lock request rejected: too many queues"
        )
    wanted = LockBatchRequest.decode(body)
    names = [wanted.consumer_group or "", wanted.client_id or ""]
    names += [each.topic + each.broker_name for each in wanted.mq_set]
    if max(map(len, names)) > NAME_CHARS_MAX:
        remark = f"queue lock names have at most {NAME_CHARS_MAX} characters"
        raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
    return wanted


def holder_of(wanted: LockBatchRequest, grant: Grant | None) -> str:
    """Return the holder of a lock: client id and account, as a client id is no secret."""
    client_id = wanted.client_id or ""
    return client_id if grant is None else f"{grant.owner}\n{client_id}"


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: float


class QueueLocks:
    """Locks by group and queue. Owned by one actor."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._expired_ms = 0.0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float
    ) -> list[MessageQueue]:
        """Lock the queues that are free, expired or already the client's; return these.

        With LOCKS_MAX locks, free queues are refused.
        """
        held = self._locks.get(group, {})
        granted = []
        for queue in dict.fromkeys(queues):
            lock = held.get(queue)
            if lock is None:
                if self.is_full and not self._makes_room(now_ms):
                    continue
                held[queue] = _Lock(client_id, now_ms)
                self._count += 1
                granted.append(queue)
            elif lock.client_id == client_id or now_ms - lock.renewed_ms > LOCK_LIVES_MS:
                lock.client_id, lock.renewed_ms = client_id, now_ms
                granted.append(queue)
        if held:
            self._locks[group] = held
        return granted

    @property
    def is_full(self) -> bool:
        return self._count >= LOCKS_MAX

    def _makes_room(self, now_ms: float) -> bool:
        if now_ms - self._expired_ms >= EXPIRE_MS:
            self.expire(now_ms)
        return not self.is_full

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        held = self._locks.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            self._locks.pop(group, None)

    def expire(self, now_ms: float) -> None:
        """Remove locks that were not renewed."""
        self._expired_ms = now_ms
        for group, held in self._locks.copy().items():
            for queue in [
                queue for queue, own in held.items() if now_ms - own.renewed_ms > LOCK_LIVES_MS
            ]:
                del held[queue]
                self._count -= 1
            if not held:
                del self._locks[group]
