"""Patterns of names, matched in time linear in the length of a name.

A pattern is a regular expression of letters, `.`, classes, groups, `|`, and the repeats `* + ?` of
one character. `re` would try every division of a name among eight `.*`, which takes hours. Here all
ways are followed at once. Each character of the pattern is a bit of a number, and the number is the
set of positions reached so far (Glushkov's automaton). Transitions are cached, so a name mostly
costs one look-up per character.
"""

from re import compile as compile_pattern
from re import error as PatternError
from typing import NamedTuple

PATTERN_CHARS_MAX = 256
REPEATS_MAX = 4
"""Repeats per alternative: enough for any name, and few enough for a small cache."""
_PLAIN = compile_pattern(r"[\w%$.*+?|()\[\]^-]*")
_REPEATS = "*+?"
_STEPS_KEPT = 4096


class _Part(NamedTuple):
    """A part of the pattern: whether it matches the empty text, its first and its last bits."""

    is_empty: bool
    first: int
    last: int


_NOTHING = _Part(True, 0, 0)


class LinearPattern:
    """A compiled pattern. Raises PatternError, with a reason, for unsupported syntax."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._atoms: list[str] = []
        self._follow: list[int] = []
        self._check()
        whole = self._choice()
        self._is_empty, self._last = whole.is_empty, whole.last
        self._start = whole.first
        self._masks: dict[str, int] = {}
        self._steps: dict[tuple[int, str], int] = {}

    def fullmatch(self, name: str) -> bool:
        if not name:
            return self._is_empty
        reached, steps = self._start & self._mask(name[0]), self._steps
        for char in name[1:]:
            key = reached, char
            following = steps.get(key)
            if following is None:
                following = self._step(reached, char)
            reached = following
        return reached & self._last != 0

    def _step(self, reached: int, char: str) -> int:
        following, rest = 0, reached
        while rest:
            bit = rest & -rest
            following |= self._follow[bit.bit_length() - 1]
            rest ^= bit
        following &= self._mask(char)
        if len(self._steps) >= _STEPS_KEPT:
            self._steps.clear()
        self._steps[reached, char] = following
        return following

    def _mask(self, char: str) -> int:
        """Return the bits of the atoms that match this character."""
        mask = self._masks.get(char)
        if mask is None:
            taken = (1 << at for at, atom in enumerate(self._atoms) if _takes(atom, char))
            mask = sum(taken)
            if len(self._masks) < _STEPS_KEPT:
                self._masks[char] = mask
        return mask

    # --- parser

    def _check(self) -> None:
        text = self._text
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"it is longer than {PATTERN_CHARS_MAX} characters")
        compile_pattern(text)  # reports wrong brackets
        if not _PLAIN.fullmatch(text) or "(?" in text:
            raise PatternError("write letters, . * + ? | ( ) [ ]")
        if any(sum(map(each.count, _REPEATS)) > REPEATS_MAX for each in text.split("|")):
            raise PatternError(f"write at most {REPEATS_MAX} of * + ? between two |")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self) -> _Part:
        found = self._sequence()
        while self._next() == "|":
            self._at += 1
            other = self._sequence()
            is_empty = found.is_empty or other.is_empty
            found = _Part(is_empty, found.first | other.first, found.last | other.last)
        return found

    def _sequence(self) -> _Part:
        found = _NOTHING
        if self._next() == "^":
            self._at += 1
        while self._next() not in ("", "|", ")"):
            if self._next() == "$":
                self._at += 1
                if self._next() not in ("", "|", ")"):
                    raise PatternError("write $ at the end")
                break
            part = self._item()
            self._join(found.last, part.first)
            found = _Part(
                found.is_empty and part.is_empty,
                found.first | part.first if found.is_empty else found.first,
                found.last | part.last if part.is_empty else part.last,
            )
        return found

    def _item(self) -> _Part:
        char = self._next()
        if char == "(":
            self._at += 1
            found = self._choice()
            self._at += 1
            if self._next() and self._next() in _REPEATS:
                raise PatternError("repeat no group")
            return found
        if char in "^*+?]":
            raise PatternError(f"{char} is not possible there")
        end = self._at + 1
        if char == "[":
            end = self._text.index("]", end + 1 + self._text.startswith("^", end)) + 1
        bit = 1 << len(self._atoms)
        self._atoms.append(self._text[self._at : end])
        self._follow.append(0)
        self._at = end
        repeat = self._next()
        if not repeat or repeat not in _REPEATS:
            return _Part(False, bit, bit)
        self._at += 1
        if self._next() == "?":  # lazy repeats match the same whole names
            self._at += 1
        elif self._next() == "+":
            raise PatternError("write no + behind * + ?")
        if repeat != "?":
            self._join(bit, bit)
        return _Part(repeat != "+", bit, bit)

    def _join(self, last: int, first: int) -> None:
        for at in range(len(self._follow)):
            if last >> at & 1:
                self._follow[at] |= first


def _takes(atom: str, char: str) -> bool:
    if len(atom) == 1:
        return atom in (".", char)
    return compile_pattern(atom).match(char) is not None
