"""Measurement of how long an event loop did not run."""

import asyncio
from collections.abc import Coroutine
from typing import Any

STALL_S_MAX = 0.5
"""Far below the 3 s for which a look-up waits, and far above the pauses of a busy machine."""
_TICK_S = 0.002


async def longest_stall_s(work: Coroutine[Any, Any, object]) -> float:
    """Return the longest time in which no other coroutine ran while `work` did."""
    longest, loop = 0.0, asyncio.get_running_loop()

    async def tick() -> None:
        nonlocal longest
        while True:
            before = loop.time()
            await asyncio.sleep(_TICK_S)
            longest = max(longest, loop.time() - before - _TICK_S)

    ticking = asyncio.create_task(tick())
    try:
        await work
    finally:
        ticking.cancel()
    return longest
