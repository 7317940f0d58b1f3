"""Progress of a demonstration, a line per step."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO


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
