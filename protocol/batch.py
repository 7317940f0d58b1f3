"""Many messages in one body: what SEND_BATCH_MESSAGE carries.

All integers big-endian; the messages follow each other without padding and have no topic of their
own, the frame's header names it for all.

    offset  size  type   field
    0       4     i32    total size        whole message; not trusted by the reader
    4       4     i32    magic             0
    8       4     i32    body_crc          0; the broker computes it
    12      4     i32    flag
    16      4     i32    body length, then the body
    20+n    2     i16    properties length, then their text

Source: common/message/MessageDecoder.java (encodeMessage, decodeMessage).
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.properties import PROPERTIES_BYTES_MAX

_HEAD = Struct(
    ">i"  # total size
    "8x"  # magic and body_crc, 0
    "i"  # flag
    "i"  # body length
)
_PROPERTIES_LENGTH = Struct(">h")
assert _HEAD.size == 20

DECODED_MAX = 1 << 16
"""Maximum messages of a batch, 1 to 5 µs each. A batch of a 4.9.7 client has fewer: each of its
messages has a UNIQ_KEY and more than 64 bytes, and all together have 4 MiB at most."""


class BatchMessage(NamedTuple):
    """One message of a batch; `properties` is its raw text."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Return the body of a batch send. Raises ValueError if properties are too long."""
    parts: list[bytes] = []
    for message in messages:
        body, properties = message.body, message.properties
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise ValueError(
                f"properties of {len(properties)} bytes; at most {PROPERTIES_BYTES_MAX}"
            )
        total = _HEAD.size + len(body) + _PROPERTIES_LENGTH.size + len(properties)
        parts += (
            _HEAD.pack(total, message.flag, len(body)),
            body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(body: bytes | memoryview) -> list[tuple[bytes, bytes, int]]:
    """Return body, properties and flag of each message of a batch body.

    Raises RemoteError for a body that ends in the middle of a message (SYSTEM_ERROR) or has more
    than DECODED_MAX of them (MESSAGE_ILLEGAL).
    """
    if not isinstance(body, bytes):
        body = bytes(body)
    messages: list[tuple[bytes, bytes, int]] = []
    add, unpack = messages.append, _HEAD.unpack_from
    position, end = 0, len(body)
    while position < end:
        if len(messages) == DECODED_MAX:
            remark = f"a batch has {DECODED_MAX} messages at the most"
            raise RemoteError(ResponseCode.MESSAGE_ILLEGAL, remark)
        try:
            _, flag, body_length = unpack(body, position)
            body_start = position + 20
            properties_at = body_start + body_length
            if body_length < 0:
                raise _broken()
            properties_length = body[properties_at] << 8 | body[properties_at + 1]
        except (StructError, IndexError):
            raise _broken() from None
        properties_start = properties_at + 2
        position = properties_start + properties_length
        if properties_length > PROPERTIES_BYTES_MAX or position > end:
            raise _broken()
        add((body[body_start:properties_at], body[properties_start:position], flag))
    return messages


def _broken() -> RemoteError:
    return RemoteError(ResponseCode.SYSTEM_ERROR, "java.nio.BufferUnderflowException")
