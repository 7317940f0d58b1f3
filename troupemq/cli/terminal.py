"""A terminal that shows whole screens and tells pressed keys, without a library.

Works where the system has pseudo-terminals (termios). Screens are drawn with the sequences that
all terminals of today share: position, style, end of line, alternate screen.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from select import select
from typing import TextIO

from troupemq.text import cut, padded

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = tty = None  # type: ignore[assignment]

ESCAPE, ENTER, BACKSPACE = "esc", "enter", "backspace"
UP, DOWN, LEFT, RIGHT, PAGE_UP, PAGE_DOWN = "up", "down", "left", "right", "page up", "page down"
READ_BYTES = 256

PLAIN, BOLD, ALARM, CHOSEN, DIM = "", "1", "1;31", "7", "2"
"""Styles of a line, as the parameters of the sequence that sets them."""

_SEQUENCES = {
    "A": UP,
    "B": DOWN,
    "C": RIGHT,
    "D": LEFT,
    "5~": PAGE_UP,
    "6~": PAGE_DOWN,
}
_BEGIN, _END = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
"""Enter the alternate screen without a cursor; leave it."""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: str = PLAIN


class Terminal:
    """The terminal at a file descriptor to read and a stream to write, both the same device."""

    def __init__(self, source: int, out: TextIO) -> None:
        self._source, self._out = source, out

    @property
    def shows_screens(self) -> bool:
        """Whether both ends are a terminal that can move its cursor."""
        if termios is None or os.environ.get("TERM", "dumb") == "dumb":
            return False
        try:
            return self._out.isatty() and os.isatty(self._source)
        except ValueError:  # closed
            return False

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return max(20, found.columns), max(5, found.lines)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Show screens and read keys at once, without echo; restore the terminal at the end."""
        before = termios.tcgetattr(self._source)
        if isinstance(self._out, TextIOWrapper):
            self._out.reconfigure(errors="replace")  # arrows, in a locale without them
        try:
            tty.setcbreak(self._source)
            self._write(_BEGIN)
            yield
        finally:
            with suppress(OSError, termios.error):  # the terminal is gone
                termios.tcsetattr(self._source, termios.TCSADRAIN, before)
                self._write(_END)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw the lines from the top; cut them at the edges, and clear the rest."""
        columns, rows = self.size()
        parts = []
        for number in range(rows):
            line = lines[number] if number < len(lines) else Line("")
            text = cut(line.text, columns)
            if line.style == CHOSEN:
                text = padded(text, columns)
            styled = f"\x1b[{line.style}m{text}\x1b[0m" if line.style else text
            parts.append(f"\x1b[{number + 1};1H{styled}\x1b[K")
        self._write("".join(parts))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def keys(self, timeout_s: float, wake: int) -> list[str]:
        """Return pressed keys, as characters or names.

        Returns none after the timeout, and if `wake` can be read. Raises EOFError if the terminal
        is gone.
        """
        ready, _, _ = select([self._source, wake], [], [], timeout_s)
        if wake in ready:
            os.read(wake, READ_BYTES)
        if self._source not in ready:
            return []
        try:
            data = os.read(self._source, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        return list(keys_in(data.decode(errors="replace")))


def keys_in(text: str) -> Iterator[str]:
    """Yield the keys in what a terminal has sent at once."""
    place = 0
    while place < len(text):
        each = text[place]
        place += 1
        if each == "\x1b" and text[place : place + 1] in ("[", "O"):
            end = place + 1
            while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
                end += 1
            name = _SEQUENCES.get(text[place + 1 : end + 1])
            place = end + 1
            if name is not None:
                yield name
        elif each == "\x1b":
            yield ESCAPE
        elif each in "\r\n":
            yield ENTER
        elif each in "\x7f\b":
            yield BACKSPACE
        elif each.isprintable():
            yield each
