"""The header of LEASE_LOG, a TroupeMQ extension (protocol/bodies_own.py)."""

from protocol.headers.fields import Header, wire, wire_long
from protocol.values import value

TAKE, RENEW, RELEASE = "take", "renew", "release"
LEASE_TTL_MS = 60_000
"""Default time to live."""


@value
class LeaseHeader(Header):
    """Lease that retains log files for a reader while it is renewed in time.

    take      a new lease, or another place for the one of this name: `offset`, or queues as body
    renew     the same for another `ttl_ms`; QUERY_NOT_FOUND if it has ended: take it again
    release   the end; no error if it has ended
    """

    action: str = wire("action")
    lease: str = wire("lease")
    """Name of the lease, chosen by the reader and unique among all leases."""
    job: str = wire("job", default="")
    """Name of the reader, for display."""
    ttl_ms: int = wire_long("ttlMs", default=LEASE_TTL_MS)
    offset: int = wire_long("offset", default=-1)
    """First physical offset that is needed; -1: taken from the queues in the body."""


@value
class LeaseResponseHeader(Header):
    """The granted lease."""

    offset: int = wire_long("offset")
    min_offset: int = wire_long("minOffset")
    """Start of the log at the grant; earlier records are already deleted."""
    ttl_ms: int = wire_long("ttlMs")
