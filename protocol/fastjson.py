"""The JSON dialect of the bodies and config files: fastjson 1.2.69, read and written.

Beyond JSON the reader takes bare integer and identifier keys, flat objects as keys, single quotes,
spare commas, comments, number suffixes, NaN, and `{"$ref":"$.path"}` for a value that occurred
before. What fastjson itself refuses is refused here. What the reader returns is a tree without
shared parts, of at most DEPTH_MAX levels, and of as many nodes as its caller allows.

The writer leaves None out of objects, writes integer keys bare and composite keys (a tuple of
pairs) as objects, `/` as it is, everything outside ASCII raw, control characters (also 0x7F-0x9F,
U+2028 and U+2029) as \\uXXXX in capitals, floats as Java's Double.toString does.
"""

from collections.abc import Callable, Iterable
from math import isfinite
from re import Match
from re import compile as compile_pattern
from typing import TypeAlias

from protocol.fastjson_limits import DEPTH_MAX, NODES_A_CONTAINER, FastjsonError, nodes_of
from protocol.standard_json import loads as standard_loads

Key: TypeAlias = "str | int | tuple[tuple[str, object], ...]"

_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPED = {
    code: _SHORT.get(chr(code)) or f"\\u{code:04X}"
    for code in (*b'"\\', *range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}
_SPECIAL = compile_pattern('(["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029])')
_CHARS_AN_ESCAPE = 16
"""Text with more characters for each that is escaped is split at these."""
_REPLACED_A_NODE = 2
_SPECIAL_ASCII = compile_pattern('["\\\\/\x00-\x1f]|[^\x00-\x7e]')
_REFERENCE = b'"$ref"'


def loads(data: bytes | bytearray | memoryview | str, nodes_max: int | None = None) -> object:
    """Return the value of a fastjson text.

    Bare integer keys become int, object keys a tuple of their sorted pairs, references copies of
    their targets. An empty text is None. Raises FastjsonError, also for more than DEPTH_MAX levels
    or `nodes_max` nodes (fastjson_reader.py).
    """
    if isinstance(data, str):
        return _read(data, nodes_max)
    raw = bytes(data)
    try:
        plain = loads_standard(raw, nodes_max)
    except FastjsonError:
        raise
    except ValueError:  # a dialect text, or an invalid one: the reader decides
        return _loads_dialect(raw, nodes_max)
    if _REFERENCE in raw:
        from protocol.fastjson_reader import resolved

        return resolved(plain, nodes_of(len(raw), nodes_max))
    return plain


def loads_standard(raw: bytes, nodes_max: int | None = None) -> object:
    """Return the value of a standard JSON text, within the limits of `loads`.

    References are not resolved. Raises FastjsonError beyond the limits, another ValueError for
    invalid JSON.
    """
    brackets = raw.count(b"{") + raw.count(b"[")  # also those in strings, where objects as keys are
    nodes = max(NODES_A_CONTAINER * brackets, raw.count(b","))
    if nodes_max is not None and nodes > nodes_max:
        raise FastjsonError("too many values")
    value: object = standard_loads(raw)
    if brackets > DEPTH_MAX or (nodes_max is not None and len(raw) > nodes_max):
        _check(value, nodes_max)
    return value


def _read(text: str, nodes_max: int | None) -> object:
    from protocol.fastjson_reader import read  # hardly any peer writes the dialect

    return read(text, nodes_max)


def _loads_dialect(raw: bytes, nodes_max: int | None) -> object:
    try:
        return _read(raw.decode("utf-8"), nodes_max)
    except UnicodeDecodeError:  # the only fault of a long text may be that it is no UTF-8
        text = raw.decode("utf-8", "replace")
        if nodes_max is not None and text.count("\ufffd") // _REPLACED_A_NODE > nodes_max:
            raise FastjsonError("too many values") from None
        return loads(text.encode(), nodes_max)


def _check(value: object, nodes_max: int | None) -> None:
    """Check the limits of levels and nodes. Raises FastjsonError."""
    nodes, depth = 1, 0
    level = [value] if isinstance(value, dict | list) else []
    while level:
        nodes += sum(map(len, level)) + (NODES_A_CONTAINER - 1) * len(level)
        depth += 1
        if depth > DEPTH_MAX:
            raise FastjsonError(f"more than {DEPTH_MAX} levels")
        if nodes_max is not None and nodes > nodes_max:
            raise FastjsonError("too many values")
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]


def loads_object(
    data: bytes | bytearray | memoryview | str | None, nodes_max: int | None = None
) -> dict[Key, object]:
    """Return the object of a body. Raises FastjsonError for anything else."""
    value = loads(data, nodes_max) if data is not None else None
    if not isinstance(value, dict):
        raise FastjsonError("the text does not hold an object")
    return value


def dumps(
    value: object,
    *,
    pretty: bool = False,
    browser_compatible: bool = False,
    sort_keys: bool = False,
) -> bytes:
    """Return `value` as fastjson writes it: dicts, lists, scalars.

    Tuples and sets are Java's arrays and sets, which no pretty form breaks into lines. `pretty` is
    the form of the config files (tabs; a map with bare keys on one line, closed on its own).
    `browser_compatible` escapes `/` and all that is not ASCII and implies quoted keys. Raises
    FastjsonError for more than DEPTH_MAX levels, TypeError for an unsupported value.
    """
    quote_text = _quote_ascii if browser_compatible else quote
    writer = _Writer(quote_text, browser_compatible, pretty, sort_keys)
    writer.write(value)
    return "".join(writer.parts).encode("utf-8", "replace")


