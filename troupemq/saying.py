"""Lines that a process says to whoever started it: what it does, and what is wrong."""

import os
import sys

from troupemq.text import one_line

FAILED = 1
"""The exit code of anything that has none of its own (exit_codes.py)."""


def tell(text: str) -> None:
    """A line on stdout; that nobody reads it any more is no reason not to serve."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or the flush at the exit would fail again
        os.close(nowhere)


def say(sentence: str) -> None:
    """One line for the operator, whatever others put into it."""
    print(f"troupemq: {one_line(sentence)}", file=sys.stderr, flush=True)
