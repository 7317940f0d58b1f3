"""Waiting for something outside this process, with a deadline and a reason."""

import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.05


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Returns when `true()` holds; AssertionError naming `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)
