"""A long text, compressed as it is made.

50 MiB of text that are there at once, or go at once, hold the loop up for 7 ms. Here a piece is
compressed as soon as it is written, while others run, and 2 MB are kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import compressobj, decompressobj

GZIP_BITS = 31
"""For zlib: with the head and the end of gzip."""
GZIP_LEVEL = 1
UNPACKED_BYTES = 256 << 10
"""At a time, for who does not take gzip."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A long text, kept compressed."""

    parts: Sequence[bytes]
    size: int
    """Bytes of the text."""

    def unpacked(self) -> Iterator[bytes]:
        """The text, as much at a time as is sent."""
        unpacker = decompressobj(GZIP_BITS)
        for part in self.parts:
            while part:
                yield unpacker.decompress(part, UNPACKED_BYTES)
                part = unpacker.unconsumed_tail
        yield unpacker.flush()


class Packer:
    """Compresses a text piece by piece."""

    def __init__(self) -> None:
        self._zip = compressobj(GZIP_LEVEL, wbits=GZIP_BITS)
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, text: str) -> None:
        """The next piece; others run meanwhile."""
        plain = text.encode()
        self._size += len(plain)
        if part := self._zip.compress(plain):
            self._parts.append(part)

    def packed(self) -> Packed:
        """All of it; nothing can be added any more."""
        self._parts.append(self._zip.flush())
        return Packed(self._parts, self._size)
