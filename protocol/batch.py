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
from functools import lru_cache
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

_ALIKE_MIN = 8
"""Minimum messages of a batch that are read with one layout."""
_LAYOUTS_KEPT = 64

try:
    import __pypy__  # type: ignore[import-not-found]  # noqa: F401
except ImportError:
    _HAS_QUICK_LAYOUTS = True
else:
    _HAS_QUICK_LAYOUTS = False
    """PyPy compiles the loop, which takes 0.1 µs a message; `iter_unpack` takes 0.3 µs there."""

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
    messages = _decode_alike(body) if _HAS_QUICK_LAYOUTS else []
    if messages:
        return messages
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


def _decode_alike(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Return the messages of a batch whose bodies and properties have one length each.

    The list is empty for other batches. CPython takes 0.2 µs a message instead of 0.5.
    """
    if len(body) < _HEAD.size:
        return []
    body_length = _HEAD.unpack_from(body)[2]
    properties_at = _HEAD.size + body_length
    properties_length = int.from_bytes(body[properties_at : properties_at + 2])
    size = properties_at + 2 + properties_length
    count, rest = divmod(len(body), size) if body_length >= 0 else (0, 0)
    if rest or not _ALIKE_MIN <= count <= DECODED_MAX or properties_length > PROPERTIES_BYTES_MAX:
        return []
    messages = [
        (content, properties, flag)
        for flag, its_body_length, content, its_length, properties in _layout(
            body_length, properties_length
        ).iter_unpack(body)
        if its_body_length == body_length and its_length == properties_length
    ]
    return messages if len(messages) == count else []


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _layout(body_length: int, properties_length: int) -> Struct:
    """Return the layout of a message with these lengths."""
    return Struct(f">12xii{body_length}sH{properties_length}s")


def _broken() -> RemoteError:
    return RemoteError(ResponseCode.SYSTEM_ERROR, "java.nio.BufferUnderflowException")
