"""The mark `slow` for tests that start processes, and forked processes.

`-m "not slow"` runs in one process alone.

tests/conftest.py marks trials and `heavy` tests as slow, too, although they start no processes.
"""

import os
import sys
import warnings
from collections.abc import Callable

import pytest

_STARTS = frozenset(("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"))
_running: list[str] = []
"""The test that runs, if it may not start any."""


def watch() -> None:
    """From now on a start of a process is refused where the test that runs is not marked `slow`.

    Python has no way to end this again.
    """
    sys.addaudithook(_refuse)


def begins(item: pytest.Item) -> None:
    """This test runs from now on, its fixtures included."""
    slow = item.get_closest_marker("slow")
    may_start = slow is not None and slow.kwargs.get("processes", True)
    _running[:] = [] if may_start else [item.nodeid]


def ends() -> None:
    """No test runs."""
    _running.clear()


def _refuse(event: str, _: object) -> None:
    if event in _STARTS and _running:
        raise AssertionError(f"{_running[0]} starts a process: mark it `slow`")


def told_by_child(work: Callable[[], str]) -> str:
    """Return what `work` returns in a forked process, which then ends."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, from 3.12 on
        child = os.fork()
    if not child:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text
