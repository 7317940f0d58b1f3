"""A fast parser of message properties that compares names and cuts out values.

One producer's messages carry the same names in the same order (a Java client's hash map puts them
so).  The sequence of names is learnt from one message as a regular expression that cuts out the
values a broker wants; the next message is matched against it before anything else.  Texts of any
other form are parsed.

Measured, four properties: 1.0 µs a message, 2.2 µs parsed.
"""

from collections.abc import Mapping
from re import Pattern, escape
from re import compile as compile_pattern

find_pairs = compile_pattern(rb"(?<![^\x02])([^\x01\x02]+)\x01([^\x02]+)").findall
"""Pattern of names and values of a text, without incomplete pairs."""


def pairs_of(properties: bytes) -> dict[bytes, bytes]:
    """Return values by name, as `find_pairs` has them: 1.1 µs for eight pairs instead of 1.8."""
    pairs: dict[bytes, bytes] = {}
    try:
        for pair in properties.split(b"\x02"):
            name, value = pair.split(b"\x01")
            if not name or not value:
                break
            pairs[name] = value
        else:
            return pairs
    except ValueError:
        pass
    return dict(find_pairs(properties))  # the text is odd


Cut = tuple[bytes, bytes, bytes, bytes, bytes]
"""Text before WAIT, text behind it (with its separator), UNIQ_KEY, KEYS, TAGS; each may be empty.
"""

_VALUE = rb"[^\x01\x02]+"
_WAIT, _WAIT_VALUE = b"WAIT", b"true"
_WANTED = (b"UNIQ_KEY", b"KEYS", b"TAGS")
_NAMES_MAX = 64
_SHAPES_MAX = 256


class PropertyShapes:
    """Cutter of property texts by the sequences of names it has seen."""

    __slots__ = ("_known", "_match", "_order")

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[Pattern[bytes], tuple[int, ...]]] = {}
        nothing = compile_pattern(rb"(?!)()()()()()")
        self._match = nothing.fullmatch
        self._order: tuple[int, ...] = (1, 2, 3, 4, 5)

    def cut(self, properties: bytes) -> Cut | None:
        """Return the parts of a text with the names last seen.

        None means to parse the text and to `learn` its names.
        """
        found = self._match(properties)
        return None if found is None else found.group(*self._order)  # type: ignore[return-value]

    def learn(self, properties: bytes, pairs: Mapping[bytes, bytes]) -> None:
        """Expect the next text to have the same names in the same order."""
        names = tuple(pairs)
        if pairs.get(_WAIT, _WAIT_VALUE) != _WAIT_VALUE:
            return
        known = self._known.get(names)
        if known is None:
            pairs_in_text = properties.removesuffix(b"\x02").count(b"\x02") + 1
            canonical = len(names) == pairs_in_text <= _NAMES_MAX
            if not canonical or names == (_WAIT,) or not names:
                return
            if len(self._known) >= _SHAPES_MAX:
                self._known.clear()
            known = self._known[names] = _compile(names)
        self._match, self._order = known[0].fullmatch, known[1]


def _compile(names: tuple[bytes, ...]) -> tuple[Pattern[bytes], tuple[int, ...]]:
    """Return the expression of a sequence of names, and the places of the five parts of a Cut."""
    split = names.index(_WAIT) if _WAIT in names else len(names)
    before, behind = names[:split], names[split + 1 :]
    groups: list[bytes] = [b"before"]
    text = b"(" + _pairs(before, groups) + b")"
    if split < len(names):
        text += (rb"\x02" if before else b"") + _WAIT + rb"\x01" + _WAIT_VALUE
    if not before and behind:
        text += rb"\x02"  # then the text behind it starts without a separator
    groups.append(b"behind")
    text += b"(" + (rb"\x02" if before and behind else b"") + _pairs(behind, groups) + b")"
    text += rb"\x02?"
    for name in _WANTED:
        if name not in groups:
            groups.append(name)
            text += b"()"
    order = tuple(groups.index(name) + 1 for name in (b"before", b"behind", *_WANTED))
    return compile_pattern(text), order


def _pairs(names: tuple[bytes, ...], groups: list[bytes]) -> bytes:
    parts = []
    for name in names:
        value = _VALUE
        if name in _WANTED:
            groups.append(name)
            value = b"(" + _VALUE + b")"
        parts.append(escape(name) + rb"\x01" + value)
    return rb"\x02".join(parts)
