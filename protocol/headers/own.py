"""Headers of requests that RocketMQ does not have: sinks, Spark jobs, leases, bulk reads.

Their bodies: protocol/sink.py, protocol/bodies_own.py, protocol/raw_records.py.
"""

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.fields import Header, wire, wire_long
from protocol.json_body import value
from protocol.raw_records import ANSWER_BYTES
from protocol.sink import CHAIN_BYTES, is_query_name


@value
class SinkLaneHeader(Header):
    """Lane of a sink: messages of one task to one topic: GET_SINK_PROGRESS."""

    query: str = wire("query")
    partition: int = wire("partition")
    topic: str = wire("topic")

    def check(self) -> None:
        """Validate names and numbers. Raises RemoteError."""
        if not is_query_name(self.query) or self.partition < 0:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "no query of a sink is called so")


@value
class SinkBatchHeader(SinkLaneHeader):
    """Messages of a batch, beginning with number `sequence`: SEND_SINK_BATCH."""

    batch: int = wire_long("batch")
    sequence: int = wire_long("sequence")
    chain: str = wire("chain")
    """Checksum of the messages before them, in hexadecimal digits."""

    def check(self) -> None:
        """Validate names and numbers. Raises RemoteError."""
        SinkLaneHeader.check(self)
        chain_of(self.chain)
        if self.batch < 0 or self.sequence < 0:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "a batch and its messages count from 0")


@value
class SinkProgressHeader(Header):
    """Progress of a lane, the answer to both requests. Without a batch the lane is unknown."""

    batch: int = wire_long("batch", default=-1)
    sequence: int = wire_long("sequence", default=0)
    """Sequence number of the next message that the broker expects."""
    chain: str = wire("chain", default="")


def chain_of(text: str) -> bytes:
    """Parse a checksum. Raises RemoteError."""
    try:
        chain = bytes.fromhex(text)
    except ValueError:
        chain = b""
    if len(chain) != CHAIN_BYTES:
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "a chain has 16 hexadecimal digits")
    return chain


@value
class RunJobHeader(Header):
    """A job, or an entry of the schedule, to run when a slot is free: RUN_JOB."""

    name: str = wire("name")
    arguments: str = wire("arguments", default="{}")
    """A JSON object whose values override those of broker and entry."""


@value
class GetJobsHeader(Header):
    """Query for jobs, runs and schedule: GET_JOBS. Only the report of `run` is included."""

    run: str | None = wire("run", default=None)


@value
class JobRunHeader(Header):
    """Request about one run of a job: CANCEL_JOB."""

    run: str = wire("run")


@value
class JobLogHeader(Header):
    """Query for the end of one run's log: GET_JOB_LOG."""

    run: str = wire("run")
    lines: int = wire("lines", default=100)


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


@value
class ReadUnitsHeader(Header):
    """Units [queue_offset, end_offset) of a queue: READ_UNITS."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    end_offset: int = wire_long("endOffset")


@value
class ReadRecordsHeader(Header):
    """Units [queue_offset, end_offset) with their records as they lie in the log: READ_RECORDS."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    end_offset: int = wire_long("endOffset")
    max_bytes: int = wire("maxBytes", default=ANSWER_BYTES)
    """Maximum log bytes in the answer; a single record may be longer."""


@value
class RawResponseHeader(Header):
    """Contents of the body, and the offsets of queue and log at the read."""

    next_offset: int = wire_long("nextOffset")
    """Next queue offset to read. Earlier offsets without a unit in the body are deleted."""

    min_offset: int = wire_long("minOffset")
    max_offset: int = wire_long("maxOffset")
    log_min_offset: int = wire_long("logMinOffset")
    log_end_offset: int = wire_long("logEndOffset")
    unit_count: int = wire("unitCount")
    piece_count: int = wire("pieceCount")
