"""Reading queues in bulk: ours alone, see protocol/raw_records.py for the bodies of the answers."""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire, wire_long
from protocol.raw_records import ANSWER_BYTES


@dataclass(slots=True)
class ReadUnitsHeader(Header):
    """Units [queue_offset, end_offset) of a queue: READ_UNITS."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    end_offset: int = wire_long("endOffset")


@dataclass(slots=True)
class ReadRecordsHeader(Header):
    """The same with their records, as they lie in the log: READ_RECORDS."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    end_offset: int = wire_long("endOffset")
    max_bytes: int = wire("maxBytes", default=ANSWER_BYTES)
    """Of the log in the answer; one record may be longer."""


@dataclass(slots=True)
class RawResponseHeader(Header):
    """What the body has, and the ends of queue and log as they were."""

    next_offset: int = wire_long("nextOffset")
    """Queue offset to go on with; what lies before it and has no unit here is gone."""

    min_offset: int = wire_long("minOffset")
    max_offset: int = wire_long("maxOffset")
    log_min_offset: int = wire_long("logMinOffset")
    log_end_offset: int = wire_long("logEndOffset")
    unit_count: int = wire("unitCount")
    piece_count: int = wire("pieceCount")
