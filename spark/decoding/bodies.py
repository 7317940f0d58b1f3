"""Bodies as their producers sent them: decompressed, each within a limit.

Clients of 4.9.7 write ZLIB, newer ones may write LZ4 (frames) and ZSTD, whose codecs come with
Arrow.
"""

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, decompress
from protocol.sysflag import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_TYPE_MASK, COMPRESSION_ZSTD

_PIECE_BYTES = 1 << 20
_CODECS = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def plain_body(
    stored: bytes, sys_flag: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes | None:
    """Return a body without its compression.

    None if it is damaged, or longer than `max_bytes` then.
    """
    if not sys_flag & COMPRESSED:
        return stored
    if not stored:
        return None  # no codec writes nothing
    codec = _CODECS.get(sys_flag & COMPRESSION_TYPE_MASK)
    try:
        if codec is None:
            return decompress(stored, sys_flag, max_bytes)
        return _unfolded(stored, codec, max_bytes)
    except (CompressionError, OSError):
        return None


def _unfolded(stored: bytes, codec: str, max_bytes: int) -> bytes | None:
    """Return the body, None for a longer one.

    A read takes the memory that it asks for at once. `NativeFile.read` would not return it if the
    body is damaged.
    """
    parts: list[pa.Buffer] = []
    left = max_bytes + 1
    with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
        while left and (part := stream.read_buffer(min(_PIECE_BYTES, left))).size:
            parts.append(part)
            left -= part.size
    return b"".join(parts) if left else None


def with_plain(stored: pa.Array, rows: Sequence[int], plain: Sequence[bytes | None]) -> pa.Array:
    """Return the stored bodies, with `plain` in place of those of `rows` (ascending)."""
    if not rows:
        return stored
    order = list(range(len(stored)))
    for place, row in enumerate(rows):
        order[row] = len(stored) + place
    return pa.concat_arrays([stored, pa.array(plain, pa.binary())]).take(pa.array(order))
