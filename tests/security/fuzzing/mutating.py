"""Inputs of a fuzz run that is not guided by coverage, and long ones of any: drawn from a seed."""

from collections.abc import Sequence
from random import Random

STRETCHED_BYTES = (4 << 10, 64 << 10, 1 << 20)
PIECE_BYTES_MAX = 48


def damaged(data: bytes, other: bytes, random: Random, first: int = 0) -> bytes:
    """Change, double, cut, or replace by pieces of `other`, pieces of `data` from `first` on."""
    out = bytearray(data)
    for _ in range(random.randrange(1, 5)):
        at, end = sorted(random.randrange(first, len(out) + 1) for _ in range(2))
        kind = random.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            out[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 2:
            del out[at:end]
        elif kind == 3:
            out[at:at] = out[at:end]
        elif kind == 4 and other:
            begin = random.randrange(len(other))
            out[at:end] = other[begin : begin + random.randrange(1, 200)]
        else:
            out[at : at + 4] = random.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x80"))
    return bytes(out)


def stretched(data: bytes, random: Random, bytes_max: int) -> bytes:
    """A long input: one of its pieces comes again and again in its place."""
    if not data:
        return data
    begin = random.randrange(len(data))
    piece = data[begin : begin + random.randrange(1, PIECE_BYTES_MAX)]
    size = min(random.choice(STRETCHED_BYTES), bytes_max)
    count = max(0, size - len(data)) // len(piece)
    return data[:begin] + piece * count + data[begin:]


def drawn(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the inputs, damaged."""
    return damaged(random.choice(seeds), random.choice(seeds), random)
