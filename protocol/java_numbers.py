"""Numbers in text from outside, in the grammar of Java as 4.9.7 reads them.

`int` of Python also takes blanks and underscores, and its time grows with the square of the digits;
past 4,300 of them it raises. Here it sees 19 digits at most.

Source: java.lang.Integer.parseInt, Long.parseLong, Double.valueOf (checked with Java 17).
"""

from functools import cache
from re import ASCII, Pattern, compile
from typing import Final

INT_END: Final = 1 << 31
LONG_END: Final = 1 << 63
INT_DIGITS: Final = 10
LONG_DIGITS: Final = 19
"""Digits of the largest int and the largest long."""
CHARS_MAX: Final = 255
"""Maximum length of a text. Java accepts any number of leading zeros."""

_ZEROS: Final = (
    "0\u0660\u06f0\u07c0\u0966\u09e6\u0a66\u0ae6\u0b66\u0be6\u0c66\u0ce6\u0d66\u0e50\u0ed0\u0f20\u1040"
    "\u1090\u17e0\u1810\u1946\u19d0\u1a80\u1a90\u1b50\u1bb0\u1c40\u1c50\ua620\ua8d0\ua900\ua9d0\uaa50"
    "\uabf0\uff10"
)
"""Zeros of all scripts whose digits Java 8 accepts (Unicode 6.2), and two later ones."""
_DIGITS: Final = frozenset(chr(ord(zero) + value) for zero in _ZEROS for value in range(10))
_SPECIAL: Final = {"NaN": float("nan"), "Infinity": float("inf")}
_TRIMMED: Final = "".join(map(chr, range(33)))
"""The characters that Java's `trim` removes."""


class NumberFormatError(ValueError):
    """Invalid number; str() gives the text of Java's exception, cut if long."""

    def __init__(self, text: str) -> None:
        self.text = text[:CHARS_MAX]
        super().__init__(f'java.lang.NumberFormatException: For input string: "{self.text}"')


def parse_int(text: str) -> int:
    """Return the number as Integer.parseInt does. Raises NumberFormatError."""
    if len(text) < INT_DIGITS and text.isdigit() and text.isascii():
        return int(text)  # most numbers are short and plain: 0.6 → 0.2 µs
    return _parse(text, INT_END)


def parse_long(text: str) -> int:
    """Return the number as Long.parseLong does. Raises NumberFormatError."""
    if len(text) < LONG_DIGITS and text.isdigit() and text.isascii():
        return int(text)
    return _parse(text, LONG_END)


def int_in(raw: bytes) -> int:
    """Return the int of a property value in UTF-8. Raises NumberFormatError."""
    return parse_int(raw.decode("utf-8", "replace"))


def long_in(raw: bytes) -> int:
    """Return the long of a text in UTF-8. Raises NumberFormatError."""
    return parse_long(raw.decode("utf-8", "replace"))


def plain_number(text: str, most: int = LONG_END - 1) -> int | None:
    """Return the number of a text of ASCII digits; None for other texts and above `most`."""
    if len(text) > LONG_DIGITS or not (text.isdigit() and text.isascii()):
        return None
    number = int(text)
    return number if number <= most else None


def parse_double(text: str) -> float:
    """Return the number as Double.valueOf does. Raises NumberFormatError."""
    trimmed = text.strip(_TRIMMED)
    if match := _decimal().match(trimmed):
        return float(match[0])
    unsigned = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
    if unsigned in _SPECIAL:
        return -_SPECIAL[unsigned] if trimmed.startswith("-") else _SPECIAL[unsigned]
    if match := _hexadecimal().match(trimmed):
        try:
            return float.fromhex(match[0])
        except OverflowError:
            return float("-inf") if trimmed.startswith("-") else float("inf")
    raise NumberFormatError(trimmed)


@cache
def _decimal() -> Pattern[str]:
    """Return the expression of decimal numbers, which a client does not need."""
    return compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[fFdD]?\Z)", ASCII)


@cache
def _hexadecimal() -> Pattern[str]:
    return compile(
        r"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+(?=[fFdD]?\Z)",
        ASCII,
    )


def _parse(text: str, end: int) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits or len(digits) > CHARS_MAX or not _DIGITS.issuperset(digits):
        raise NumberFormatError(text)
    if len(digits) > LONG_DIGITS:
        digits = digits.lstrip(_ZEROS) or "0"
        if len(digits) > LONG_DIGITS:
            raise NumberFormatError(text)
    number = -int(digits) if text[0] == "-" else int(digits)
    if not -end <= number < end:
        raise NumberFormatError(text)
    return number
