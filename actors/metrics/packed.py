"""A long text, compressed as it is made, and the turns that its maker gives to others.

50 MiB of text that are there at once, or go at once, hold the loop up for 7 ms. Here a piece is
compressed as soon as it is written, while others run, and 2 MB are kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from zlib import compressobj, decompressobj

GZIP_BITS = 31
"""For zlib: with the head and the end of gzip."""
GZIP_LEVEL = 1
UNPACKED_BYTES = 256 << 10
"""At a time, for who does not take gzip."""

TURN_S = 0.000_25
"""How long who makes a page keeps the interpreter to itself, if it can be helped. The loop waits
that long; left to the interpreter it waits for sys.setswitchinterval, 0.5 ms, and that again after
each call of the system."""
PAUSE_S = 0.000_02
"""Long enough for who waits to wake up: a sleep of 0 takes the lock back before. 0.1 ms in all."""


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
        let_others_run()

    def packed(self) -> Packed:
        """All of it; nothing can be added any more."""
        self._parts.append(self._zip.flush())
        return Packed(self._parts, self._size)


class _Turns:
    """When the last one began. One thread of a process makes pages; two would pause too often."""

    def __init__(self) -> None:
        self._since_s = 0.0

    def end_one(self) -> None:
        """Gives the interpreter to who waits for it, if TURN_S are over; takes 0.1 us if not."""
        if perf_counter() - self._since_s >= TURN_S:
            sleep(PAUSE_S)
            self._since_s = perf_counter()


let_others_run = _Turns().end_one
