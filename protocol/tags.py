"""Tag expressions, and the hash of a tag that a consume queue stores.

A unit of a consume queue holds Java's String.hashCode of the tag, sign-extended to 64 bits; the
broker compares hashes only (their low 32 bits), so `AaAa` and `BBBB` are equal there, and the
client compares again.

Source: java.lang.String.hashCode, common/filter/FilterAPI.java, store/DefaultMessageFilter.java.
"""

from functools import lru_cache
from typing import NamedTuple

from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError

ALL_TAGS = "*"
_SEPARATOR = "||"
_BLANKS = "".join(map(chr, range(33)))  # what Java's trim() takes off
_CACHED_TAGS = 4096
CACHED_TAG_CHARS = 256
"""Longest tag whose code is kept: a TAGS value may have 32 KiB, and producers invent many."""
_CACHED_EXPRESSIONS = 1024
_CACHED_EXPRESSION_CHARS = 512
"""Longest expression that is kept parsed; each takes up to 20 KiB."""
_32_BITS = 0xFFFFFFFF
TAG_EXPRESSION_CHARS_MAX = 64 << 10
"""Maximum expression, thousands of tags, since a pull hashes them on the loop."""


def java_hash_code(text: str) -> int:
    """Return String.hashCode: over UTF-16 units, 32 bits, signed."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = value * 31 + unit & _32_BITS
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(data[::2], data[1::2], strict=True):
            value = value * 31 + (high << 8 | low) & _32_BITS
    return _signed_32(value)


def tags_code(tags: str | None) -> int:
    """Return the tags code of a TAGS value in a consume queue; 0 without one."""
    if not tags:
        return 0
    return java_hash_code(tags) if len(tags) > CACHED_TAG_CHARS else _code_of(tags)


@lru_cache(maxsize=_CACHED_TAGS)
def _code_of(tags: str) -> int:
    return java_hash_code(tags)


def tags_too_long(expression: str) -> LimitReached:
    """Return the refusal of an expression of more than TAG_EXPRESSION_CHARS_MAX characters."""
    return LimitReached(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"the tag expression has {len(expression)} characters:"
        f" {TAG_EXPRESSION_CHARS_MAX} are allowed",
        "a tag expression is too long",
    )


class TagFilter(NamedTuple):
    """Tags that a consumer subscribes to; `codes` is None for all."""

    tags: frozenset[str]
    codes: frozenset[int] | None

    @classmethod
    def parse(cls, expression: str | None) -> "TagFilter":
        """Parse `a || b`, `*`, or an empty text for all.

        Raises RemoteError(SUBSCRIPTION_PARSE_FAILED) for separators without anything between them,
        and for an expression that is too long.
        """
        if not expression or expression == ALL_TAGS:
            return cls(frozenset(), None)
        if len(expression) > TAG_EXPRESSION_CHARS_MAX:
            raise tags_too_long(expression)
        if len(expression) > _CACHED_EXPRESSION_CHARS:
            return cls._parse(expression)
        return _parsed(expression)

    @classmethod
    def _parse(cls, expression: str) -> "TagFilter":
        parts = expression.split(_SEPARATOR)
        if not any(parts):
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            )
        tags = frozenset(filter(None, (part.strip(_BLANKS) for part in parts)))
        return cls(tags, frozenset(map(java_hash_code, tags)))

    def matches(self, code: int) -> bool:
        """Return whether a unit with this tags code may match."""
        return self.codes is None or _signed_32(code & _32_BITS) in self.codes


@lru_cache(maxsize=_CACHED_EXPRESSIONS)
def _parsed(expression: str) -> TagFilter:
    """Return the same object for equal expressions, which come with each pull of some clients."""
    return TagFilter._parse(expression)


def _signed_32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
