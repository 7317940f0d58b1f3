"""Reader of the fastjson dialect: one pass over the text, then the references.

fastjson.py lists what it accepts beyond JSON, and imports it for such a text alone. A limit bounds
the work, in nodes. A scalar is one node, a container NODES_A_CONTAINER, since it takes as long.
Each value that a reference copies counts again, and a value or key of the dialect is NODES_A_STEP.
The result is a tree without shared parts, so later readers and writers need time in proportion to
the limit.
"""

from math import isinf
from re import DOTALL, Match, Pattern
from re import compile as compile_pattern
from typing import NoReturn

from protocol.fastjson_limits import (
    COPIED_CHARS_MAX,
    DEPTH_MAX,
    NODES_A_CONTAINER,
    NODES_A_STEP,
    FastjsonError,
    nodes_of,
)

_NODES_AN_ESCAPE = 2
_CONTROLS_A_NODE = 2
_LONG_END = 1 << 63

_REFERENCE = "$ref"
_AROUND = ("@", "..")
_BLANK = compile_pattern(r"(?:[ \r\n\t\f\b]+|/\*.*?\*/|//[^\n]*\n?)*", DOTALL)
_SEPARATORS = compile_pattern(r"(?:[, \r\n\t\f\b]+|/\*.*?\*/|//[^\n]*\n?)*", DOTALL)
_PASSED_OVER = frozenset(", \r\n\t\f\b/")
"""First characters of blanks, comments and spare commas."""
_STRING = {
    '"': compile_pattern(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', DOTALL),
    "'": compile_pattern(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", DOTALL),
}
_ESCAPE = compile_pattern(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", DOTALL)
_NUMBER = compile_pattern(r"([+-]?[0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?([LSBFD])?")
_DIGITS = frozenset("0123456789")
_WORD = compile_pattern(r"[A-Za-z_$][\w$]*")
_SURROGATES = compile_pattern("[\ud800-\udbff][\udc00-\udfff]")
_LONE_SURROGATE = compile_pattern("[\ud800-\udfff]")
"""Lone surrogate; Java writes it as a question mark."""
_PATH_STEP = compile_pattern(r"\.((?:[^.\[\\]++|\\.)++)|\[(-?[0-9]{1,19})\]")
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


def read(text: str, nodes_max: int | None = None, *, is_plain: bool = False) -> object:
    """Return the value of `text`; None if it is empty. Raises FastjsonError.

    Without `nodes_max` only copies by references have a limit: SHORT_NODES_MAX.
    """
    nodes_max = nodes_of(len(text), nodes_max)
    reader = _Reader(text, nodes_max, is_plain=is_plain)
    value = reader.whole()
    return resolved(value, nodes_max) if reader.references else value


def resolved(root: object, nodes_max: int) -> object:
    """Return a copy of `root` with references replaced by their targets.

    A reference to nothing becomes None; a reference to its own container stays as it is. Raises
    FastjsonError for a copy of more than `nodes_max` nodes, COPIED_CHARS_MAX or DEPTH_MAX.
    """
    return _Resolver(root, nodes_max).copy(root, 0)


class _Reader:
    def __init__(self, text: str, nodes_max: int, *, is_plain: bool) -> None:
        self._text = text
        self._is_plain = is_plain
        self._at = 0
        self._nodes_left = nodes_max
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

    def _spend(self, nodes: int) -> None:
        self._nodes_left -= nodes
        if self._nodes_left < 0:
            self._fail("too many values")

    def _peek(self, passed_over: Pattern[str] = _BLANK) -> str:
        """Return the next significant character, or "" at the end."""
        char = self._text[self._at : self._at + 1]
        if char not in _PASSED_OVER:  # most are not: 0.5 → 0.2 µs
            return char
        match = passed_over.match(self._text, self._at)
        if match:
            self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _value(self) -> object:
        self._spend(NODES_A_STEP)
        char = self._peek()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char and char in "\"'":
            return self._string(char)
        if char in _DIGITS or char in ("-", "+"):
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
            self._spend(NODES_A_STEP)
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
            if self._is_plain:
                self._fail("a reference")
            self.references = True
        return found

    def _key(self, char: str) -> object:
        if char and char in "\"'":
            return self._string(char)
        if char == "{":
            return self._object_key()
        if char in _DIGITS or char == "-":
            key = self._number()
            # Python hashes whole numbers modulo 2^61 - 1: long ones could all be made to collide.
            return key if isinstance(key, int) and _is_long(key) else str(key)
        match = _WORD.match(self._text, self._at)
        if not match:
            self._fail("a key is missing")
        self._at = match.end()
        return match.group()

    def _object_key(self) -> tuple[tuple[str, object], ...]:
        """Read an object as a key, such as a MessageQueue: names with texts and numbers."""
        if self._is_plain:
            self._fail("an object as a key")
        found = self._object()
        for name, item in found.items():
            if not isinstance(name, str) or isinstance(item, dict | list):
                self._fail("an object within a key")
            if isinstance(item, int) and not _is_long(item):
                self._fail("a key with a number that is no long")
        return tuple(sorted(found.items()))  # type: ignore[arg-type]

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
            value = float(f"{whole}{fraction or ''}{exponent or ''}")
            if isinf(value):
                self._fail("a number is too large")
            return value
        return int(whole)

    def _string(self, mark: str) -> str:
        match = _STRING[mark].match(self._text, self._at)
        if not match:
            self._fail("a string is not closed")
        found = match.group(1)
        if "\\" in found:
            self._spend(found.count("\\") * _NODES_AN_ESCAPE)
            found = _ESCAPE.sub(self._escaped, found)
            found = _LONE_SURROGATE.sub("?", _SURROGATES.sub(_joined, found))
        if not found.isprintable():  # a writer escapes unprintable characters
            self._spend(len(found) // _CONTROLS_A_NODE)
        self._at = match.end()
        return found

    def _escaped(self, match: Match[str]) -> str:
        code = match.group(1) or match.group(2)
        if code:
            return chr(int(code, 16))
        char = _SIMPLE_ESCAPES.get(match.group(3))
        if char is None:
            self._fail("an escape is broken")
        return char


def _is_long(number: int) -> bool:
    return -_LONG_END <= number < _LONG_END


def _joined(match: Match[str]) -> str:
    return match.group().encode("utf-16-be", "surrogatepass").decode("utf-16-be")


class _Resolver:
    """Copier of a tree that replaces references by their targets."""

    def __init__(self, root: object, nodes_max: int) -> None:
        self._root = root
        self._nodes_left = nodes_max
        self._chars_left = COPIED_CHARS_MAX
        self._targets: dict[str, object] = {}
        self._open: set[int] = set()
        """Identities of containers being copied; a reference to one would be endless."""
        self._references = 0
        """Number of references to the place being copied."""

    def copy(self, value: object, depth: int) -> object:
        self._nodes_left -= NODES_A_CONTAINER
        if self._nodes_left < 0:
            raise FastjsonError("too many values")
        if (path := _path_of(value)) is not None:
            return self._copy_target(path, value, depth)
        found: object = value
        if isinstance(value, dict | list):
            if depth >= DEPTH_MAX:
                raise FastjsonError(f"more than {DEPTH_MAX} levels")
            is_outermost = id(value) not in self._open
            self._open.add(id(value))
            if isinstance(value, list):
                found = [self.copy(item, depth + 1) for item in value]
            else:
                found = {
                    self._counted(key): self.copy(item, depth + 1) for key, item in value.items()
                }
            if is_outermost:  # a reference to a container around it copies it within itself
                self._open.remove(id(value))
        return self._counted(found)

    def _counted(self, value: object) -> object:
        """Count the text that a reference copies."""
        if self._references and isinstance(value, str):
            self._chars_left -= len(value)
            if self._chars_left < 0:
                raise FastjsonError("too much text behind references")
        return value

    def _copy_target(self, path: str, reference: object, depth: int) -> object:
        if path not in self._targets:
            self._targets[path] = _found(self._root, path)
        target = self._targets[path]
        if path in _AROUND or id(target) in self._open or target is reference:
            return reference
        if _path_of(target) is not None:
            return None  # no writer refers to a reference
        self._references += 1
        found = self.copy(target, depth)
        self._references -= 1
        return found


def _path_of(value: object) -> str | None:
    """Return the path of a reference; None if it is no reference."""
    path = value.get(_REFERENCE) if isinstance(value, dict) and len(value) == 1 else None
    return path if isinstance(path, str) else None


def _found(root: object, path: str) -> object:
    """Return the target of a path, None if it is missing."""
    if not path.startswith("$"):
        return None
    target = root
    at = 1
    while at < len(path) and isinstance(target, dict | list):
        match = _PATH_STEP.match(path, at)
        if not match:
            return None
        at = match.end()
        target = _step(target, match.group(1), match.group(2))
    return target if at >= len(path) else None


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
