"""Values of an expression, compared as Java compares them: str, int, float, bool, or None.

An int stands for an Integer where it fits 32 bits, else for a Long: a string beside it must be a
number of that size.

Source: filter/expression/ComparisonExpression.java (__compare).
"""

from struct import Struct
from typing import Final, TypeAlias

from protocol.java_numbers import NumberFormatError, parse_double, parse_int, parse_long
from protocol.sql92.errors import CAST, EvaluationError, no_number

Value: TypeAlias = str | int | float | bool | None

LONG_MAX: Final = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_DOUBLE_BITS = Struct(">d")
_SIGNED_LONG = Struct(">q")


def to_double(text: str) -> float:
    """Return Double.valueOf. Raises EvaluationError."""
    try:
        return parse_double(text)
    except NumberFormatError as error:
        raise no_number(error.text) from None


def to_integer(text: str, beside: int) -> int:
    """Return Integer.valueOf or Long.valueOf, by the other operand. Raises EvaluationError."""
    try:
        return (parse_int if -_INT_MAX <= beside <= _INT_MAX else parse_long)(text)
    except NumberFormatError as error:
        raise no_number(error.text) from None


def compare(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Return a number below, at or above 0; incomparable values are below.

    Raises EvaluationError.
    """
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
    """Compare for `<` and the like: two strings are compared as doubles. Raises EvaluationError."""
    if isinstance(left, str) and isinstance(right, str):
        return _order_doubles(to_double(left), to_double(right))
    return compare(left, right)


def _order(left: int | bytes, right: int | bytes) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]


def _order_doubles(left: float, right: float) -> int:
    """Return Double.compare: -0.0 is below 0.0, NaN above everything and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _order(_bits(left), _bits(right))


def _bits(value: float) -> int:
    """Return the bits as Double.doubleToLongBits."""
    canonical = float("nan") if value != value else value
    (bits,) = _SIGNED_LONG.unpack(_DOUBLE_BITS.pack(canonical))
    return int(bits)


def java_double(value: float) -> str:
    """Return Double.toString, for values of literals."""
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
