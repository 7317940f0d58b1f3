"""Headers of bulk reads, TroupeMQ extensions (bodies: protocol/raw_records.py)."""

from protocol.headers.fields import Header, wire, wire_long
from protocol.raw_records import ANSWER_BYTES
from protocol.values import value


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
