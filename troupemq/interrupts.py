"""Ctrl-C in a command: the first one interrupts it, impatient ones add no traceback.

Before the command is imported it ends the process without a word; while the interpreter shuts down
it does nothing. Servers have handlers of their own while they serve (daemon.py).
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import socket, socketpair
from time import monotonic
from types import FrameType
from typing import Self

INTERRUPTED = 130
"""The exit code of what Ctrl-C has ended, as shells have it."""

PATIENCE_S = 2.0
"""How long an interrupted command may clean up before another Ctrl-C ends the process at once."""


LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time: a signal that comes as it begins does not wake it."""

READ_BYTES = 4096


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


class Wakeup:
    """Wait of the main thread that handlers of signals and other threads end.

    A lock of `threading` or `queue` does not do: a handler that interrupts its own thread where it
    holds the lock waits for ever. `SimpleQueue` has such a lock on PyPy.
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
        """End the present wait, else the next one; before `with` and behind it do nothing."""
        if self._ends is not None:
            with suppress(OSError):  # nothing more fits: it is awake; or it is closed
                self._ends[1].send(b"\0")

    def wait(self, most_s: float) -> None:
        """Wait until it is woken, for `most_s` (above 0) and for LOOK_AGAIN_S at most."""
        assert self._ends is not None
        self._ends[0].settimeout(min(most_s, LOOK_AGAIN_S))
        with suppress(TimeoutError):
            self._ends[0].recv(READ_BYTES)


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
