"""Handling of Ctrl-C in commands, without tracebacks.

The first Ctrl-C interrupts the command; repeated ones are ignored for PATIENCE_S. During imports
Ctrl-C ends the process silently; during interpreter shutdown it has no effect. Servers install
their own handlers (daemon.py).
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import socket, socketpair
from time import monotonic
from types import FrameType
from typing import Self

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

PATIENCE_S = 2.0
"""Time for clean-up after Ctrl-C; a later Ctrl-C ends the process at once."""


LOOK_AGAIN_S = 0.5
"""Maximum wait of the main thread: a signal at the start of a wait does not wake it."""

READ_BYTES = 4096


def _interrupt() -> None:
    raise KeyboardInterrupt


class Interrupts:
    """Signal handler that interrupts a command, and ends the process if that takes long."""

    def __init__(self, interrupt: Callable[[], None] = _interrupt) -> None:
        self._interrupt = interrupt
        self._first_s: float | None = None

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Interrupt the command the first time; end the process after PATIENCE_S."""
        now_s = monotonic()
        if self._first_s is None:
            self._first_s = now_s
            self._interrupt()
        elif now_s - self._first_s > PATIENCE_S:
            os._exit(INTERRUPTED)


class Wakeup:
    """Wait of the main thread that signal handlers and other threads can end.

    Locks of `threading` or `queue` do not work: a handler that interrupts its own thread while that
    holds the lock deadlocks. On PyPy `SimpleQueue` has such a lock.
    """

    def __init__(self) -> None:
        self._ends: tuple[socket, socket] | None = None

    def __enter__(self) -> Self:
        self._ends = socketpair()
        self._ends[1].setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends or ():
            end.close()

    def wake(self) -> None:
        """End the present or the next wait; outside `with` do nothing."""
        if self._ends is not None:
            with suppress(OSError):  # full, so the wait ends anyway; or closed
                self._ends[1].send(b"\0")

    def wait(self, most_s: float) -> None:
        """Wait until `wake`, but at most for `most_s` (above 0) and for LOOK_AGAIN_S."""
        assert self._ends is not None
        self._ends[0].settimeout(min(most_s, LOOK_AGAIN_S))
        with suppress(TimeoutError):
            self._ends[0].recv(READ_BYTES)


def end_quietly() -> None:
    """Let SIGINT end the process without a traceback; for the time of imports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_once() -> None:
    """Let SIGINT raise KeyboardInterrupt in the command that runs next."""
    signal.signal(signal.SIGINT, Interrupts())


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, Interrupts())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ignore_signals() -> None:
    """Ignore the signals of a stop from now on, because the interpreter shuts down."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
