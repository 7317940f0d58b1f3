"""Values of an expression, compared as Java compares them: str, int, float, bool, or None.

An int stands for an Integer where it fits 32 bits, else for a Long: a string beside it must be a
number of that size.

Source: filter/expression/ComparisonExpression.java (__compare).
"""

from re import ASCII, compile
from struct import Struct
from typing import Final, TypeAlias

from protocol.sql92.errors import CAST, EvaluationError, no_number

Value: TypeAlias = str | int | float | bool | None

LONG_MAX: Final = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_SHORT_DIGITS = 10
"""Any number of fewer digits is an Integer."""
_DOUBLE_BITS = Struct(">d")
_SIGNED_LONG = Struct(">q")
_DECIMAL = compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[fFdD]?$)", ASCII)
_HEXADECIMAL = compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+(?=[fFdD]?$)", ASCII
)
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf")}
_TRIMMED = "".join(map(chr, range(33)))
"""What Java's `trim` takes away."""


def to_double(text: str) -> float:
    """Double.valueOf. Raises EvaluationError."""
    trimmed = text.strip(_TRIMMED)
    if match := _DECIMAL.match(trimmed):
        return float(match[0])
    unsigned = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
    if unsigned in _SPECIAL:
        return -_SPECIAL[unsigned] if trimmed.startswith("-") else _SPECIAL[unsigned]
    if match := _HEXADECIMAL.match(trimmed):
        try:
            return float.fromhex(match[0])
        except OverflowError:
            return float("-inf") if trimmed.startswith("-") else float("inf")
    raise no_number(trimmed)


def to_integer(text: str, beside: int) -> int:
    """Integer.valueOf or Long.valueOf, by the number that it is compared with.

    Raises EvaluationError.
    """
    if len(text) < _SHORT_DIGITS and text.isdecimal():
        return int(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > 4000:  # what `int` takes, and no blanks
        raise no_number(text)
    value = int(text)
    limit = _INT_MAX if -_INT_MAX <= beside <= _INT_MAX else LONG_MAX
    if not -limit - 1 <= value <= limit:
        raise no_number(text)
    return value


def compare(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Below, at or above 0; what cannot be compared is below. Raises EvaluationError."""
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError(CAST)
        return _order(left, right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return _order(left.lower() == "true", right) if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return _order(left.encode("utf-16-be"), right.encode("utf-16-be"))
        if isinstance(right, int):
            return _order(to_integer(left, right), right)
        return _order_doubles(to_double(left), right)
    if isinstance(left, int) and isinstance(right, int):
        return _order(left, right)
    if isinstance(right, str):
        if isinstance(left, int):
            return _order(left, to_integer(right, left))
        return _order_doubles(left, to_double(right))
    return _order_doubles(float(left), float(right))


def compare_ordered(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """The same for < and its kin: two strings are compared as doubles. Raises EvaluationError."""
    if isinstance(left, str) and isinstance(right, str):
        return _order_doubles(to_double(left), to_double(right))
    return compare(left, right)


def _order(left: int | bytes, right: int | bytes) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]


def _order_doubles(left: float, right: float) -> int:
    """Double.compare: -0.0 is below 0.0, NaN above everything and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _order(_bits(left), _bits(right))


def _bits(value: float) -> int:
    """doubleToLongBits."""
    canonical = float("nan") if value != value else value
    (bits,) = _SIGNED_LONG.unpack(_DOUBLE_BITS.pack(canonical))
    return int(bits)


def java_double(value: float) -> str:
    """Double.toString, as far as literals go."""
    if 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        digits, _, exponent = f"{value:.17e}".partition("e")
        digits = digits.rstrip("0")
        if digits.endswith("."):
            digits += "0"
    if "." not in digits:
        digits += ".0"
    return f"{digits}E{int(exponent)}"
