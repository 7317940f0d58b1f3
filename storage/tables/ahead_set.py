"""Queue offsets that are done before their turn, as a bit map.

A timer is delivered when it is due, while messages before it in its level's queue still wait. The
level's offset in delayOffset.json stays at the first message that waits. A message that is settled
by itself may be behind a consumer offset in the same way (offset_journal.py). The offsets of timers
are kept beside their level's, as text:

    <offset of the first bit>:<Base64 of the bits, compressed by zlib>

Bit 0 of a byte is its lowest one. The first bit is at a multiple of 8. Two sets are equal to their
owner's snapshots only by copies: a set is mutable.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from zlib import compress, decompressobj
from zlib import error as ZlibError

from protocol.java_numbers import plain_number

AHEAD_BYTES_MAX = 32 << 20
"""Bytes of bits that the texts of a table may have: 268 million messages between a level's ends."""


class AheadSet:
    """Set of queue offsets. One owner."""

    __slots__ = ("_base", "_bits")

    def __init__(self, base: int = 0, bits: bytes | bytearray = b"") -> None:
        self._base = base
        self._bits = bytearray(bits)

    def __bool__(self) -> bool:
        return bool(self._bits)

    @property
    def size_bytes(self) -> int:
        return len(self._bits)

    def __contains__(self, offset: int) -> bool:
        place = offset - self._base
        return 0 <= place < len(self._bits) << 3 and bool(self._bits[place >> 3] >> (place & 7) & 1)

    def add(self, offset: int) -> None:
        """Add an offset that is not below those forgotten."""
        if not self._bits:
            self._base = offset & ~7
        place = offset - self._base
        if place < 0:
            more = -(place >> 3)
            self._bits[:0] = bytes(more)
            self._base -= more << 3
            place = offset - self._base
        missing = (place >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits += bytes(missing)
        self._bits[place >> 3] |= 1 << (place & 7)

    def forget_below(self, offset: int) -> None:
        """Remove offsets below `offset`, in whole bytes."""
        bits = self._bits
        if not bits:
            return
        gone = (offset - self._base) >> 3
        if gone >= len(bits):
            bits.clear()
        elif gone > 0:
            del bits[:gone]
            self._base += gone << 3

    def forget_from(self, offset: int) -> None:
        """Remove offsets from `offset` on."""
        bits, place = self._bits, max(0, offset - self._base)
        del bits[(place + 7) >> 3 :]
        if place & 7 and len(bits) == (place >> 3) + 1:
            bits[-1] &= (1 << (place & 7)) - 1

    @property
    def last(self) -> int:
        """The highest offset; -1 for an empty set."""
        bits = self._bits.rstrip(b"\0")
        return self._base + (len(bits) << 3) - 9 + bits[-1].bit_length() if bits else -1

    def offsets(self) -> Iterator[int]:
        """Yield all offsets in order."""
        for at, byte in enumerate(self._bits):
            if byte:
                first = self._base + (at << 3)
                yield from (first + bit for bit in range(8) if byte >> bit & 1)

    def parts(self) -> tuple[int, bytes]:
        """Return the offset of the first bit, and the bits."""
        return self._base, bytes(self._bits)

    def first_gap(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not in the set."""
        bits = self._bits
        while offset in self:
            place = (offset - self._base) >> 3
            if offset & 7 or bits[place] != 0xFF:
                offset += 1
                continue
            while place < len(bits) and bits[place] == 0xFF:
                place += 1
            offset = self._base + (place << 3)
        return offset

    def copy(self) -> "AheadSet":
        return AheadSet(self._base, self._bits)

    def encode(self) -> str:
        """Return the set as text; an empty set as an empty text."""
        if not self._bits:
            return ""
        return f"{self._base}:{b64encode(compress(bytes(self._bits), 1)).decode()}"

    @classmethod
    def decode(cls, text: str, bytes_max: int | None = None) -> "AheadSet":
        """Return the set of a text, at most `bytes_max` of its bits. Raises ValueError."""
        most = AHEAD_BYTES_MAX if bytes_max is None else bytes_max
        if not text:
            return cls()
        first, _, rest = text.partition(":")
        base = plain_number(first)
        if base is None or base & 7:
            raise ValueError(f"invalid offset {first[:20]!r} of delivered messages")
        try:
            bits = decompressobj().decompress(b64decode(rest, validate=True), most + 1)[:most]
        except (Base64Error, ZlibError, ValueError) as error:
            raise ValueError(f"invalid set of delivered messages: {error}") from None
        return cls(base, bits)
