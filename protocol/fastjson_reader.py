"""The reading half of the fastjson dialect: one pass over the text, then the references.

What it takes beyond JSON is listed in fastjson.py.
"""

from re import DOTALL, Match, Pattern
from re import compile as compile_pattern
from typing import NoReturn

DEPTH_MAX = 200
"""Nested containers; deeper text is an attack, not a body."""

_REFERENCE = "$ref"
_BLANK = compile_pattern(r"(?:[ \r\n\t\f\b]+|/\*.*?\*/|//[^\n]*\n?)*", DOTALL)
_SEPARATORS = compile_pattern(r"(?:[, \r\n\t\f\b]+|/\*.*?\*/|//[^\n]*\n?)*", DOTALL)
_PLAIN = {'"': compile_pattern(r'[^"\\]*'), "'": compile_pattern(r"[^'\\]*")}
_NUMBER = compile_pattern(r"([+-]?\d+)(\.\d*)?([eE][+-]?\d+)?([LSBFD])?")
_WORD = compile_pattern(r"[A-Za-z_$][\w$]*")
_HEX_4 = compile_pattern(r"[0-9a-fA-F]{4}")
_HEX_2 = compile_pattern(r"[0-9a-fA-F]{2}")
_SURROGATES = compile_pattern("[\ud800-\udbff][\udc00-\udfff]")
_LONE_SURROGATE = compile_pattern("[\ud800-\udfff]")
"""No character: what Java makes of it as soon as it becomes bytes is a question mark."""
_PATH_STEP = compile_pattern(r"\.((?:\\.|[^.\[\\])+)|\[(-?\d+)\]")
_SIMPLE_ESCAPES = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_WORDS = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}


class FastjsonError(ValueError):
    """The text is not what fastjson reads."""


def read(text: str) -> object:
    """The value of `text`; None when there is nothing in it. Raises FastjsonError."""
    reader = _Reader(text)
    value = reader.whole()
    if reader.references:
        value = _Resolver(value).resolved(value, ())
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.references = False

    def whole(self) -> object:
        if self._text.startswith("\ufeff"):
            self._at = 1
        if not self._peek():
            return None
        value = self._value()
        if self._peek():
            self._fail("something follows the value")
        return value

    def _fail(self, why: str) -> NoReturn:
        raise FastjsonError(f"syntax error, {why}, pos {self._at}")

    def _peek(self, passed_over: Pattern[str] = _BLANK) -> str:
        """The next character that matters, or "" at the end."""
        match = passed_over.match(self._text, self._at)
        if match:
            self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _value(self) -> object:
        char = self._peek()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char and char in "\"'":
            return self._string(char)
        if char.isdigit() or char in ("-", "+"):
            return self._number()
        match = _WORD.match(self._text, self._at)
        if match and match.group() in _WORDS:
            self._at = match.end()
            return _WORDS[match.group()]
        self._fail("a value is missing")

    def _enter(self) -> None:
        self._at += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} levels")

    def _object(self) -> dict[object, object]:
        self._enter()
        found: dict[object, object] = {}
        while True:
            char = self._peek(_SEPARATORS)
            if char == "}":
                break
            key = self._key(char)
            if self._peek() != ":":
                self._fail("a colon is missing")
            self._at += 1
            found[key] = self._value()
            if self._peek() not in (",", "}"):
                self._fail("a comma is missing")
        self._at += 1
        self._depth -= 1
        if _REFERENCE in found:
            self.references = True
        return found

    def _key(self, char: str) -> object:
        if char and char in "\"'":
            return self._string(char)
        if char in ("{", "["):
            return _hashable(self._value())
        if char.isdigit() or char == "-":
            key = self._number()
            return key if isinstance(key, int) else str(key)
        match = _WORD.match(self._text, self._at)
        if not match:
            self._fail("a key is missing")
        self._at = match.end()
        return match.group()

    def _array(self) -> list[object]:
        self._enter()
        found: list[object] = []
        while True:
            char = self._peek(_SEPARATORS)
            if char == "]":
                break
            else:
                found.append(self._value())
        self._at += 1
        self._depth -= 1
        return found

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if not match:
            self._fail("a number is broken")
        self._at = match.end()
        whole, fraction, exponent, suffix = match.groups()
        digits_max = 400
        if len(whole) > digits_max:
            self._fail("a number is too long")
        if exponent or len(fraction or "") > 1 or suffix in ("F", "D"):
            return float(f"{whole}{fraction or ''}{exponent or ''}")
        return int(whole)

    def _string(self, mark: str) -> str:
        text = self._text
        plain = _PLAIN[mark]
        self._at += 1
        pieces: list[str] = []
        while True:
            match = plain.match(text, self._at)
            assert match is not None
            pieces.append(match.group())
            self._at = match.end()
            if self._at >= len(text):
                self._fail("a string is not closed")
            self._at += 1
            if text[self._at - 1] == mark:
                break
            pieces.append(self._escape())
        if len(pieces) == 1:
            return pieces[0]
        return _LONE_SURROGATE.sub("?", _SURROGATES.sub(_joined, "".join(pieces)))

    def _escape(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if char in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[char]
        pattern = {"u": _HEX_4, "x": _HEX_2}.get(char)
        match = pattern.match(self._text, self._at) if pattern else None
        if not match:
            self._fail("an escape is broken")
        self._at = match.end()
        return chr(int(match.group(), 16))


def _joined(match: Match[str]) -> str:
    return match.group().encode("utf-16-be", "surrogatepass").decode("utf-16-be")


def _hashable(value: object) -> object:
    if isinstance(value, dict):
        return tuple(sorted((str(key), _hashable(item)) for key, item in value.items()))
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value


class _Resolver:
    """Puts the values that references mean in the references' places."""

    def __init__(self, root: object) -> None:
        self._root = root

    def resolved(self, value: object, parents: tuple[object, ...]) -> object:
        """`value`, changed in place; a reference to nothing becomes None."""
        if isinstance(value, dict):
            path = value.get(_REFERENCE)
            if isinstance(path, str) and len(value) == 1:
                return self._target(path, parents)
            for key, item in value.items():
                value[key] = self.resolved(item, (*parents, value))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                value[index] = self.resolved(item, (*parents, value))
        return value

    def _target(self, path: str, parents: tuple[object, ...]) -> object:
        if path == "..":
            return parents[-2] if len(parents) > 1 else None
        if path == "@":
            return parents[-1] if parents else None
        if not path.startswith("$"):
            return None
        target: object = self._root
        at = 1
        while at < len(path):
            match = _PATH_STEP.match(path, at)
            if not match:
                return None
            at = match.end()
            target = _step(target, match.group(1), match.group(2))
        return target


def _step(target: object, name: str | None, index: str | None) -> object:
    if index is not None:
        number = int(index)
        if isinstance(target, dict):
            return target.get(number)
        inside = isinstance(target, list) and 0 <= number < len(target)
        return target[number] if inside and isinstance(target, list) else None
    plain = _UNESCAPE.sub(r"\1", name or "")
    return target.get(plain) if isinstance(target, dict) else None


_UNESCAPE = compile_pattern(r"\\(.)")
