"""Suggestions for misspelled names of settings, file keys, arguments and commands."""

from collections.abc import Iterable
from re import ASCII
from re import compile as compile_pattern

CLOSE_RATIO = 0.8
"""Minimum similarity of a misspelled name; 1 is equality but for case and separators."""

HINT_RATIO = 0.6
"""Minimum similarity of a suggestion for a name that is refused anyway."""

NAME_CHARS_MAX = 100
"""Longest name with a suggestion: the time of a comparison grows with the square of the length."""

_WORD = compile_pattern(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", ASCII)


def closest(name: str, known: Iterable[str], ratio: float = CLOSE_RATIO) -> str | None:
    """Return the known name that `name` misspells, or None.

    Case, separators and the order of words do not count: enableAcl means aclEnable.
    """
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return None
    from difflib import SequenceMatcher  # only misspelled names need it

    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(_plain(name))
    words = _words(name)
    best, best_ratio = None, ratio
    for each in sorted(known, reverse=True):  # of equally close names the first one
        if _words(each) == words:
            return each
        matcher.set_seq1(_plain(each))
        if matcher.real_quick_ratio() < best_ratio or matcher.quick_ratio() < best_ratio:
            continue
        if (found := matcher.ratio()) >= best_ratio:
            best, best_ratio = each, found
    return best


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a question with the closest known name, or `otherwise` without one."""
    found = closest(name, known, HINT_RATIO)
    return otherwise if found is None else f"did you mean {found}?"


def _plain(name: str) -> str:
    return "".join(each for each in name.lower() if each not in "-_. ")


def _words(name: str) -> list[str]:
    return sorted(each.lower() for each in _WORD.findall(name))
