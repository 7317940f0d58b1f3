"""Filters of messages by queue unit, by extension unit and by record.

The unit holds the hash of the tag. The extension, if any, holds it too, with Bloom filter bits of
the subscriptions that match. Both may pass too many messages, never too few; the record or the
client decides.

Source: broker/filter/ExpressionMessageFilter.java, store/ConsumeQueueExt.java (isExtAddr).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Protocol

EXT_ADDRESS_MAX: Final = -(1 << 31) - 1
"""Maximum tags code that is the address of an extension unit."""

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_INT_VALUES = 1 << 32


class ExtFields(Protocol):
    """Extension data of one message."""

    @property
    def tags_code(self) -> int: ...

    @property
    def store_timestamp(self) -> int:
        """Store timestamp in ms."""

    @property
    def bitmap(self) -> bytes | None:
        """Bit b is bit b % 8 of byte b // 8, counted from the least significant."""


class Extended(Protocol):
    """Queue that may have an extension."""

    def ext(self, address: int) -> ExtFields | None:
        """Return the extension unit, or None if it is missing."""


@dataclass(frozen=True, slots=True)
class BloomBits:
    """Bloom filter bits of a subscription's expression."""

    bit_count: int
    positions: tuple[int, ...]
    since_ms: int = 0
    """Store timestamp of the subscription, ms; bits of older messages do not include it."""

    def may_match(self, unit: ExtFields | None) -> bool:
        """Return False only if the message is known not to match."""
        if unit is None or unit.store_timestamp <= self.since_ms:
            return True
        bits = unit.bitmap
        if bits is None or len(bits) * 8 != self.bit_count:
            return True
        return all(bits[position >> 3] >> (position & 7) & 1 for position in self.positions)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Filter of a reader; a part that is None passes every message."""

    tag_codes: Set[int] | None = None
    """Wanted tag hashes, signed 32-bit."""
    bits: BloomBits | None = None
    matches: Callable[[Mapping[str, str]], bool | None] | None = None
    """Predicate on the properties of the record; None or an exception rejects the message."""
    chars: int = 0
    """Characters of the expression behind `matches`: what one evaluation costs."""

    def wants_unit(self, code: int, queue: Extended) -> bool:
        """Return whether the unit may belong to a wanted message.

        A missing extension unit passes, because the client filters again.
        """
        codes = self.tag_codes
        if codes is not None and code in codes:
            return self.bits is None or self.bits.may_match(None)
        unit = None
        if code <= EXT_ADDRESS_MAX:
            unit = queue.ext(code)
            if unit is None:
                return True
            code = unit.tags_code
        if codes is not None and low_32_bits(code) not in codes:
            return False
        return self.bits is None or self.bits.may_match(unit)


def low_32_bits(code: int) -> int:
    """Return the low 32 bits of a due time as a signed number, which is all that 4.9.7 compares."""
    return code if _INT_MIN <= code <= _INT_MAX else (code - _INT_MIN) % _INT_VALUES + _INT_MIN
