"""Leases of readers over the network, in memory, each with its end.

A restarted broker has none. After a refused renewal a reader takes its lease again, before the
first round of deletions.
"""

from dataclasses import dataclass

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from storage.retention.leases import JOB_CHARS_MAX, LEASES_MAX, Lease

LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX = 1_000, 600_000
"""Shorter leases could expire during a slow request; longer ones retain files after a crash."""
LEASES_OF_OWNER_MAX = 200
"""Leases of one account, or of one address without an account: a fifth of all."""
_ID_CHARS_MAX = 64


@dataclass(slots=True)
class _Entry:
    lease: Lease
    ttl_ms: int
    ends_at_ms: float
    """End in monotonic time, ms."""


class LeaseTable:
    """Leases by owner and id. Owned by one actor; raises RemoteError for refused leases."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        """Entries by owner and id, so that no owner can change another one's lease."""

    def grant(
        self,
        lease_id: str,
        job: str,
        offset: int,
        ttl_ms: int,
        now_ms: int,
        monotonic_ms: float,
        owner: str = "",
    ) -> int:
        """Add or move a lease; return its duration, ms.

        `owner` is the account or the address of the requester; empty without access
        control.
        """
        if not 0 < len(lease_id) <= _ID_CHARS_MAX or not lease_id.isprintable():
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"a lease id has 1 to {_ID_CHARS_MAX} printable characters",
            )
        self.end_those_due(monotonic_ms)
        key = owner, lease_id
        is_new = key not in self._entries
        if is_new and owner and self._count(owner) >= LEASES_OF_OWNER_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"lease limit of {LEASES_OF_OWNER_MAX} for {owner} reached: retry when one expires",
            )
        if is_new and len(self._entries) >= LEASES_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"lease limit of {LEASES_MAX} reached: retry when one expires",
            )
        ttl_ms = min(max(ttl_ms, LEASE_TTL_MS_MIN), LEASE_TTL_MS_MAX)
        lease = Lease(lease_id, job[:JOB_CHARS_MAX], offset, now_ms + ttl_ms)
        self._entries[key] = _Entry(lease, ttl_ms, monotonic_ms + ttl_ms)
        return ttl_ms

    def _count(self, owner: str) -> int:
        return sum(owner == each for each, _ in self._entries)

    def renew(
        self, lease_id: str, ttl_ms: int, now_ms: int, monotonic_ms: float, owner: str = ""
    ) -> Lease:
        """Extend a lease; raises RemoteError if it has expired."""
        self.end_those_due(monotonic_ms)
        entry = self._entries.get((owner, lease_id))
        if entry is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND, "lease not found, it may have expired: take it again"
            )
        lease = entry.lease
        self.grant(lease_id, lease.job, lease.offset, ttl_ms, now_ms, monotonic_ms, owner)
        return self._entries[owner, lease_id].lease

    def release(self, lease_id: str, owner: str = "") -> None:
        self._entries.pop((owner, lease_id), None)

    def end_those_due(self, monotonic_ms: float) -> list[Lease]:
        due = [key for key, each in self._entries.items() if monotonic_ms >= each.ends_at_ms]
        return [self._entries.pop(key).lease for key in due]

    def leases(self, monotonic_ms: float) -> list[Lease]:
        return [each.lease for each in self._entries.values() if monotonic_ms < each.ends_at_ms]
