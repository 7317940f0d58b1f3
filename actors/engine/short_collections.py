"""Short collections of garbage, for a process that others wait for.

A collection of Python's oldest generation looks at every object that there is, and nothing else
runs meanwhile: 100,000 pulls that wait made it 130 ms. Here what has survived one is set aside
(gc.freeze), so that the next one looks at what has come since; every ALL_S seconds one looks at
everything again, for cycles that have died there. Objects without cycles, nearly all, go with their
last reference, as always.

PyPy goes through its heap in steps; a server sets their length (interpreter_environment.py in
troupemq). There the last reference ends nothing: files and maps that are not closed wait for the
collector.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

OLDEST = 2
THRESHOLDS = (700, 10, 2)
"""The oldest generation is looked at after 14,000 more objects, not 70,000: 4 ms."""

ALL_S = 300.0

PAUSE_S = 0.001
"""Between two pieces, for the other threads."""

_SETS_ASIDE = hasattr(gc, "freeze")
"""Whether the collector can leave out old objects; that of PyPy goes through them in steps."""

_STEP: Callable[[], Any] | None = getattr(gc, "collect_step", None)

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


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the collector for a block that makes many objects, none of which ends in a cycle.

    On PyPy it goes on: its steps are short, and a pause would let the heap grow for ever.
    """
    if not _SETS_ASIDE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        set_aside()  # else the next collection would look at all that the block has left
        gc.enable()


def end_unreferenced(
    step: Callable[[], Any] | None = _STEP, pause: Callable[[float], None] = sleep
) -> None:
    """End what nothing refers to any more, such as maps of deleted files; not on the loop.

    PyPy takes some 0.3 s for it, with pauses. CPython has ended it already.
    """
    if step is not None:
        for _ in range(2):  # a collection that is under way may have passed it
            while not step().major_is_done:
                pause(PAUSE_S)
