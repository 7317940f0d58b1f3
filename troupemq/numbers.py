"""Parsers for reported numbers; None for an invalid one."""

from math import isfinite
from re import ASCII
from re import compile as compile_pattern

LONG_END = 1 << 63
_WHOLE = compile_pattern(r"-?[0-9]{1,19}", ASCII)
_TEXT_CHARS_MAX = 64


def whole(value: object) -> int | None:
    """Return a Java long, given as a number or text; None for anything else."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -LONG_END <= value < LONG_END else None


def finite(text: str | None) -> float | None:
    """Return a finite number within a long's range; None for any other text."""
    if text is None or len(text) > _TEXT_CHARS_MAX:
        return None
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) and abs(found) < LONG_END else None


def first_finite(text: str | None) -> float | None:
    """Return the first of several numbers separated by blanks; None if it is invalid."""
    words = (text or "").split(maxsplit=1)
    return finite(words[0]) if words else None


def odd_number(value: object) -> str:
    """Return a text for a number that JSON cannot represent; empty for any other."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, int) and not -LONG_END <= value < LONG_END:
        return f"a number of {value.bit_length()} bits"
    return ""
