"""The mark `slow` for tests that start processes; `-m "not slow"` runs in one process alone.

tests/conftest.py marks trials and `heavy` tests as slow, too, although they start no processes.
"""

import sys

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
