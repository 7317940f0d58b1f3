"""Lines of a process on the terminal: stdout for status, stderr for errors."""

import os
import sys

from troupemq.text import one_line

FAILED = 1
"""Exit code of failures without their own code (exit_codes.py)."""


def tell(text: str) -> None:
    """Print a line on stdout; a closed pipe must not stop a server."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else the flush at exit would fail again
        os.close(nowhere)


def say(sentence: str) -> None:
    """Print one line on stderr, with line breaks and control characters escaped."""
    print(f"troupemq: {one_line(sentence)}", file=sys.stderr, flush=True)
