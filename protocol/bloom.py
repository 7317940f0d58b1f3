"""The Bloom filter of the subscriptions whose expressions match a message.

A subscription owns some bits of a bit map, by the hash of `group#topic`; a message whose bits of it
are not all set does not match. Bit b is bit b % 8, counted from the least significant, of byte
b // 8. RocketMQ 4.9.7 has bit maps of 112 bits, three for each subscription.

Source: filter/util/BloomFilter.java, BitsArray.java; Murmur3 by Austin Appleby (public domain).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, e, log
from struct import Struct
from typing import Final

DEFAULT_ERROR_PERCENT: Final = 20
"""Default of maxErrorRateOfBloomFilter, in percent."""
DEFAULT_EXPECTED_COUNT: Final = 32
"""Default of expectConsumerNumUseFilter."""

_BLOCK = Struct(
    "<Q"  # first half, little-endian
    "Q"  # second half
)
_MASK = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SIGN_32 = 1 << 31
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Length of bit maps, and number of bits of each subscription."""

    bit_count: int
    """Length of a bit map, a multiple of 8."""
    hash_count: int

    @classmethod
    def of(
        cls,
        error_percent: int = DEFAULT_ERROR_PERCENT,
        expected_count: int = DEFAULT_EXPECTED_COUNT,
    ) -> "BloomFilter":
        """Return the filter with this error rate at this number of subscriptions.

        Raises ValueError.
        """
        if not 1 <= error_percent < 100:
            raise ValueError(f"an error rate of {error_percent} %: it must be from 1 to 99")
        if expected_count < 1:
            raise ValueError(f"{expected_count} subscriptions: expect at least one")
        error_rate = error_percent / 100
        hash_count = ceil(log(error_rate) / log(0.5))
        bits = ceil(expected_count * (log(1 / error_rate) / log(2)) * (log(e) / log(2)))
        return cls(8 * ceil(bits / 8), hash_count)

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """Return the bits of a subscription; some may be equal."""
        hash_64 = murmur3_first_64(f"{group}#{topic}".encode("utf-8", "replace"))
        low, high = hash_64 & _MASK_32, hash_64 >> 32
        found = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & _MASK_32
            if combined & _SIGN_32:
                combined ^= _MASK_32
            found.append(combined % self.bit_count)
        return tuple(found)

    def bit_map(self, positions: Iterable[int]) -> bytes:
        """Return a bit map with these bits set."""
        bits = 0
        for position in positions:
            bits |= 1 << position
        return bits.to_bytes(self.bit_count // 8, "little")


def murmur3_first_64(data: bytes) -> int:
    """Return the first half of MurmurHash3_x64_128, seed 0."""
    h1 = h2 = 0
    whole = len(data) // _BLOCK.size * _BLOCK.size
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 ^= _mixed(k1, _C1, 31, _C2)
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mixed(k2, _C2, 33, _C1)
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    if len(data) > whole:
        k1, k2 = _BLOCK.unpack(data[whole:].ljust(_BLOCK.size, b"\0"))
        h1 ^= _mixed(k1, _C1, 31, _C2)
        h2 ^= _mixed(k2, _C2, 33, _C1)
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK


def _mixed(word: int, first: int, count: int, second: int) -> int:
    return _rotated(word * first & _MASK, count) * second & _MASK


def _finished(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
