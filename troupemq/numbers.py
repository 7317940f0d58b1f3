"""Numbers that clients and servers report of themselves; None for anything that is no number."""

from math import isfinite
from re import ASCII
from re import compile as compile_pattern

LONG_END = 1 << 63
_WHOLE = compile_pattern(r"-?[0-9]{1,19}", ASCII)
_TEXT_CHARS_MAX = 64


def whole(value: object) -> int | None:
    """Return a Java long, which may be a text; None for anything else."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -LONG_END <= value < LONG_END else None


def finite(text: str | None) -> float | None:
    """Return a number that is finite and not beyond a long; None for any other text."""
    if text is None or len(text) > _TEXT_CHARS_MAX:
        return None
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) and abs(found) < LONG_END else None


def first_finite(text: str | None) -> float | None:
    """Return the first of some numbers between blanks; None where it is none."""
    words = (text or "").split(maxsplit=1)
    return finite(words[0]) if words else None


def odd_number(value: object) -> str:
    """Return words for a number that neither a page nor JSON can show; empty for any other."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, int) and not -LONG_END <= value < LONG_END:
        return f"a number of {value.bit_length()} bits"
    return ""
