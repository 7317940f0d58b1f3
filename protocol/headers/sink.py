"""Headers of a sink's requests, TroupeMQ extensions (protocol/sink.py)."""

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.fields import Header, wire, wire_long
from protocol.sink import CHAIN_BYTES, is_query_name
from protocol.values import value


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
