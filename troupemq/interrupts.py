"""Ctrl-C in a command: the first one interrupts it, impatient ones add no traceback.

Before the command is imported it ends the process without a word; while the interpreter shuts down
it does nothing. Servers have handlers of their own while they serve (daemon.py).
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

INTERRUPTED = 130
"""The exit code of what Ctrl-C has ended, as shells have it."""

PATIENCE_S = 2.0
"""How long an interrupted command may clean up before another Ctrl-C ends the process at once."""


class Interrupts:
    """The handler of SIGINT for one command line."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Raises KeyboardInterrupt, the first time."""
        now_s = monotonic()
        if self._first_s is None:
            self._first_s = now_s
            raise KeyboardInterrupt
        if now_s - self._first_s > PATIENCE_S:
            os._exit(INTERRUPTED)


def end_quietly() -> None:
    """Makes SIGINT the end of the process, without a traceback: its modules are imported now."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_once() -> None:
    """Makes SIGINT interrupt the command that runs from now on."""
    signal.signal(signal.SIGINT, Interrupts())


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM interrupt what runs within, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, Interrupts())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ignore_signals() -> None:
    """Makes SIGINT and SIGTERM do nothing any more: the command has ended, and Python ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
