"""The parts of an expression: closures over properties, with their operations.

Values are str, int, float, bool, or None, compared as Java compares them. An int stands for an
Integer where it fits 32 bits, else for a Long: a string beside it must be a number of that size.

Source: filter/expression (ComparisonExpression, LogicExpression, UnaryExpression, …).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import ge, gt, le, lt
from struct import Struct
from typing import Final, TypeAlias

from protocol.java_numbers import NumberFormatError, parse_double, parse_int, parse_long
from protocol.sql92.errors import (
    CAST,
    NUMBER,
    PARSE,
    RUNTIME,
    TOO_DEEP,
    EvaluationError,
    SqlError,
    no_number,
)

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


Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]

DEPTH_MAX: Final = 300
"""Maximum nesting; Python's own stack allows three times that."""
_DOUBLE_MAX = 1.7976931348623157e308
_DOUBLE_MIN = 5e-324
_HOLDS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(slots=True)
class Node:
    """One part of an expression."""

    text: Callable[[], str]
    """Text of the part in error messages."""
    evaluate: Evaluate
    is_boolean: bool = False
    is_constant: bool = False
    constant: Value = None
    name: str = ""
    """Name of a property; empty for other parts."""
    depth: int = 1
    symbol: str = ""
    """`||` or `&&` of a chain."""
    chain: list["Node"] = field(default_factory=list)


def _made_of(*parts: Node) -> int:
    """Return the depth of a part made of these. Raises SqlError."""
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise SqlError(TOO_DEEP)
    return depth


# -- leaves -------------------------------------------------------------------------------------


def _constant(value: Value, text: str, *, is_boolean: bool = False) -> Node:
    return Node(
        lambda: text, lambda _: value, is_boolean=is_boolean, is_constant=True, constant=value
    )


TRUE: Final = _constant(True, "TRUE", is_boolean=True)
FALSE: Final = _constant(False, "FALSE", is_boolean=True)
NULL: Final = _constant(None, "NULL", is_boolean=True)


def string(value: str) -> Node:
    doubled = value.replace("'", "''")
    return _constant(value, f"'{doubled}'")


def decimal(text: str) -> Node:
    """Return a whole number of up to 63 bits. Raises SqlError."""
    digits = text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or (value := int(digits)) > LONG_MAX:
        raise SqlError(NUMBER, f'For input string: "{digits}"')
    return _constant(value, digits)


def double(text: str) -> Node:
    """Return a number with a point or an exponent; above zero. Raises SqlError."""
    value = float(text)
    if value > _DOUBLE_MAX:
        raise SqlError(RUNTIME, f"{text} is greater than {java_double(_DOUBLE_MAX)}")
    if value < _DOUBLE_MIN:
        raise SqlError(RUNTIME, f"{text} is less than 4.9E-324")
    return _constant(value, java_double(value))


def property_named(name: str) -> Node:
    """Return a property of the message; its value is None where missing."""
    return Node(lambda: name, lambda properties: properties.get(name), name=name)


# -- logic: True, False and unknown ---------------------------------------------------------------


def as_boolean(node: Node) -> Node:
    """Return a part that gives True, False or unknown; a bare property gives False.

    Raises SqlError.
    """
    if node.is_boolean:
        return node
    if not node.name:
        raise SqlError(PARSE, f"Expression will not result in a boolean value: {node.text()}")
    name = node.name
    return Node(
        node.text, lambda properties: None if name not in properties else False, is_boolean=True
    )


def either(left: Node, right: Node) -> Node:
    """Return OR: true if one part is true, else unknown if one is unknown."""
    return _chained("||", left, right, decides=True)


def both(left: Node, right: Node) -> Node:
    """Return AND: false if one part is false, else unknown if one is unknown."""
    return _chained("&&", left, right, decides=False)


