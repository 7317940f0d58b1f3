"""Long text, compressed as it is written.

To allocate or free 50 MiB of text blocks the loop for 7 ms. Here each piece is compressed as soon
as it is written, so that only 2 MB are kept. Other threads run meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import compressobj, decompressobj

GZIP_BITS = 31
"""zlib window bits for a gzip header and trailer."""
GZIP_LEVEL = 1
UNPACKED_BYTES = 256 << 10
"""Piece size for clients that do not accept gzip."""


@dataclass(frozen=True, slots=True)
class Packed:
    parts: Sequence[bytes]
    size: int
    """Uncompressed length in bytes."""

    def unpacked(self) -> Iterator[bytes]:
        """Yield the text in pieces of at most UNPACKED_BYTES."""
        unpacker = decompressobj(GZIP_BITS)
        for part in self.parts:
            while part:
                yield unpacker.decompress(part, UNPACKED_BYTES)
                part = unpacker.unconsumed_tail
        yield unpacker.flush()


class Packer:
    """Compressor of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._zip = compressobj(GZIP_LEVEL, wbits=GZIP_BITS)
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, text: str) -> None:
        """Compress the next piece, while other threads run."""
        plain = text.encode()
        self._size += len(plain)
        if part := self._zip.compress(plain):
            self._parts.append(part)

    def packed(self) -> Packed:
        """Return the whole text; `add` must not be called afterwards."""
        self._parts.append(self._zip.flush())
        return Packed(self._parts, self._size)
