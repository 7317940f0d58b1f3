"""The checksums beside a config file, NAME.crc: a TroupeMQ extension, unknown to 4.9.7.

One line of text for each version, then the checksum of the lines above it; all CRC-32, in hex:

    NAME      <bytes> <crc>
    NAME.bak  <bytes> <crc>      missing while there is no .bak
    check     <crc>

A broker without this extension may have written NAME since. It then has changed NAME.bak as well,
so that the second line no longer fits: see `was_left_alone`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self
from zlib import crc32

_POLYNOMIAL = 0xEDB88320
"""CRC-32 of zlib, bits reversed."""
SEARCHED_BYTES_MAX = 32 << 20
"""Limit of file size for the search for a flipped bit, which takes 5 s here."""
_CHECK = "check"


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and checksum of a file's content."""

    size_bytes: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(len(data), crc32(data))


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Checksums of both versions as last saved."""

    newest: Digest
    previous: Digest | None = None

    def knows(self, data: bytes) -> bool:
        """Return whether these are the bytes of one of the two versions."""
        digest = Digest.of(data)
        return digest in (self.newest, self.previous)

    def was_left_alone(self, previous: bytes | None) -> bool:
        """Return whether the .bak, which every writer replaces, is unchanged."""
        return self.previous == (None if previous is None else Digest.of(previous))

    def encode(self, name: str) -> bytes:
        """Return the file's content; `name` is the config file's, without its directory."""
        lines = [_line(name, self.newest)]
        if self.previous is not None:
            lines.append(_line(f"{name}.bak", self.previous))
        text = "".join(lines).encode("utf-8", "surrogateescape")
        return text + f"{_CHECK} {crc32(text):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the checksums, or None for an invalid sidecar."""
        lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        above = "".join(lines[:-1]).encode("utf-8", "surrogateescape")
        if not lines or lines[-1] != f"{_CHECK} {crc32(above):08x}\n":
            return None
        digests = [_digest(line) for line in lines[:-1]]
        if not 1 <= len(digests) <= 2 or None in digests:
            return None
        newest, *rest = digests
        assert newest is not None
        return cls(newest, rest[0] if rest else None)


def _line(name: str, digest: Digest) -> str:
    return f"{name} {digest.size_bytes} {digest.crc:08x}\n"


def _digest(line: str) -> Digest | None:
    words = line.split()
    try:
        return Digest(int(words[-2]), int(words[-1], 16))
    except (IndexError, ValueError):
        return None


def without_flipped_bit(data: bytes, digest: Digest) -> bytes | None:
    """Return `data` with its one flipped bit corrected, or None if that does not fit the digest.

    Takes some 0.15 s for each MB. A CRC-32 identifies the bit: the difference of two CRCs depends
    only on where the contents differ.
    """
    if len(data) != digest.size_bytes or len(data) > SEARCHED_BYTES_MAX:
        return None
    bit = _flipped_bit(crc32(data) ^ digest.crc, len(data))
    if bit is None:
        return None
    corrected = bytearray(data)
    corrected[bit >> 3] ^= 1 << (bit & 7)
    return bytes(corrected)


def _flipped_bit(difference: int, size_bytes: int) -> int | None:
    """Return the bit (from the first byte's lowest) that makes this difference between two CRCs.

    It undoes the steps of the CRC register, byte by byte from the end, until the rest is the step
    of a single bit.
    """
    table = _table()
    from_top = {entry >> 24: index for index, entry in enumerate(table)}
    single = {table[1 << bit]: bit for bit in range(8)}
    register = difference
    for position in range(size_bytes - 1, -1, -1):
        bit = single.get(register)
        if bit is not None:
            return position * 8 + bit
        index = from_top[register >> 24]
        register = (register ^ table[index]) << 8 & 0xFFFFFFFF | index
    return None


@cache
def _table() -> Sequence[int]:
    """Return the register's step for each byte."""
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
        table.append(entry)
    return table
