"""Headers of the requests of a sink's tasks: ours alone, see protocol/sink.py."""

from dataclasses import dataclass

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.fields import Header, wire, wire_long
from protocol.sink import CHAIN_BYTES, is_query_name


@dataclass(slots=True)
class SinkLaneHeader(Header):
    """Messages that a task sends to one topic: GET_SINK_PROGRESS."""

    query: str = wire("query")
    partition: int = wire("partition")
    topic: str = wire("topic")

    def check(self) -> None:
        """Raises RemoteError for names and numbers that no query has."""
        if not is_query_name(self.query) or self.partition < 0:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "no query of a sink is called so")


@dataclass(slots=True)
class SinkBatchHeader(SinkLaneHeader):
    """Messages of a batch, the first of them with the number `sequence`: SEND_SINK_BATCH."""

    batch: int = wire_long("batch")
    sequence: int = wire_long("sequence")
    chain: str = wire("chain")
    """Before them, in hexadecimal digits."""

    def check(self) -> None:
        """Raises RemoteError for names and numbers that no query has."""
        SinkLaneHeader.check(self)
        chain_of(self.chain)
        if self.batch < 0 or self.sequence < 0:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "a batch and its messages count from 0")


@dataclass(slots=True)
class SinkProgressHeader(Header):
    """How far a lane is: the answer to both. Without a batch nothing is known of it."""

    batch: int = wire_long("batch", default=-1)
    sequence: int = wire_long("sequence", default=0)
    """Of the next message that the broker wants."""
    chain: str = wire("chain", default="")


def chain_of(text: str) -> bytes:
    """The checksum that is written so. Raises RemoteError."""
    try:
        chain = bytes.fromhex(text)
    except ValueError:
        chain = b""
    if len(chain) != CHAIN_BYTES:
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "a chain has 16 hexadecimal digits")
    return chain