def quote(text: str) -> str:
    """Return one string in the writer's escaping, with its quotes."""
    # What has to be escaped besides these two is not printable: 0.3 → 0.1 µs for most texts.
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    # Outside ASCII each character takes 0.05 µs to translate, and 0.003 to split at few escapes.
    few = 0 if text.isascii() else len(text) // _CHARS_AN_ESCAPE
    pieces = _SPECIAL.split(text, few) if few else [text]
    pieces[1::2] = [_ESCAPED[ord(piece)] for piece in pieces[1::2]]
    if len(pieces) > 2 * few:  # the last one may hold many
        pieces[-1] = pieces[-1].translate(_ESCAPED)
    return f'"{"".join(pieces)}"'


def _quote_ascii(text: str) -> str:
    return f'"{_SPECIAL_ASCII.sub(_escape_ascii, text)}"'


def _escape(match: Match[str]) -> str:
    char = match.group()
    return _SHORT.get(char) or f"\\u{ord(char):04X}"


def _escape_ascii(match: Match[str]) -> str:
    char = match.group()
    if char == "/":
        return "\\/"
    if ord(char) > 0xFFFF:
        units = char.encode("utf-16-be").hex().upper()
        return f"\\u{units[:4]}\\u{units[4:]}"
    return _escape(match)


def java_double(value: float) -> str:
    """Return Java's Double.toString; `null` for values without a JSON form."""
    if not isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:  # Python stays with plain digits for longer than Java does
        sign, number = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
        whole, _, fraction = number.partition(".")
        significant = (whole + fraction).lstrip("0")
        power = len(whole) - 1 if whole != "0" else len(significant) - len(fraction) - 1
        significant = significant.rstrip("0") or "0"
        digits, exponent = f"{sign}{significant[0]}.{significant[1:] or '0'}", str(power)
    elif "." not in digits:
        digits += ".0"
    return f"{digits}E{int(exponent)}"


def _java_order(item: tuple[object, object]) -> bytes:
    return str(item[0]).encode("utf-16-be", "surrogatepass")


class _Writer:
    """Collector of the pieces of one text."""

    def __init__(
        self, quote_text: Callable[[str], str], quote_int_keys: bool, pretty: bool, sort: bool
    ) -> None:
        self.parts: list[str] = []
        self._quote = quote_text
        self._quote_int_keys = quote_int_keys
        self._pretty = pretty
        self._sort = sort
        self._depth = 0

    def write(self, value: object) -> None:
        if isinstance(value, str):
            self.parts.append(self._quote(value))
        elif value is None:
            self.parts.append("null")
        elif isinstance(value, bool):
            self.parts.append("true" if value else "false")
        elif isinstance(value, int):
            self.parts.append(int.__repr__(value))
        elif isinstance(value, float):
            self.parts.append(java_double(value))
        elif isinstance(value, dict):
            self._object(value.items())
        elif isinstance(value, list):
            self._list(value)
        elif isinstance(value, tuple | set | frozenset):
            self._array(value)
        else:
            raise TypeError(f"fastjson does not know {type(value).__name__}")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FastjsonError(f"more than {DEPTH_MAX} levels")

    def _object(self, items: Iterable[tuple[object, object]]) -> None:
        present = [item for item in items if item[1] is not None]
        if self._sort:
            present = self._sorted(present)
        parts = self.parts
        parts.append("{")
        self._enter()
        for index, (key, value) in enumerate(present):
            if index:
                parts.append(",")
            if isinstance(key, str):
                self._new_line()
                parts.append(self._quote(key))
            elif isinstance(key, tuple):
                self._object(key)
            else:
                parts.append(f'"{key}"' if self._quote_int_keys else str(key))
            parts.append(":")
            self.write(value)
        self._depth -= 1
        if present:
            self._new_line()
        parts.append("}")

    def _sorted(self, items: list[tuple[object, object]]) -> list[tuple[object, object]]:
        if all(isinstance(key, int) for key, _ in items):
            return sorted(items, key=lambda item: item[0])  # type: ignore[arg-type,return-value]
        return sorted(items, key=_java_order)

    def _list(self, values: list[object]) -> None:
        self.parts.append("[")
        self._enter()
        for index, value in enumerate(values):
            if index:
                self.parts.append(",")
            self._new_line()
            self.write(value)
        self._depth -= 1
        if values:
            self._new_line()
        self.parts.append("]")

    def _array(self, values: Iterable[object]) -> None:
        self._enter()
        self.parts.append("[")
        for index, value in enumerate(values):
            if index:
                self.parts.append(",")
            self.write(value)
        self._depth -= 1
        self.parts.append("]")

    def _new_line(self) -> None:
        if self._pretty:
            self.parts.append("\n" + "\t" * self._depth)


__all__ = [
    "FastjsonError",
    "Key",
    "dumps",
    "java_double",
    "loads",
    "loads_object",
    "loads_standard",
    "quote",
]
