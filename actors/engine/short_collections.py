"""Short collections of garbage, for a process that others wait for.

A collection of Python's oldest generation looks at every object that there is, and nothing else
runs meanwhile: 100,000 pulls that wait made it 130 ms. Here what has survived one is set aside
(gc.freeze), so that the next one looks at what has come since; every ALL_S seconds one looks at
everything again, for cycles that have died there. Objects without cycles, nearly all, go with their
last reference, as always.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

OLDEST = 2
THRESHOLDS = (700, 10, 2)
"""The oldest generation is looked at after 14,000 more objects, not 70,000: 4 ms."""

ALL_S = 300.0

_SETS_ASIDE = hasattr(gc, "freeze")
"""PyPy has another collector, whose steps are short by themselves."""

_blocks: list[object] = []
"""Of the process, those that have begun and not ended."""


def set_aside() -> None:
    """What there is counts as old for the next collections, where they are short; takes no time.
    For who has made a great many objects of which few die in circles."""
    if _blocks and _SETS_ASIDE:
        gc.freeze()


@contextmanager
def short_collections(clock: Callable[[], float] = monotonic) -> Iterator[None]:
    """Collections of this process are short until the end of the block; `clock` is in seconds."""
    if not _SETS_ASIDE:
        yield
        return
    looked_at_all_s = clock()

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal looked_at_all_s
        if info["generation"] != OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif clock() - looked_at_all_s >= ALL_S:
            looked_at_all_s = clock()
            gc.unfreeze()

    before, were_aside = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(on_collection)
    _blocks.append(on_collection)
    try:
        yield
    finally:
        _blocks.remove(on_collection)
        gc.callbacks.remove(on_collection)
        gc.set_threshold(*before)
        if not were_aside:
            gc.unfreeze()
