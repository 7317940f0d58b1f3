"""Filters of messages: by the unit of the queue, by its extension, by the record.

The queue knows the hash of a message's tag; its extension file, where there is one, knows more: the
tag's hash again, and which subscriptions' expressions are true, as a Bloom filter's bits. Both may
let too much pass, never too little; the record decides, or the client.

Source: broker/filter/ExpressionMessageFilter.java, store/ConsumeQueueExt.java (isExtAddr).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Protocol

EXT_ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tags code field up to this is the address of a unit in the queue's extension."""

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_INT_VALUES = 1 << 32


class ExtFields(Protocol):
    """What the extension of a queue knows of one message."""

    @property
    def tags_code(self) -> int: ...

    @property
    def store_timestamp(self) -> int:
        """ms."""

    @property
    def bitmap(self) -> bytes | None:
        """Bit b is bit b % 8 of byte b // 8, counted from the least significant."""


class Extended(Protocol):
    """A queue that may have an extension."""

    def ext(self, address: int) -> ExtFields | None:
        """None if there is no such unit."""


@dataclass(frozen=True, slots=True)
class BloomBits:
    """The bits that are set for a message if a subscription's expression is true for it."""

    bit_count: int
    positions: tuple[int, ...]
    since_ms: int = 0
    """Messages stored up to then know nothing of this subscription."""

    def may_match(self, unit: ExtFields | None) -> bool:
        """False only if the message is known not to match."""
        if unit is None or unit.store_timestamp <= self.since_ms:
            return True
        bits = unit.bitmap
        if bits is None or len(bits) * 8 != self.bit_count:
            return True
        return all(bits[position >> 3] >> (position & 7) & 1 for position in self.positions)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """What a reader wants; a part that is None lets everything pass."""

    tag_codes: Set[int] | None = None
    """Hashes of the tags wanted, signed 32-bit."""
    bits: BloomBits | None = None
    matches: Callable[[Mapping[str, str]], bool | None] | None = None
    """Asked with the properties of the record itself; None, or an exception, is a no."""

    def wants_unit(self, code: int, queue: Extended) -> bool:
        """Whether the unit with this tags code may be of a message that is wanted.

        An address that leads nowhere counts as wanted: the client looks again.
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
    """A due time's low bits, as a signed number: all that is compared of it."""
    return code if _INT_MIN <= code <= _INT_MAX else (code - _INT_MIN) % _INT_VALUES + _INT_MIN
