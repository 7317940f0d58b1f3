"""Messages of a sink, whose batches are repeated after a failure and stored once.

A task of a query sends the messages of a batch in *lanes*: one for each topic, numbered from 0 on.
Each message that a broker stores so bears the property TROUPE_SINK, where it stands and what came
before it:

    <query>:<partition>:<batch>:<sequence>:<chain>[:<owner>]

`owner` is present if a broker with access control stored it: a checksum of the account, 16
hexadecimal digits. The query of another account is another one, whatever it is called.

`chain` is a checksum over the contents of all messages of the lane up to this one, 16 hexadecimal
digits: a batch that is repeated in another order has another one.  UNIQ_KEY is made of the same
numbers, and so the same for every attempt.  The record's prepared transaction offset is SINK_MARK:
a copy of the message that another send makes has the properties, but not that.

The body of SEND_SINK_BATCH, all integers big-endian, messages without padding:

    offset  size  type  field
    0       4     i32   queue_id
    4       4     i32   flag
    8       8     i64   born_timestamp, ms
    16      8     bytes chain, behind this message
    24      4     i32   body length, then the body
    28+n    2     i16   properties length, then their text
"""

from collections.abc import Iterable
from hashlib import blake2b
from re import compile as pattern
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.java_numbers import parse_long

TROUPE_SINK: Final = "TROUPE_SINK"
SINK_MARK: Final = 0x54524F55_5045534B
"""Prepared transaction offset of sinks, larger than any physical offset."""
SINK_MESSAGES_MAX: Final = 1024
"""Maximum messages of one request: some 10 ms of the broker's loop."""

CHAIN_BYTES: Final = 8
CHAIN_START: Final = bytes(CHAIN_BYTES)

_QUERY = pattern(r"[A-Za-z0-9_.\-]{1,128}")
_HEAD = Struct(
    ">i"  # queue_id
    "i"  # flag
    "q"  # born_timestamp, ms
    "8s"  # chain
    "i"  # body length
)
_PROPERTIES_LENGTH = Struct(">h")
_FIELD = Struct(">iI")
assert _HEAD.size == 28

KEY_TIME: Final = slice(20, 28)
"""Place of the creation time in a UNIQ_KEY."""
NO_TIME: Final = b"00000000"
"""Creation time in keys of sinks; other clients use it during one millisecond of a month."""
KEY_DIGITS: Final = 32
"""Length of a sink's key. Clients with an IPv6 address use 56, whose zeros may lie in that place.
"""


def may_be_of_sink(key: bytes) -> bool:
    """Return whether this UNIQ_KEY may be a sink's; few others have its form."""
    return key[KEY_TIME] == NO_TIME and len(key) == KEY_DIGITS


class SinkMark(NamedTuple):
    """Position of a message in its lane."""

    query: str
    partition: int
    batch: int
    sequence: int
    chain: bytes
    """Checksum up to this message."""
    owner: str = ""
    """Owner of the query (`owner_of`); empty without access control."""

    def text(self) -> bytes:
        """Return the value of TROUPE_SINK."""
        numbers = f"{self.query}:{self.partition}:{self.batch}:{self.sequence}:{self.chain.hex()}"
        return (f"{numbers}:{self.owner}" if self.owner else numbers).encode()

    def unique_key(self, topic: str) -> bytes:
        """Return the UNIQ_KEY, 32 hexadecimal digits as any other."""
        query = f"{self.owner}/{self.query}" if self.owner else self.query
        name = f"{query}/{topic}:{self.partition}:{self.batch}:{self.sequence}"
        digits = blake2b(name.encode(), digest_size=12).hexdigest().upper().encode()
        return digits[: KEY_TIME.start] + NO_TIME + digits[KEY_TIME.start :]

    def properties(self, own: bytes, topic: str) -> bytes:
        """Return the property text with mark and key; `own` must have neither."""
        marks = b"UNIQ_KEY\x01%b\x02TROUPE_SINK\x01%b" % (self.unique_key(topic), self.text())
        return own + b"\x02" + marks if own else marks


def parse_mark(text: bytes) -> SinkMark | None:
    """Parse a mark of `SinkMark.text`; return None for other texts."""
    try:
        query, *numbers, chain = text.decode("ascii").split(":", 4)
        chain, _, owner = chain.partition(":")
        partition, batch, sequence = map(parse_long, numbers)
        mark = SinkMark(query, partition, batch, sequence, bytes.fromhex(chain), owner)
    except ValueError:
        return None
    return mark if mark.text() == text and len(mark.chain) == CHAIN_BYTES else None


def owner_of(access_key: str) -> str:
    """Return the hash of an account for marks; empty without an account."""
    return blake2b(access_key.encode(), digest_size=8).hexdigest() if access_key else ""


def is_query_name(text: str) -> bool:
    """Return whether this is a valid query name: letters, digits, and three signs."""
    return _QUERY.fullmatch(text) is not None


def chain_behind(chain: bytes, flag: int, body: bytes, properties: bytes) -> bytes:
    """Return the checksum behind a message that follows `chain`; `properties` without marks."""
    head = _FIELD.pack(flag, len(body))
    return blake2b(chain + head + body + properties, digest_size=CHAIN_BYTES).digest()


class SinkMessage(NamedTuple):
    """One message of a request; `properties` is its text, without marks."""

    queue_id: int
    flag: int
    born_timestamp: int
    chain: bytes
    body: bytes
    properties: bytes


def encode_sink_body(messages: Iterable[SinkMessage]) -> bytes:
    """Return the body of a request. Raises struct.error for an impossible message."""
    parts: list[bytes] = []
    for queue_id, flag, born_timestamp, chain, body, properties in messages:
        parts += (
            _HEAD.pack(queue_id, flag, born_timestamp, chain, len(body)),
            body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_sink_body(data: bytes | memoryview) -> list[SinkMessage]:
    """Return the messages of a request.

    Raises RemoteError for a truncated body, and for more than SINK_MESSAGES_MAX messages.
    """
    messages: list[SinkMessage] = []
    position, end = 0, len(data)
    while position < end:
        if len(messages) == SINK_MESSAGES_MAX:
            raise _wrong(f"it has more than {SINK_MESSAGES_MAX} messages")
        try:
            queue_id, flag, born_timestamp, chain, body_bytes = _HEAD.unpack_from(data, position)
            body_at = position + _HEAD.size
            properties_at = body_at + body_bytes
            if body_bytes < 0:
                raise _wrong("a body has a length below 0")
            (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(data, properties_at)
        except StructError:
            raise _wrong("it ends in the middle of a message") from None
        text_at = properties_at + _PROPERTIES_LENGTH.size
        position = text_at + properties_bytes
        if properties_bytes < 0 or position > end:
            raise _wrong("it ends in the middle of a message")
        body, text = bytes(data[body_at:properties_at]), bytes(data[text_at:position])
        messages.append(SinkMessage(queue_id, flag, born_timestamp, chain, body, text))
    return messages


def _wrong(why: str) -> RemoteError:
    return RemoteError(ResponseCode.SYSTEM_ERROR, f"a batch of a sink is refused: {why}")