def _chained(symbol: str, left: Node, right: Node, *, decides: bool) -> Node:
    """Return a chain as one flat part, which may be long."""
    left, right = as_boolean(left), as_boolean(right)
    if left.symbol == symbol:
        left.chain.append(right)
        left.depth = max(left.depth, _made_of(right))
        return left
    chain = [left, right]

    def evaluate(properties: Properties) -> Value:
        result: Value = not decides
        for term in chain:
            value = term.evaluate(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    def text() -> str:
        texts = [term.text() for term in chain]
        return reduce(lambda before, after: f"({before} {symbol} {after})", texts)

    depth = _made_of(left, right)
    return Node(text, evaluate, is_boolean=True, depth=depth, symbol=symbol, chain=chain)


def negation(node: Node) -> Node:
    """Return NOT: unknown stays unknown."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    depth = _made_of(node)
    return Node(lambda: f"(NOT {node.text()})", evaluate, is_boolean=True, depth=depth)


# -- comparisons ----------------------------------------------------------------------------------


def equal(left: Node, right: Node) -> Node:
    """Return `=`. Raises SqlError for NULL, and for TRUE or FALSE before another literal."""
    for each in (left, right):
        if each.is_constant and each.constant is None:
            raise SqlError(RUNTIME, f"'{each.text()}' cannot be compared.")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise SqlError(RUNTIME, f"'{left.text()}' cannot be compared with '{right.text()}'")
    return _equal(left, right)


def is_null(left: Node) -> Node:
    """Return IS NULL, which is never unknown."""
    return _equal(left, NULL)


def _equal(left: Node, right: Node) -> Node:
    depth = _made_of(left, right)
    evaluate = _equal_property(left, right) or _equal_values(left, right)
    return Node(
        lambda: f"({left.text()} == {right.text()})", evaluate, is_boolean=True, depth=depth
    )


def _equal_property(left: Node, right: Node) -> Evaluate | None:
    """Return a property compared with a string, the usual case; None for others."""
    name, wanted = left.name, right.constant
    if not name or not isinstance(wanted, str):
        return None

    def evaluate(properties: Properties) -> Value:
        text = properties.get(name)
        return None if text is None else text == wanted

    return evaluate


def _equal_values(left: Node, right: Node) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        left_value, right_value = left.evaluate(properties), right.evaluate(properties)
        if left_value is None or right_value is None:
            if left_value is None:
                return True if right_value is None else None
            return False
        return compare(left_value, right_value) == 0

    return evaluate


def ordered(left: Node, symbol: str, right: Node) -> Node:
    """Return `<`, `<=`, `>` or `>=`.

    Raises SqlError for literals other than numbers, and for booleans.
    """
    for each in (left, right):
        is_number = isinstance(each.constant, int | float) and not each.is_boolean
        if each.is_boolean or (each.is_constant and not is_number):
            raise SqlError(RUNTIME, f"Value '{each.text()}' cannot be compared.")
    depth = _made_of(left, right)
    evaluate = _ordered_property(left, symbol, right) or _ordered(left, symbol, right)
    return Node(
        lambda: f"({left.text()} {symbol} {right.text()})", evaluate, is_boolean=True, depth=depth
    )


def _ordered_property(left: Node, symbol: str, right: Node) -> Evaluate | None:
    """Return a property compared with a whole number: 1.3 → 0.5 µs. None for others."""
    name, number, holds = left.name, right.constant, _HOLDS[symbol]
    if not name or not isinstance(number, int):
        return None

    def evaluate(properties: Properties) -> Value:
        text = properties.get(name)
        return None if text is None else holds(to_integer(text, number), number)

    return evaluate


def _ordered(left: Node, symbol: str, right: Node) -> Evaluate:
    holds = _HOLDS[symbol]

    def evaluate(properties: Properties) -> Value:
        left_value = left.evaluate(properties)
        if left_value is None:
            return None
        right_value = right.evaluate(properties)
        if right_value is None:
            return None
        return holds(compare_ordered(left_value, right_value), 0)

    return evaluate


def between(value: Node, low: Node, high: Node) -> Node:
    """Return BETWEEN, both ends included. Raises SqlError for literals in the wrong order."""
    if low.is_constant and high.is_constant:
        if low.constant is None or high.constant is None:
            raise SqlError(RUNTIME, "Illegal values of between, values can not be null!")
        try:
            order = compare(high.constant, low.constant)
        except EvaluationError as error:
            raise SqlError(str(error)) from None
        if order < 0:
            raise SqlError(
                RUNTIME,
                f"Illegal values of between, left value({_shown(low)}) must less than or equal to "
                f"right value({_shown(high)})",
            )
    return both(ordered(value, ">=", low), ordered(value, "<=", high))


def _shown(node: Node) -> str:
    """Return a literal's value as Java shows it."""
    if isinstance(node.constant, bool):
        return "true" if node.constant else "false"
    return node.constant if isinstance(node.constant, str) else node.text()


def in_list(left: Node, values: Sequence[str], *, wanted: bool) -> Node:
    """Return IN or NOT IN a list of strings. Raises SqlError unless `left` is a property."""
    if not left.name:
        raise SqlError(RUNTIME, f"Expected a property for In expression, got: {left.text()}")
    name, members = left.name, frozenset(values)
    symbol = "IN" if wanted else "NOT IN"

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in members) is wanted

    return Node(lambda: f"{name} {symbol} ( {', '.join(values)} )", evaluate, is_boolean=True)


def minus(right: Node) -> Node:
    """Return the negative of a number; of a property it is unknown."""

    def evaluate(properties: Properties) -> Value:
        value = right.evaluate(properties)
        return None if value is None or isinstance(value, str | bool) else -value

    return Node(lambda: f"(- {right.text()})", evaluate, depth=_made_of(right))
