"""Compressed bodies; bits of a message's sysFlag name the codec.

ZLIB is what 4.9.7 clients write and what 0 in the type bits means. LZ4 and ZSTD bodies pass through
a broker untouched; this project has no codec to read them.

Source: common/compression/CompressionType.java, ZlibCompressor.java.
"""

from zlib import compress as zlib_compress
from zlib import decompressobj
from zlib import error as ZlibError

from protocol.codes import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

LEVEL = 5
"""The level of the 4.9.7 client."""
COMPRESS_OVER_BYTES = 4096
"""compressMsgBodyOverHowmuch: clients send shorter bodies uncompressed."""
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum decompressed size, since a few bytes may expand to gigabytes. Messages have 4 MiB."""

_FED_BYTES = 64 << 10
"""Input given to zlib at once. zlib copies the rest on each call, while other threads wait."""
_PIECE_BYTES = 4 << 20
"""Maximum output of one call, because zlib holds its output twice for a moment."""

_NAMES = {0: "ZLIB", COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD", COMPRESSION_ZLIB: "ZLIB"}


class CompressionError(ValueError):
    """Unreadable body: damaged, too long, or of an unsupported codec."""


def compress(body: bytes, sys_flag: int = 0) -> tuple[bytes, int]:
    """Return the ZLIB form of `body`, and `sys_flag` with the codec's bits."""
    flag = sys_flag & ~COMPRESSION_TYPE_MASK | COMPRESSED | COMPRESSION_ZLIB
    return zlib_compress(body, LEVEL), flag


def decompress(body: bytes, sys_flag: int, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the body as the producer gave it.

    An uncompressed body is returned unchanged. Raises CompressionError for an unsupported codec, a
    damaged body, and one of more than `max_bytes`.
    """
    if not sys_flag & COMPRESSED:
        return body
    _check_codec(sys_flag)
    return inflate(body, max_bytes)


def beginning(body: bytes, sys_flag: int, count: int) -> bytes:
    """Return the first `count` bytes of the body as the producer gave it; no more is unfolded.

    Raises CompressionError for an unsupported codec and a body that is damaged so far.
    """
    if not sys_flag & COMPRESSED:
        return body[:count]
    _check_codec(sys_flag)
    try:
        return decompressobj().decompress(body, count)
    except ZlibError as error:
        raise CompressionError(f"broken zlib data: {error}") from None


def _check_codec(sys_flag: int) -> None:
    name = _NAMES.get(sys_flag & COMPRESSION_TYPE_MASK, "unknown")
    if name != "ZLIB":
        raise CompressionError(f"a body compressed with {name} cannot be read here")


def inflate(data: bytes, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the content of a zlib stream, up to `max_bytes`. Raises CompressionError."""
    stream = decompressobj()
    parts: list[bytes] = []
    view, at, made = memoryview(data), 0, 0
    left: bytes | memoryview = b""
    while not stream.eof and made <= max_bytes:
        if not left:
            left, at = view[at : at + _FED_BYTES], at + _FED_BYTES
        has_ended = not left
        try:
            part = stream.decompress(left, min(_PIECE_BYTES, max_bytes + 1 - made))
        except ZlibError as error:
            raise CompressionError(f"broken zlib data: {error}") from None
        if has_ended and not part and not stream.eof:
            raise CompressionError("zlib data is cut off")
        made += len(part)
        parts.append(part)
        left = stream.unconsumed_tail
    if made > max_bytes:
        raise CompressionError(f"zlib data is longer than {max_bytes} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unfolds_beyond(data: bytes, max_bytes: int) -> bool:
    """Return whether a zlib stream holds more; False if it breaks off before."""
    try:
        return len(decompressobj().decompress(data, max_bytes + 1)) > max_bytes
    except ZlibError:
        return False
