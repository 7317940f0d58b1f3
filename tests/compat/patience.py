"""Waiting for something outside this process, with a deadline and a reason."""

import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.05
PATIENCE_S = 75.0
"""A Java client looks every 30 s for routes that it lacks, a retry topic's among them; 5.x also
pulls in vain for up to 30 s when its first heartbeat and its first rebalance fall together."""


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when `true()` holds; AssertionError naming `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)
