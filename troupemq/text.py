"""Text on a terminal: escaping and width, status on stdout, errors on stderr, steps of a tour."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TextIO
from unicodedata import category, combining, east_asian_width

_ESCAPED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of control characters, surrogates, and line and paragraph separators."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text."""


def escaped(text: str) -> str:
    """Escape foreign text for one line: it can neither move the cursor nor change colours."""
    if text.isprintable():
        return text
    return "".join(_escape(each) for each in text)


def _escape(each: str) -> str:
    if category(each) in _ESCAPED or each in _BIDI:
        return each.encode("unicode_escape").decode()
    return each


def escaped_json(text: str) -> str:
    """Escape JSON in the same way, without changing its meaning."""
    if text.isprintable():
        return text
    return "".join(
        f"\\u{ord(each):04x}" if each != "\n" and _escape(each) != each else each for each in text
    )


def one_line(text: str) -> str:
    """Escape foreign text, with line breaks as blanks."""
    return escaped(" ".join(text.split()))


def escaped_lines(text: str) -> str:
    return "\n".join(map(escaped, text.split("\n")))


def width_of(text: str) -> int:
    """Return the width in columns: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(each: str) -> int:
    if combining(each) or category(each) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(each) in "WF" else 1


def padded(text: str, width: int, right: bool = False) -> str:
    """Pad to at least `width` columns; text is on the left unless `right`."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks


def span_text(seconds: float) -> str:
    """Return a duration in one unit: 5 s, 3 min, 2 h, 4 d."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size_text(count: float) -> str:
    """Return a number of bytes in the unit that suits it: 1.5 KiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def cut(text: str, width: int) -> str:
    """Return the start of a text that is at most `width` columns wide; `…` marks a cut."""
    if width_of(text) <= width:
        return text
    used, kept = 0, []
    for each in text:
        used += width_of(each)
        if used >= width:
            break
        kept.append(each)
    return "".join(kept) + "…"


FAILED = 1
"""Exit code of failures without their own code (exit_codes.py)."""


def tell(text: str) -> None:
    """Print a line on stdout; no closed pipe or terminal, or full disk, must stop a server."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else the flush at exit would fail again
        os.close(nowhere)


def say(sentence: str) -> None:
    """Print one line on stderr, with line breaks and control characters escaped.

    It is lost if stderr is a closed pipe or a file on a full disk.
    """
    with suppress(OSError):
        print(f"troupemq: {one_line(sentence)}", file=sys.stderr, flush=True)


class Steps:
    """Printer of steps; flushes after each write."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Print what the block does, and how long it took."""
        self._output.write(f"{what} ...")
        self._output.flush()
        begun_s = monotonic()
        try:
            yield
        except BaseException:
            self._output.write("\n")
            raise
        self._output.write(f" done in {monotonic() - begun_s:.1f} s\n")
        self._output.flush()

    def progress(self, text: str) -> None:
        self._output.write(f" {text}")
        self._output.flush()

    def say(self, line: str) -> None:
        self._output.write(line + "\n")
        self._output.flush()
