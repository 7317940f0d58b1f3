"""The leases of readers over the network: in memory, each with its end.

A broker that starts again knows none: a reader whose renewal is refused takes its lease again, and
the first round of cleaning comes later than that.
"""

from dataclasses import dataclass

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from storage.retention.leases import JOB_CHARS_MAX, LEASES_MAX, Lease

LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX = 1_000, 600_000
"""Who wants less would lose it by a slow request, who wants more keeps files after its death."""
LEASES_OF_OWNER_MAX = 200
"""Of one account, or of one address that needs none: a fifth of all."""
_ID_CHARS_MAX = 64


@dataclass(slots=True)
class _Entry:
    lease: Lease
    ttl_ms: int
    ends_at_ms: float
    """Monotonic."""


class LeaseTable:
    """Plain state of its owner; raises RemoteError for what is refused."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        """By owner and id: an owner cannot move, renew or end the lease of another."""

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
        """A new one, or another place for the one there is; returns for how long, ms.

        `owner`: the account of the requester, or its address; empty without access control.
        """
        if not 0 < len(lease_id) <= _ID_CHARS_MAX or not lease_id.isprintable():
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR, f"a lease is named by 1 to {_ID_CHARS_MAX} characters"
            )
        self.end_those_due(monotonic_ms)
        key = owner, lease_id
        is_new = key not in self._entries
        if is_new and owner and self._count(owner) >= LEASES_OF_OWNER_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"{owner} has {LEASES_OF_OWNER_MAX} leases already: it gets no more",
            )
        if is_new and len(self._entries) >= LEASES_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"there are {LEASES_MAX} leases already: no more are given",
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
        """The same from now on. Refuses one that has ended."""
        self.end_those_due(monotonic_ms)
        entry = self._entries.get((owner, lease_id))
        if entry is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND, "there is no such lease (any more): take it again"
            )
        lease = entry.lease
        self.grant(lease_id, lease.job, lease.offset, ttl_ms, now_ms, monotonic_ms, owner)
        return self._entries[owner, lease_id].lease

    def release(self, lease_id: str, owner: str = "") -> None:
        """Nothing happens if it has ended."""
        self._entries.pop((owner, lease_id), None)

    def end_those_due(self, monotonic_ms: float) -> list[Lease]:
        """Takes out those that were not renewed in time, and returns them."""
        due = [key for key, each in self._entries.items() if monotonic_ms >= each.ends_at_ms]
        return [self._entries.pop(key).lease for key in due]

    def leases(self, monotonic_ms: float) -> list[Lease]:
        """Those in force."""
        return [each.lease for each in self._entries.values() if monotonic_ms < each.ends_at_ms]
