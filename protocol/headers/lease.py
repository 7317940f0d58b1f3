"""The header of LEASE_LOG, a lease of the log: ours alone; see protocol/bodies_own.py."""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire, wire_long

TAKE, RENEW, RELEASE = "take", "renew", "release"
LEASE_TTL_MS = 60_000
"""Where nobody says how long."""


@dataclass(slots=True)
class LeaseHeader(Header):
    """Keeps old log files for a reader, as long as it asks again in time.

    take      a new lease, or another place for the one of this name: `offset`, or queues as body
    renew     the same for another `ttl_ms`; QUERY_NOT_FOUND if it has ended: take it again
    release   the end; no error if it has ended
    """

    action: str = wire("action")
    lease: str = wire("lease")
    """A name of the reader's choice, its own among all leases."""
    job: str = wire("job", default="")
    """For people: who it is."""
    ttl_ms: int = wire_long("ttlMs", default=LEASE_TTL_MS)
    offset: int = wire_long("offset", default=-1)
    """The first byte of the log that is needed; -1: as the queues of the body say."""


@dataclass(slots=True)
class LeaseResponseHeader(Header):
    """What was granted."""

    offset: int = wire_long("offset")
    min_offset: int = wire_long("minOffset")
    """Where the log began then: what lies before was gone already."""
    ttl_ms: int = wire_long("ttlMs")
